"""Bundles that somebody forged with a valid seal.

A named refusal in one line, or a network that runs; never a crash, a hang or a stray file.
"""

from __future__ import annotations

import json
import random
import stat
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bundles import branched_bundle, feature_map, subgraph

from nnstretch.bundle import bundle as bundle_file
from nnstretch.bundle.archive import MANIFEST, SEAL_BYTES, digest, write_sealed
from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.bundle.validate import MAX_PROCESSORS, check_manifest
from nnstretch.cli import run_verb
from nnstretch.errors import BrokenFile, NnstretchError
from nnstretch.graph import TensorSpec
from nnstretch.pipeline import PipelineSpec, PipelineStage, TensorDecl
from nnstretch.run import Session
from nnstretch.run.loaded_network import LoadedNetwork

ANY_FOLDER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
MANY = settings(max_examples=150, deadline=None, suppress_health_check=ANY_FOLDER, derandomize=True)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle()


def resealed(path: Path, archive: bytes) -> Path:
    path.write_bytes(
        archive[:-SEAL_BYTES] + b"nnstretch sha256 " + digest(archive[:-SEAL_BYTES]).encode()
    )
    return path


def forged(path: Path, bundle: Bundle, manifest: object) -> Path:
    write_sealed(path, {MANIFEST: json.dumps(manifest).encode(), **bundle.files})
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BrokenFile) as caught:
        read_bundle(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"broken bundle {path}, ")


# The manifest


