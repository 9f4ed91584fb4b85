"""The grammar of hostile files and arguments."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nnstretch.bundle.archive import MANIFEST, open_sealed, write_sealed

HUGE = "1" + "0" * 400
WORDS = (
    *("", "-", "--", "nan", "inf", "-inf", "-1", "0", "1e400", HUGE, "None", "null", "true"),
    *("1:30", "010", "1_000", "0x", "x" * 300, "x" * 5000, "a/" * 2500, "..", ".", "*", "~"),
    *("\u2603", "\udcff", "\x1b[31m", "a\nb", "%s%n", "{}", "[]", "a,,b", "a=b", "=", ":", "#"),
    *("/dev/zero", "/dev/stdin/x", "x.yaml", "x.onnx", "x.pt2", "x.py:make", "timm:x", "1,3,16,16"),
    *("cpu", "cpu,dsp", "cpu,cpu", "nowhere", "cpu@0", "cpu@nan:1", "cpu@1:0", "1,0,3", "1,3,nan"),
)
"""Arguments that nobody can mean, and some that somebody can."""
TOKENS = (
    *("nan", ".nan", ".inf", "-1", "0", "1e400", HUGE, "null", "", "~", "true", "1:30", "010"),
    *("[]", "{}", '""', '"x"', "[[[[]]]]", "&a [*a]", "!!python/object:os.system {}", "\\u0000"),
    *("x" * 3000, "\u2603", "\x00", "-0.0", "1.5", "2", "1000000000", "NaN", "Infinity", "- -"),
)
"""What stands in a text in place of a number or word."""
WORD = re.compile(r"[A-Za-z0-9_.+-]+")
WORK = re.compile(rb"(images_per_class|image_px|max_epochs): (\d+)")
MOST_WORK = 1_000_000
"""What is more is refused."""
SPECIAL = ("fifo", "folder", "zero", "sparse", "loop", "socket", "empty", "missing")


def words() -> st.SearchStrategy[str]:
    """Draw an argument."""
    return st.sampled_from(WORDS) | st.text(max_size=6).filter(lambda text: "\0" not in text)


def damage(data: st.DataObject, path: Path) -> str:
    """Damage a file in one way; return in words what was done."""
    how = data.draw(st.sampled_from(("special", "bytes", "bytes", "text", "text", "sealed")))
    if how == "special":
        kind = data.draw(st.sampled_from(SPECIAL))
        return make_special(path, kind)
    if how == "sealed" and path.suffix == ".nns":
        return forge_manifest(data, path)
    content = path.read_bytes()
    if how == "text" and path.suffix in (".yaml", ".json", ".csv", ".stg", ".py"):
        text, what = replace_word(data, content.decode())
        path.write_bytes(text.encode(errors="surrogatepass"))
        return what
    changed = change_bytes(data, content)
    if trains_longer(content, changed):
        return "nothing changed, it would be sound and train for minutes"
    path.write_bytes(changed)
    pairs = enumerate(zip(content, changed, strict=False))
    at = next((place for place, (old, new) in pairs if old != new), len(changed))
    return f"byte {at}: {content[at : at + 9]!r} -> {changed[at : at + 9]!r}"


def trains_longer(sound: bytes, changed: bytes) -> bool:
    """Return whether a recipe was changed into one that asks for several times the work."""
    before, after = (dict(WORK.findall(content)) for content in (sound, changed))
    return any(3 * int(count) < int(after.get(key, 0)) < MOST_WORK for key, count in before.items())


def make_special(path: Path, kind: str) -> str:
    """Put something that is no ordinary file in a file's place."""
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "socket" and len(str(path)) < 100:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(path))
    elif kind != "missing":
        with path.open("wb") as file:
            file.truncate(1 << 40 if kind == "sparse" else 0)
    return kind


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder with what is no ordinary file; files share their bytes until one is replaced."""
    target.mkdir()
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            copy_folder(Path(entry.path), target / entry.name)
        else:
            os.link(entry.path, target / entry.name, follow_symlinks=False)


def change_bytes(data: st.DataObject, content: bytes) -> bytes:
    """Cut, flip, repeat or insert bytes."""
    at = data.draw(st.integers(0, max(len(content) - 1, 0)))
    length = data.draw(st.sampled_from((1, 2, 8, 64, 4096)))
    how = data.draw(st.sampled_from(("cut", "remove", "repeat", "insert", "set")))
    start, middle, end = content[:at], content[at : at + length], content[at + length :]
    if how == "cut":
        return start
    if how == "remove":
        return start + end
    if how == "repeat":
        return start + middle + middle + end
    noise = data.draw(st.binary(min_size=1, max_size=8) | st.sampled_from((b"\xff" * 8, b"\0" * 8)))
    return start + noise + (middle + end if how == "insert" else content[at + len(noise) :])


def replace_word(data: st.DataObject, text: str) -> tuple[str, str]:
    """Replace one word or number, or repeat or remove one line."""
    if data.draw(st.integers(0, 4)) == 0:
        lines = text.splitlines(keepends=True)
        at = data.draw(st.integers(0, len(lines) - 1))
        times = data.draw(st.sampled_from((0, 2)))
        return "".join([*lines[:at], *lines[at : at + 1] * times, *lines[at + 1 :]]), "a line"
    places = list(WORD.finditer(text))
    place = data.draw(st.sampled_from(places))
    token = data.draw(st.sampled_from(TOKENS))
    return text[: place.start()] + token + text[place.end() :], f"{place[0]} -> {token[:20]}"


def forge_manifest(data: st.DataObject, path: Path) -> str:
    """Replace one value of a bundle's manifest and seal the bundle again."""
    with open_sealed(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members[MANIFEST])
    place, key = data.draw(st.sampled_from(list(places_of(manifest))))
    odd = st.sampled_from((None, True, -1, 0, 10**30, 1e308, "", "x" * 100_000, [], {}, "../x"))
    place[key] = data.draw(odd | st.integers() | st.text(max_size=4))
    members[MANIFEST] = json.dumps(manifest).encode()
    write_sealed(path, members)
    return f"manifest {key}"


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Return container and key of every value of JSON data."""
    places: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        places.append((value, key))
        if isinstance(inner, dict | list):
            places += places_of(inner)
    return places
