"""A bundle is anyone's file: it comes back exactly as written, or not at all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bundles import branched_bundle, feature_map

from nnstretch.bundle.archive import MANIFEST, SEAL_BYTES, digest, write_sealed
from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph, segment_ends
from nnstretch.errors import BrokenFile, NnstretchError, UnknownName

PAYLOAD = bytes(range(64))


def tiny() -> Bundle:
    """Two sub-graphs of a few bytes: what is in the files does not matter to the container."""
    x, y, z = (Port(name, feature_map()) for name in "xyz")
    first = Subgraph(
        "a", "cpu", "a.onnx", digest(PAYLOAD), len(PAYLOAD), (x,), (y,), predicted_us={"cpu": 5.0}
    )
    second = Subgraph("b", "dsp", "deep/b.onnx", digest(b""), 0, (y,), (z,), segment=1)
    return Bundle(
        Manifest("m", None, (x,), (z,), (first, second), 1e-6, {1: 2.5}, "plan: x"),
        {"a.onnx": PAYLOAD, "deep/b.onnx": b""},
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bundle") / "tiny.nns"
    write_bundle(path, tiny().manifest, tiny().files)
    return path.read_bytes()


def forged(
    path: Path,
    change: Callable[[dict[str, Any]], object],
    bundle: Bundle | None = None,
    **members: bytes,
) -> Path:
    """A bundle with a valid seal whose manifest somebody edited."""
    bundle = bundle or tiny()
    write_bundle(path, bundle.manifest, bundle.files)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents[MANIFEST])
    change(manifest)
    write_sealed(path, contents | {MANIFEST: json.dumps(manifest).encode()} | members)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BrokenFile) as caught:
        read_bundle(path)
    message = str(caught.value)
    assert message.startswith(f"broken bundle {path}, ")
    assert "\n" not in message
    return message.removeprefix(f"broken bundle {path}, ")


def test_a_bundle_comes_back_as_it_was_written(tmp_path: Path) -> None:
    bundle = branched_bundle(segments=2)
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    back = read_bundle(tmp_path / "a.nns")
    assert (back.manifest, back.files) == (bundle.manifest, bundle.files)


def test_equal_contents_make_equal_files(tmp_path: Path, written: bytes) -> None:
    write_bundle(tmp_path / "again.nns", tiny().manifest, tiny().files)
    assert (tmp_path / "again.nns").read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["again.nns"]


@pytest.mark.slow
def test_every_single_flipped_byte_is_noticed(tmp_path: Path, written: bytes) -> None:
    for position in range(len(written)):
        changed = bytearray(written)
        changed[position] ^= 1 + position % 255
        path = tmp_path / "flipped.nns"
        path.write_bytes(changed)
        refusal(path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_cut_or_insertion_is_noticed(
    tmp_path: Path, written: bytes, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(written) - 1))
    inserted = data.draw(st.binary(max_size=8))
    path = tmp_path / "cut.nns"
    dropped = data.draw(st.integers(0, len(written) - position))
    changed = written[:position] + inserted + written[position + dropped :]
    if changed != written:
        path.write_bytes(changed)
        refusal(path)


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_with_a_forged_seal_a_flip_is_refused_or_harmless(
    tmp_path: Path, written: bytes, data: st.DataObject
) -> None:
    changed = bytearray(written[:-SEAL_BYTES])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "forged.nns"
    path.write_bytes(bytes(changed) + b"nnstretch sha256 " + digest(bytes(changed)).encode())
    try:
        back = read_bundle(path)
    except BrokenFile:
        return
    assert back.files.keys() == {sub.file for sub in back.manifest.subgraphs}
    assert all(digest(back.files[sub.file]) == sub.sha256 for sub in back.manifest.subgraphs)


def test_a_changed_member_is_named(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "changed.nns"
    path.write_bytes(written.replace(PAYLOAD, PAYLOAD[:-1] + b"!"))
    assert refusal(path) == "member a.onnx, its bytes were changed"


def test_a_truncated_or_foreign_file_is_named(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "x.nns"
    for contents in (b"", b"PK", b"not a zip at all" * 20, written[: len(written) // 2]):
        path.write_bytes(contents)
        assert f"truncated or not a bundle, {len(contents)} bytes" in refusal(path)


def test_a_missing_file_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no bundle .*none\.nns, the file does not exist"):
        read_bundle(tmp_path / "none.nns")
    with pytest.raises(UnknownName, match="a folder"):
        read_bundle(tmp_path)


def sub(manifest: dict[str, Any], number: int) -> dict[str, Any]:
    return manifest["subgraphs"][number]  # type: ignore[no-any-return]


WRONG = {
    "unknown format 99": lambda m: m.update(format=99),
    "unknown format True": lambda m: m.update(format=True),
    "unknown key 'author'": lambda m: m.update(author="me"),
    "unknown key 'colour'": lambda m: sub(m, 0).update(colour="red"),
    "key 'model' is missing": lambda m: m.pop("model"),
    "'3' is str, expected int": lambda m: sub(m, 0).update(size_bytes="3"),
    "'True' is bool, expected int": lambda m: sub(m, 0).update(segment=True),
    "is int, expected list": lambda m: m.update(inputs=7),
    "sub-graph 'a' is defined 2 times": lambda m: sub(m, 1).update(name="a"),
    "tensor 'y' is defined 2 times": lambda m: sub(m, 1)["outputs"][0].update(name="y"),
    "reads 'ghost', which nothing writes": lambda m: sub(m, 0)["inputs"][0].update(name="ghost"),
    "reads 'z' before it is written, a cycle or a wrong order": (
        lambda m: sub(m, 0)["inputs"].append(sub(m, 1)["outputs"][0])
    ),
    "the network's output reads 'ghost', which nothing writes": (
        lambda m: m["outputs"][0].update(name="ghost")
    ),
    "it is written as 1x8x8x8 float32": (
        lambda m: sub(m, 1)["inputs"][0]["spec"].update(shape=[1, 8, 8, 9])
    ),
    "subgraphs[1].outputs[0].spec.shape[1], 0 is out of range": lambda m: sub(m, 1)["outputs"][0][
        "spec"
    ].update(shape=[1, 0]),
    "spec.dtype, unknown dtype 'complex64'": (
        lambda m: sub(m, 1)["outputs"][0]["spec"].update(dtype="complex64")
    ),
    "of shape 8 in layout NCHW, needed are 4 axes": (
        lambda m: sub(m, 0)["outputs"][0].update(layout="NCHW", spec={"shape": [8]})
    ),
    "of 4.4e+12 bytes, limit 17179869184": (
        lambda m: sub(m, 0)["outputs"][0]["spec"].update(shape=[1 << 40])
    ),
    "processor_kinds.cpu, '', needed is a short word": (
        lambda m: m.update(processor_kinds={"cpu": ""})
    ),
    "unknown role 'chief'": lambda m: sub(m, 0).update(role="chief"),
    "predicted_us.cpu, -1.0 is out of range, needed is at least 0 and less than 1e+12": lambda m: (
        sub(m, 0)["predicted_us"].update(cpu=-1.0)
    ),
    "no merge there to charge it to": lambda m: m["sync_us"].update({"7": 1.0}),
    "key '-1' is not a count": lambda m: m["sync_us"].update({"-1": 1.0}),
    "'../../etc/passwd', a name must be": lambda m: sub(m, 0).update(file="../../etc/passwd"),
    "'/etc/passwd', a name must be": lambda m: sub(m, 0).update(file="/etc/passwd"),
    "its file is the manifest itself": lambda m: sub(m, 0).update(file=MANIFEST),
    "member a.onnx, 64 bytes, the manifest says 99": lambda m: sub(m, 0).update(size_bytes=99),
    "member a.onnx, sha256 ": lambda m: sub(m, 0).update(sha256="0" * 64),
    "member c.onnx, it is missing": lambda m: sub(m, 0).update(file="c.onnx"),
    "expects other contents of a.onnx": lambda m: sub(m, 1).update(file="a.onnx"),
    "a network needs inputs, outputs and sub-graphs": lambda m: m.update(outputs=[]),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_forged_manifest_is_refused_by_name(tmp_path: Path, why: str) -> None:
    found = refusal(forged(tmp_path / "forged.nns", WRONG[why]))
    if why == "member c.onnx, it is missing":
        assert "member a.onnx, the manifest does not know it" in found
    else:
        assert why in found


NAMED: dict[str, Callable[[dict[str, Any], str], object]] = {
    ".model, ": lambda m, name: m.update(model=name),
    ".soc, ": lambda m, name: m.update(soc=name),
    ".inputs[0].name, ": lambda m, name: m["inputs"][0].update(name=name),
    ".subgraphs[1].name, ": lambda m, name: sub(m, 1).update(name=name),
    ".subgraphs[0].processor, ": lambda m, name: sub(m, 0).update(processor=name),
    ".subgraphs[0].predicted_us, ": lambda m, name: sub(m, 0)["predicted_us"].update({name: 1.0}),
    ".processor_kinds, ": lambda m, name: m.update(processor_kinds={name: "cpu"}),
    ".pipeline.stages[0].name, ": lambda m, name: m.update(
        pipeline={"stages": [{"name": name}], "inputs": [{"name": "x"}], "outputs": ["z"]}
    ),
}


@pytest.mark.parametrize("where", NAMED)
def test_control_characters_in_a_name_are_refused(tmp_path: Path, where: str) -> None:
    path = forged(tmp_path / "forged.nns", lambda m: NAMED[where](m, "\x1b[31mred\n"))
    message = refusal(path)
    assert f"{where}'\\x1b[31mred\\n', needed is text without control characters" in message


@pytest.mark.parametrize(
    "text",
    [
        b"[1",
        b"\xff",
        b"[" * 100_000,
        b'{"format": 1, "format": 1}',
        b'{"format": NaN}',
        b"1" * 5000,
        b"null",
    ],
)
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.nns"
    write_sealed(path, {MANIFEST: text})
    assert refusal(path).startswith(f"member {MANIFEST}, ")


@pytest.mark.parametrize(
    "name", ["../escape.onnx", "/absolute.onnx", "a\\b", "", "a//b", "..", "a/../b"]
)
def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.nns"
    write_sealed(path, {name: b"data"})
    assert "a name must be a relative path" in refusal(path)


def resealed(path: Path, archive: bytes) -> Path:
    """`archive` behind a valid seal; its comment has to have the seal's length."""
    path.write_bytes(
        archive[:-SEAL_BYTES] + b"nnstretch sha256 " + digest(archive[:-SEAL_BYTES]).encode()
    )
    return path