def leaves(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in a tree of JSON, containers too."""
    if here:
        yield here
    if isinstance(tree, (dict, list)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(tree[key], (*here, key))


def put(tree: Any, place: tuple[Any, ...], value: object) -> None:
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = value


HOSTILE = st.one_of(
    st.sampled_from(
        [
            0,
            -1,
            1,
            2**31,
            2**63,
            10**30,
            1e308,
            -1e308,
            0.5,
            True,
            None,
            "",
            "a\nb",
            "\x00",
            "../x",
            "/etc/passwd",
            [],
            {},
        ]
    ),
    st.sampled_from(
        [
            [10**9] * 4,
            [1] * 2000,
            [-1, 3],
            "x" * 100_000,
            {"cpu": -5.0},
            {"": 1e300},
            [[[[]]]],
            "\ud800",
            "stem",
            "cpu",
        ]
    ),
    st.text(max_size=5),
)


@pytest.mark.slow
@MANY
@given(st.data())
def test_any_change_of_a_manifest_is_refused_or_runs(
    tmp_path: Path, bundle: Bundle, data: st.DataObject
) -> None:
    manifest = json.loads(json.dumps(asdict(bundle.manifest)))
    for _ in range(data.draw(st.integers(1, 2))):
        put(
            manifest,
            data.draw(st.sampled_from(list(leaves(manifest)))),
            deepcopy(data.draw(HOSTILE)),
        )
    path = forged(tmp_path / "forged.nns", bundle, manifest)
    with suppress(NnstretchError), Session(path) as session:
        session.run(session.network.random_inputs(0))
    assert [one.name for one in tmp_path.iterdir()] == ["forged.nns"], (
        "nothing is unpacked, wherever names point"
    )


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "-1.0", "-1e-9", "1e300"]
)
def test_times_that_are_none_are_refused(tmp_path: Path, bundle: Bundle, text: str) -> None:
    manifest = json.dumps(asdict(bundle.manifest)).replace('{"cpu": 300.0}', f'{{"cpu": {text}}}')
    assert text in manifest
    write_sealed(tmp_path / "a.nns", {MANIFEST: manifest.encode(), **bundle.files})
    assert refusal(tmp_path / "a.nns").startswith(f"member {MANIFEST}")


@pytest.mark.parametrize("shape", [[1, 3, 10**6, 10**6], [10**30], [2**62, 4, 1, 1], [10**400]])
def test_a_tensor_that_no_memory_holds_is_refused(
    tmp_path: Path, bundle: Bundle, shape: list[int]
) -> None:
    manifest = json.loads(json.dumps(asdict(bundle.manifest)))
    for port in (manifest["inputs"][0], manifest["subgraphs"][0]["inputs"][0]):
        port["spec"]["shape"] = shape
    why = refusal(forged(tmp_path / "a.nns", bundle, manifest))
    assert " bytes, limit 17179869184" in why or "needed are at most 64 bits" in why


def test_a_manifest_that_would_not_be_read_is_not_written(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(BrokenFile, match=r"manifest.json, [0-9]{4} bytes, limit 1000"):
        write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    assert not (tmp_path / "a.nns").exists()


def test_a_thousand_processors_are_refused(tmp_path: Path) -> None:
    x = Port("x", feature_map())
    subs = [subgraph(f"s{i}", f"p{i}", b"", [x], [Port(f"y{i}", x.spec)]) for i in range(1000)]
    subs = [replace(sub, file="one.onnx") for sub in subs]
    wide = Bundle(Manifest("m", None, (x,), subs[0].outputs, tuple(subs), 0.0), {"one.onnx": b""})
    assert f"1000 processors, limit {MAX_PROCESSORS}" in refusal(
        forged(tmp_path / "a.nns", wide, asdict(wide.manifest))
    )


@pytest.mark.parametrize("most", [MAX_PROCESSORS, MAX_PROCESSORS + 1])
def test_processors_of_predicted_times_count_over_all_plans(
    tmp_path: Path, bundle: Bundle, most: int
) -> None:
    manifest = json.loads(json.dumps(asdict(bundle.manifest)))
    named = {sub["processor"] for sub in manifest["subgraphs"]}
    for sub in manifest["subgraphs"]:
        named |= sub["predicted_us"].keys()
    keys = ("inputs", "outputs", "subgraphs", "max_abs_error")
    manifest["alternatives"] = [{"name": "b", **deepcopy({key: manifest[key] for key in keys})}]
    plans = [manifest["subgraphs"], manifest["alternatives"][0]["subgraphs"]]
    for number in range(most - len(named)):
        plans[number % 2][0]["predicted_us"][f"p{number}"] = 1.0
    path = forged(tmp_path / "a.nns", bundle, manifest)
    if most == MAX_PROCESSORS:
        assert read_bundle(path).manifest.alternatives
    else:
        assert refusal(path).endswith(f"{most} processors, limit {MAX_PROCESSORS}")


@pytest.mark.slow
def test_a_long_pipeline_is_checked_soon() -> None:
    count, stages = 512, 256
    ports = [Port(f"t{i}", TensorSpec((1,))) for i in range(count + 1)]
    subs = tuple(
        subgraph(f"s{i}", "cpu", b"", ports[i : i + 1], ports[i + 1 : i + 2]) for i in range(count)
    )
    steps = tuple(PipelineStage(f"g{k}", (f"s{2 * k}", f"s{2 * k + 1}")) for k in range(stages))
    pipeline = PipelineSpec(steps, (TensorDecl("t0"),), (f"t{count}",))
    manifest = Manifest("m", None, (ports[0],), (ports[-1],), subs, 0.0, pipeline=pipeline)
    begin_s = time.thread_time()
    check_manifest(manifest)
    assert time.thread_time() - begin_s < 1.0


@pytest.mark.slow
@MANY
@given(st.data())
def test_a_task_graph_is_read_only_where_it_has_an_order(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Any wiring: itself, backwards, in circles, of names that nothing writes."""
    count = data.draw(st.integers(1, 6))
    names = ["in", "ghost", *(f"t{i}" for i in range(count))]
    ports = {name: Port(name, feature_map()) for name in names}
    reads = [
        data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) for _ in range(count)
    ]
    subs = tuple(
        replace(
            subgraph(f"s{i}", "cpu", b"", [ports[name] for name in reads[i]], [ports[f"t{i}"]]),
            file="f.onnx",
        )
        for i in range(count)
    )
    bound_session = Bundle(
        Manifest("m", None, (ports["in"],), (ports["t0"],), subs, 0.0), {"f.onnx": b""}
    )
    path = forged(tmp_path / "a.nns", bound_session, asdict(bound_session.manifest))
    ordered = all(set(reads[i]) <= {"in", *(f"t{j}" for j in range(i))} for i in range(count))
    if ordered:
        assert read_bundle(path).manifest == bound_session.manifest
    else:
        assert " reads " in refusal(path)


