"""`nnstretch run`: the contract's fields, and one line for every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.bundles import branched_bundle, branched_latency_us, image
from support.verb_run import ran, refused

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import run_verb
from nnstretch.run import Session

FIELDS = {
    *("dispatch_us", "critical_path_us", "latency_us", "efficiency"),
    *(
        "mode",
        "clock",
        "latency_ms",
        "critical_path_ms",
        "overlap_efficiency",
        "dispatch_overhead_us",
        "throughput_per_s",
    ),
    *(
        "sequential_throughput_per_s",
        "max_abs_error",
        "replaced",
        "lost",
        "processors",
        "dilation",
        "virtual_ms",
    ),
    *("backend", "overlap"),
}


@pytest.fixture
def net(tmp_path: Path) -> Path:
    bundle = branched_bundle(segments=2)
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    return tmp_path / "net.nns"


def test_the_virtual_clock_by_default(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(capsys, net)
    assert found.keys() >= FIELDS
    assert (found["mode"], found["clock"], found["timing"], found["repeats"]) == (
        "spatial",
        "virtual",
        "predicted",
        10,
    )
    assert found["latency_ms"] == dict.fromkeys(
        ("min", "median", "p90", "p99"), branched_latency_us(2) / 1e3
    )
    assert (found["virtual_ms"], found["critical_path_ms"], found["overlap_efficiency"]) == (
        2.5,
        2.5,
        1.0,
    )
    assert (found["dispatch_overhead_us"], found["dilation"], found["max_abs_error"]) == (
        0.0,
        1.0,
        0.0,
    )
    assert (found["throughput_per_s"], found["sequential_throughput_per_s"]) == (
        pytest.approx(400),
        pytest.approx(1e6 / 4300),
    )
    assert found["processors"] == {
        "cpu": {"busy_ms": 2.3, "utilisation": 0.92},
        "dsp": {"busy_ms": 2.0, "utilisation": 0.8},
    }
    assert (found["replaced"], found["lost"], found["sequential_is"]) == (0, 0, "predicted")
    assert (found["backend"], found["overlap"]) == (
        {"cpu": "onnxruntime", "dsp": "onnxruntime"},
        None,
    )
    assert (
        found["latency_us"],
        found["critical_path_us"],
        found["efficiency"],
        found["dispatch_us"],
    ) == (2500.0, 2500.0, 1.0, 0.0)
    assert found["critical_path_is"] == "sub-graphs as they ran"


def test_measured_runs_are_held_against_subgraphs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = branched_bundle(predicted=False)
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    found = ran(capsys, tmp_path / "a.nns", "--repeat", 2)
    assert (found["timing"], found["critical_path_is"]) == (
        "measured",
        "each sub-graph alone on its core",
    )
    assert found["efficiency"] == pytest.approx(found["critical_path_us"] / found["latency_us"])
    assert found["dispatch_us"] == found["dispatch_overhead_us"]


def test_the_real_clock_says_how_much_it_was_slowed_down(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ran(capsys, net, "--clock", "real", "--repeat", 3)
    assert (found["clock"], found["timing"], found["virtual_ms"], found["max_abs_error"]) == (
        "real",
        "emulated",
        2.5,
        0.0,
    )
    assert found["dilation"] >= 1
    assert found["latency_ms"]["min"] >= 2.5 * (1 - 1e-9)
    assert found["dispatch_overhead_us"] > 0


def test_one_after_another(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(capsys, net, "--mode", "sequential")
    assert found["latency_ms"]["median"] == 4.3
    assert found["overlap_efficiency"] == pytest.approx(2.5 / 4.3)
    assert found["throughput_per_s"] == pytest.approx(found["sequential_throughput_per_s"])


def test_a_bundle_without_predictions_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = branched_bundle(predicted=False)
    write_bundle(tmp_path / "plain.nns", bundle.manifest, bundle.files)
    found = ran(capsys, tmp_path / "plain.nns", "--repeat", 2, "--trace", tmp_path / "t.json")
    assert (found["clock"], found["timing"], found["sequential_is"]) == (
        "real",
        "measured",
        "measured",
    )
    assert (found["virtual_ms"], found["dilation"]) == (None, 1.0)
    assert found["overlap"].keys() == {"speedup", "cores", "holds_gil", "why", "possible"}
    assert found["overlap"]["speedup"] > 0
    assert run_verb("run", [str(tmp_path / "plain.nns"), "--repeat", "1"]) == 0
    assert "two branches at once" in capsys.readouterr().out
    assert "needs them" in refused(capsys, tmp_path / "plain.nns", "--clock", "virtual")
    assert refused(capsys, tmp_path / "plain.nns", "--soc", "mi9").startswith(
        f"--soc mi9 with {tmp_path}/plain.nns, command line, its sub-graphs have no predicted times"
    )


def test_a_backend_is_chosen_by_name(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    found = ran(capsys, net, "--backend", "onnxruntime,dsp=openvino:CPU", "--repeat", 1)
    assert found["backend"] == {"cpu": "onnxruntime", "dsp": "openvino:CPU"}
    assert found["max_abs_error"] == 0.0
    assert "unknown backend 'tvm', session, it is one of" in refused(
        capsys, net, "--backend", "tvm"
    )
    assert "unknown processor 'npu'" in refused(capsys, net, "--backend", "npu=openvino")
    assert "unknown device 'TPU', backend openvino, it finds CPU" in refused(
        capsys, net, "--backend", "openvino:TPU"
    )
    assert "it reads litert and the file is onnx" in refused(capsys, net, "--backend", "litert")


def test_files_in_and_out(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = branched_bundle(segments=2)
    np.save(tmp_path / "x.npy", image(bundle, 5))
    ran(
        capsys,
        net,
        "--input",
        tmp_path / "x.npy",
        "--output",
        tmp_path / "y.npy",
        "--trace",
        tmp_path / "t.json",
        "--repeat",
        1,
    )
    assert np.array_equal(np.load(tmp_path / "y.npy"), Session(bundle).run(image(bundle, 5)))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "predicted"
    }
    ran(capsys, net, "--clock", "real", "--repeat", 1, "--trace", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "predicted",
        "measured",
    }


def test_equal_seeds_give_equal_outputs(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        ran(capsys, net, "--seed", seed, "--repeat", 1, "--output", tmp_path / f"{name}.npy")
    a, b, c = (np.load(tmp_path / f"{name}.npy") for name in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert refused(capsys, net, "--input", tmp_path / "a.npy", "--seed", 3).startswith(
        f"--seed 3 with --input {tmp_path}/a.npy, command line, it draws a random input"
    )


def test_for_people_it_is_a_table(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("run", [str(net), "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "latency" in out
    assert "2.500 ms" in out


def malformed(folder: Path) -> dict[str, tuple[Path, str]]:
    contents = {
        "empty": b"",
        "text": b"hello",
        "cut": b"\x93NUMPY\x01\x00v\x00{'descr'",
        "zip": b"PK\x03\x04 broken",
        "huge": (
            b"\x93NUMPY\x01\x00F\x00"
            + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,), }".ljust(69)
            + b"\n"
        ),
    }
    for name, data in contents.items():
        (folder / f"{name}.npy").write_bytes(data)
    np.save(folder / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(folder / "archive.npz", a=np.zeros(1))
    np.save(folder / "shape.npy", np.zeros((1, 3, 4, 4), np.float32))
    broken = {name: (folder / f"{name}.npy", "broken input") for name in (*contents, "pickle")}
    kind = "but Python objects or another kind of file"
    broken |= {name: (folder / f"{name}.npy", kind) for name in ("text", "pickle")}
    return broken | {
        "archive": (folder / "archive.npz", "an archive of arrays"),
        "shape": (
            folder / "shape.npy",
            "input image, expected 1x3x8x8 float32, got 1x3x4x4 float32",
        ),
        "none": (folder / "none.npy", "no input"),
        "folder": (folder, "no input"),
    }


def test_every_malformed_array_is_one_line(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, message in malformed(tmp_path).values():
        assert message in refused(capsys, net, "--input", path)


def test_every_other_refusal_is_one_line(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.nns").write_bytes(net.read_bytes()[:-100])
    (tmp_path / "y.npy").write_bytes(b"old")
    assert "broken bundle" in refused(capsys, tmp_path / "cut.nns", "--output", tmp_path / "y.npy")
    assert "no bundle" in refused(capsys, tmp_path / "none.nns")
    assert "no folder" in refused(capsys, net, "--output", tmp_path / "nowhere" / "y.npy")
    assert (tmp_path / "y.npy").read_bytes() == b"old"


@pytest.mark.parametrize(
    "argv",
    [
        ["--repeat", "0"],
        ["--repeat", "many"],
        ["--mode", "sideways"],
        ["--requests", "0"],
    ],
)
def test_wrong_usage_is_status_2(net: Path, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_verb("run", [str(net), *argv])
    assert stopped.value.code == 2