def test_a_zip_bomb_is_refused_before_it_expands(tmp_path: Path) -> None:
    path = tmp_path / "bomb.nns"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.onnx", bytes(50_000_000))
        archive.comment = bytes(SEAL_BYTES)
    assert "member big.onnx, it is compressed (50000000 bytes)" in refusal(
        resealed(path, path.read_bytes())
    )


def test_a_member_twice_or_beyond_the_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.nns"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.onnx", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.onnx", b"2")
        archive.comment = bytes(SEAL_BYTES)
    assert "member a.onnx, it is there twice" in refusal(resealed(path, path.read_bytes()))
    extra = forged(tmp_path / "extra.nns", lambda manifest: None, **{"extra.bin": b"?"})
    assert "member extra.bin, the manifest does not know it" in refusal(extra)


def test_a_bundle_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    bundle, path = tiny(), tmp_path / "keep.nns"
    path.write_bytes(b"old")
    wrong = [
        (bundle.manifest, {"a.onnx": PAYLOAD}),
        (bundle.manifest, bundle.files | {"a.onnx": b"other"}),
        (replace(bundle.manifest, max_abs_error=float("nan")), bundle.files),
        (replace(bundle.manifest, outputs=()), bundle.files),
    ]
    for manifest, files in wrong:
        with pytest.raises(BrokenFile, match="cannot write bundle"):
            write_bundle(path, manifest, files)
    assert path.read_bytes() == b"old"
    with pytest.raises(NnstretchError, match="no folder"):
        write_bundle(tmp_path / "nowhere" / "x.nns", bundle.manifest, bundle.files)


def test_the_merge_ends_its_segment_and_a_lone_branch_its_own() -> None:
    assert segment_ends(branched_bundle(segments=2).manifest) == {
        0: "stem",
        1: "s1_merge",
        2: "s2_merge",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": "CHWN"}, r"inputs\[0\]\.layout, 'CHWN', needed is NCHW, NHWC or nothing"),
        ({"scale": 0.5}, "of float32 with scale 0.5, only int8"),
        (
            {"zero_point": 300},
            "zero_point, 300 is out of range, needed is at least -128 and at most 255",
        ),
    ],
)
def test_a_port_of_impossible_form_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    bundle = tiny()
    ports = tuple(replace(port, **change) for port in bundle.manifest.inputs)  # type: ignore[arg-type]
    with pytest.raises(BrokenFile, match=says):
        write_bundle(tmp_path / "a.nns", replace(bundle.manifest, inputs=ports), bundle.files)