# The archive


def test_a_link_is_refused(tmp_path: Path, bundle: Bundle) -> None:
    for mode in (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR):
        path = tmp_path / "a.nns"
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("stem.onnx")
            info.external_attr = (mode | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
            archive.comment = bytes(SEAL_BYTES)
        assert (
            refusal(resealed(path, path.read_bytes()))
            == "member stem.onnx, it is a link or a device, bundles hold plain files"
        )


@pytest.mark.parametrize("size", [1 << 20, 0x7FFFFFFF, 0xFFFFFFF0])
def test_a_member_larger_than_its_file_is_refused(
    tmp_path: Path, bundle: Bundle, size: int
) -> None:
    path = tmp_path / "a.nns"
    write_bundle(path, bundle.manifest, bundle.files)
    archive = bytearray(path.read_bytes())
    start = archive.index(b"PK\x01\x02")
    archive[start + 20 : start + 28] = struct.pack("<II", size, size)
    assert "overlap" in refusal(resealed(path, bytes(archive)))


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """The bomb that needs no compression: many names for one stretch of the file."""
    path = tmp_path / "a.nns"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.onnx", bytes(100_000))
        for number in range(50):
            info = zipfile.ZipInfo(f"b{number}.onnx")
            archive.writestr(info, b"")
            info.header_offset, info.file_size, info.compress_size = 0, 100_000, 100_000
        archive.comment = bytes(SEAL_BYTES)
    assert "overlap" in refusal(resealed(path, path.read_bytes()))


def test_the_command_says_one_line(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forged(tmp_path / "a.nns", bundle, {"format": 1, "model": "a\nb"})
    assert run_verb("run", [str(path), "--json"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("nnstretch: broken bundle ")


# Payloads: the checksum is right, what is in the file is not


def payload(bundle: Bundle, seed: int) -> Bundle:
    """One file of the bundle with some bytes changed or its end cut off, and the manifest
    to match.
    """
    rng = random.Random(seed)
    sub = rng.choice(bundle.manifest.subgraphs)
    data = bytearray(bundle.files[sub.file])
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    changed = bytes(data[: rng.randrange(len(data))] if rng.random() < 0.15 else data)
    subs = (
        replace(s, sha256=digest(changed), size_bytes=len(changed)) if s.file == sub.file else s
        for s in bundle.manifest.subgraphs
    )
    return Bundle(
        replace(bundle.manifest, subgraphs=tuple(subs)), {**bundle.files, sub.file: changed}
    )


def check_payloads(
    bundle: Bundle, backend: str, capfd: pytest.CaptureFixture[str], count: int
) -> None:
    said = []
    for seed in range(count):
        try:
            network = LoadedNetwork(payload(bundle, seed), backend)
            network.run_sequential(network.random_inputs(0))
        except NnstretchError as error:
            said.append(str(error))
    assert 0 < len(said) < count
    assert all(one.startswith("broken bundle bundle, member ") and "\n" not in one for one in said)
    assert capfd.readouterr().out == "", "standard output belongs to the answer"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_corrupt_onnx_file_is_one_line(
    bundle: Bundle, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    check_payloads(bundle, backend, capfd, 80)


@pytest.mark.slow
def test_a_corrupt_tflite_file_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("litert_torch")
    pytest.importorskip("ai_edge_quantizer")
    from support.exports import written

    capfd.readouterr()
    check_payloads(written("litert").bundle, "litert", capfd, 80)
