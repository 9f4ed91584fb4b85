"""Check paths of results before any long work: one rule for every verb's --out.

A file takes the place of an older one in one step, when it is complete; a verb that fails or is
interrupted leaves the older one whole. A folder of finished work (a training) is replaced with
--overwrite only. `profile` and `study` go on with what lies in theirs. A data set of images is no
folder of results.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from nnstretch.bundle.image_task import is_image_name
from nnstretch.errors import BadInput
from nnstretch.files.atomic import link_target
from nnstretch.files.model_text import parse_model_spec
from nnstretch.files.read import as_path


def check_writable(path: str | Path | None, *sources: str | Path | None) -> Path | None:
    """Return the path. Raises BadInput where it cannot be written or is one of the sources."""
    if path is None:
        return None
    out = as_path(path, "output")
    folder = link_target(out).parent
    if not folder.is_dir():
        raise BadInput(f"cannot write {out}, no folder {folder}, create it first")
    if out.is_dir():
        raise BadInput(f"cannot write {out}, it is a folder, name a file")
    if out.exists() and not out.is_file():
        raise BadInput(
            f"cannot write {out}, it is a device or a pipe that a file would take the place of,"
            " name a file"
        )
    if not os.access(folder, os.W_OK) or (out.exists() and not os.access(out, os.W_OK)):
        raise BadInput(f"cannot write {out}, no permission")
    for source in sources:
        if source is not None and out.exists() and is_same(out, str(source)):
            raise BadInput(
                f"cannot write {out}, it is the command's own input {source}, name another file"
            )
    return out


def check_ending(path: Path | None, ending: str, option: str) -> None:
    """Refuse a file whose name does not say what is in it. Raises BadInput."""
    if path is not None and path.suffix.lower() != ending:
        raise BadInput(f"cannot write {path}, {option}, its name must end in {ending}")


def check_folder(path: str | Path | None, option: str) -> None:
    """Refuse a folder of results that is a file, cannot be made or written, or is a data set: two
    folders of images alone in it.

    Raises BadInput.
    """
    if path is None:
        return
    folder = as_path(path, option)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{option} is {folder}, command line, it is a file, name a folder")
    check_makeable(folder)
    classes: list[Path] = []
    for below in chain(folder.glob("[!.]*/"), folder.glob("[!.]*/[!.]*/")):
        names = [file.name for file in below.glob("[!.]*")]
        if names and all(map(is_image_name, names)):
            classes.append(below)
        if len(classes) > 1:
            raise BadInput(
                f"{option} is {folder}, command line, it is a data set ({classes[0]} and {below}"
                " hold images), name another folder"
            )


def check_makeable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, with those above it. Raises BadInput."""
    whole = as_path(folder, "output").absolute()
    behind = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
    if not behind.is_dir():
        raise BadInput(f"cannot write to {folder}, {behind} is no folder, name another")
    if not os.access(behind, os.W_OK):
        raise BadInput(f"cannot write to {folder}, no permission to write to {behind}")


def check_apart(*paths: str | Path | None) -> None:
    """Refuse results that would be written to one place. Raises BadInput."""
    named: set[str] = set()
    for path in paths:
        place = "" if path is None else os.path.realpath(path)
        if place in named:
            raise BadInput(f"{path} is written twice, command line, name a place for each")
        if place:
            named.add(place)


def check_replaceable(
    folder: Path, finished: str | None, overwrite: bool, option: str = "--out"
) -> None:
    """Refuse to replace finished work unasked; `finished` says what it is, None without any.

    Raises BadInput.
    """
    if finished is not None and not overwrite:
        raise BadInput(
            f"cannot write {folder}, it holds {finished}, name another {option} or replace it with"
            " --overwrite"
        )


def is_same(out: Path, source: str) -> bool:
    """Return whether an input is the output file itself, or a factory in it."""
    return any(out.samefile(file) for file in files_of(source))


def files_of(source: str) -> list[Path]:
    """Return the files that an input may mean: itself, those of its factory, outputs or chip."""
    network = parse_model_spec(source).source
    candidates = (Path(source), Path(network), Path(network.rpartition(":")[0] or network))
    files = [candidate for candidate in candidates if candidate.is_file()]
    return files or [path for path in chip_files(source) if path.is_file()]


def chip_files(source: str) -> list[Path]:
    """Return what the folder of a chip holds: of its name or its path."""
    for folder in (Path(source), Path("latency_predictors") / source):
        if (folder / "soc.json").is_file():
            return sorted(folder.rglob("*"))
    return []
