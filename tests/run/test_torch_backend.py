"""Bundles on PyTorch: ONNX Runtime's numbers from the same files, no pickle.

Streams and events of a CUDA graph, on a stand-in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import branched_bundle, concat, feature_map, image, model_bytes, subgraph
from support.cuda_stand_in import stand_in
from support.within import said_by_fork

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BadInput, BrokenFile, UnknownName, UnsupportedOp
from nnstretch.graph import TensorSpec
from nnstretch.run import Session
from nnstretch.run.loaded_network import LoadedNetwork

torch = pytest.importorskip("torch")

from nnstretch.protocols import DeviceBackend  # noqa: E402
from nnstretch.run.backends.cuda_recording import (  # noqa: E402
    START,
    RecordedStep,
    order_on_streams,
    recorded_steps,
)
from nnstretch.run.backends.torch_cuda import CudaGraphSession, TorchCuda  # noqa: E402


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2, predicted=False)


def assert_numbers_of_onnx_runtime(bundle: Bundle, choice: str, images: int) -> None:
    with (
        Session(bundle, clock="real", backend=choice) as session,
        Session(bundle, clock="real") as plain,
    ):
        for seed in range(images):
            np.testing.assert_allclose(
                session.run(image(bundle, seed)), plain.run(image(bundle, seed)), atol=1e-4
            )


@pytest.mark.parametrize("choice", ["torch", "torch:cpu", "onnxruntime,dsp=torch"])
def test_torch_gives_the_numbers_of_onnx_runtime(bundle: Bundle, choice: str) -> None:
    assert_numbers_of_onnx_runtime(bundle, choice, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_computes_though_its_parent_has_used_threads(
    bundle: Bundle, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.nn.functional.conv2d(torch.ones(4, 8, 64, 64), torch.ones(8, 8, 3, 3))
    torch.set_num_threads(before)

    def run() -> float:
        with Session(bundle, clock="real", backend="torch", threads=threads) as session:
            return float(session.run(image(bundle, 0)).sum())

    expected = run()
    said = said_by_fork(run)
    assert said.startswith("returned "), said
    assert float(said.removeprefix("returned ")) == pytest.approx(expected, abs=1e-4)
    assert torch.get_num_threads() == before


def test_the_next_request_does_not_overwrite_a_result_and_threads_stay_as_they_were(
    bundle: Bundle,
) -> None:
    before = torch.get_num_threads()
    network = LoadedNetwork(bundle, "torch", threads=before + 1)
    first, second = (network.inputs(image(bundle, seed)) for seed in range(2))
    network.compute("stem", first)
    kept = first["stem"].copy()
    network.compute("stem", second)
    assert np.array_equal(first["stem"], kept)
    assert torch.get_num_threads() == before


def one_file(data: bytes, inputs: list[Port], outputs: list[Port]) -> Bundle:
    return Bundle(
        Manifest(
            "m",
            None,
            tuple(inputs),
            tuple(outputs),
            (subgraph("f", "cpu", data, inputs, outputs),),
            0.0,
        ),
        {"f.onnx": data},
    )


def test_inputs_and_outputs_go_by_name_whatever_their_order_in_the_file() -> None:
    a, b, y, z = (Port(name, feature_map()) for name in ("a", "b", "y", "z"))
    nodes = [
        onnx.helper.make_node("Sub", ["a", "b"], ["y"]),
        onnx.helper.make_node("Neg", ["a"], ["z"]),
    ]
    network = LoadedNetwork(
        one_file(model_bytes(nodes, [b, a], [z, y], {}), [a, b], [y, z]), "torch"
    )
    values = network.random_inputs(0)
    found = network.run_sequential(values)
    assert isinstance(found, dict)
    assert np.array_equal(found["y"], values["a"] - values["b"])
    assert np.array_equal(found["z"], -values["a"])


def test_no_output_shares_memory_with_another_or_with_an_input() -> None:
    x, y = (Port(name, TensorSpec((1, 8))) for name in ("x", "y"))
    flat, same = (Port(name, TensorSpec((8,))) for name in ("flat", "same"))
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["y"]),
        onnx.helper.make_node("Reshape", ["y", "one_axis"], ["flat"]),
        onnx.helper.make_node("Reshape", ["x", "one_axis"], ["same"]),
    ]
    weights, ports = {"one_axis": np.array([-1])}, [y, flat, same]
    network = LoadedNetwork(one_file(model_bytes(nodes, [x], ports, weights), [x], ports), "torch")
    values = network.random_inputs(0)
    network.compute("f", values)
    pairs = combinations([values[port.name] for port in (x, *ports)], 2)
    assert not any(np.may_share_memory(first, second) for first, second in pairs)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_other_floating_numbers_are_refused_as_a_limit_of_the_backend(kind: str) -> None:
    x, y = (Port(name, TensorSpec((1, 8), kind)) for name in ("x", "y"))
    model = onnx.load_model_from_string(
        model_bytes([onnx.helper.make_node("Relu", ["x"], ["y"])], [x], [y], {})
    )
    for value in (*model.graph.input, *model.graph.output):
        kinds = {"float16": onnx.TensorProto.FLOAT16, "float64": onnx.TensorProto.DOUBLE}
        value.type.tensor_type.elem_type = kinds[kind]
    with pytest.raises(UnsupportedOp) as refusal:
        LoadedNetwork(one_file(model.SerializeToString(), [x], [y]), "torch")
    assert str(refusal.value) == (
        "cannot run bundle by backend torch, member f.onnx, it computes in float32, x is " + kind
    )


def test_a_file_that_is_not_what_its_manifest_says_or_no_file_is_named() -> None:
    x, y, wide = Port("x", feature_map()), Port("y", feature_map()), Port("y", feature_map(16))
    good = model_bytes([onnx.helper.make_node("Relu", ["x"], ["y"])], [x], [y], {})
    for data, output, what in (
        (b"garbage", y, "the ONNX model, no protobuf"),
        (b"", y, "IR version 0, known are 3 to 14"),
        (good[:-30], y, "it is cut off"),
        (
            good,
            wide,
            "it writes y as 1x8x8x8 float32, the manifest says 1x16x8x8 float32",
        ),
        (
            good,
            Port("z", feature_map()),
            r"it writes \['y'\], the manifest says \['z'\]",
        ),
    ):
        with pytest.raises(
            BrokenFile, match=rf"^broken bundle bundle, member f\.onnx, .*{what}"
        ) as caught:
            LoadedNetwork(one_file(data, [x], [output]), "torch")
        assert "\n" not in str(caught.value)


def test_numbers_beside_a_bundle_are_not_read() -> None:
    x, y = Port("x", feature_map()), Port("y", feature_map())
    model = onnx.load_model_from_string(
        model_bytes(
            [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
            [x],
            [y],
            {"w": np.ones((1, 8, 1, 1), np.float32)},
        )
    )
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    with pytest.raises(BrokenFile, match="constant 'w', its data lie outside the file"):
        LoadedNetwork(one_file(model.SerializeToString(), [x], [y]), "torch")


# CUDA


def test_without_cuda_it_is_one_line(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        BadInput,
        match=r"^no CUDA device, backend torch:cuda:1, PyTorch \S+ finds none on this machine$",
    ):
        Session(bundle, clock="real", backend="torch:cuda:1")
    with pytest.raises(BadInput, match=r"^no CUDA device, backend torch:cuda, "):
        CudaGraphSession(bundle)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UnknownName, match=r"^unknown device 'cuda:1', backend torch, PyTorch finds 1 CUDA device$"
    ):
        Session(bundle, clock="real", backend="torch:cuda:1")


@pytest.mark.slow
def test_the_benchmark_says_so_too_and_writes_nothing(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "host"
    command = [sys.executable, str(script), "cuda", "--out", str(tmp_path / "a.md")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert done.stderr.startswith("nnstretch: no CUDA device, backend torch:cuda, ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "mps"])
def test_devices_of_torch_are_named(bundle: Bundle, device: str) -> None:
    with pytest.raises(
        UnknownName,
        match=rf"^unknown device '{device}', backend torch, it is one of cpu, cuda, cuda:N$",
    ):
        Session(bundle, clock="real", backend=f"torch:{device}")


def test_branches_wait_only_where_they_meet() -> None:
    subs = branched_bundle(segments=2).manifest.subgraphs
    assert recorded_steps(order_on_streams(subs)) == (
        RecordedStep("stem", "cpu"),
        RecordedStep("s1_cpu", "cpu"),
        RecordedStep("s1_dsp", "dsp", ("stem",)),
        RecordedStep("s1_merge", "cpu", ("s1_dsp",)),
        RecordedStep("s2_cpu", "cpu"),
        RecordedStep("s2_dsp", "dsp", ("s1_merge",)),
        RecordedStep("s2_merge", "cpu", ("s2_dsp",)),
    )


@pytest.mark.slow
@given(st.data())
def test_nothing_starts_before_what_it_reads_is_written(data: st.DataObject) -> None:
    spec, names, subs = feature_map(), ["in"], []
    for number in range(data.draw(st.integers(1, 10))):
        reads = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        processor = data.draw(st.sampled_from("abc"))
        names.append(f"t{number}")
        subs.append(
            subgraph(
                f"s{number}",
                processor,
                b"",
                [Port(name, spec) for name in reads],
                [Port(names[-1], spec)],
            )
        )
    known: dict[str, set[str]] = {}
    events: dict[str, set[str]] = {START: set()}
    steps, by_name = recorded_steps(order_on_streams(subs)), {sub.name: sub for sub in subs}
    assert sorted(step.subgraph for step in steps) == sorted(by_name)
    for step in steps:
        sub = by_name[step.subgraph]
        assert step.waits or not known or step.stream in known, (
            "every other stream forks from the recording"
        )
        before = known.setdefault(step.stream, set()).union(
            *(events[other] for other in step.waits)
        )
        assert {f"s{port.name[1:]}" for port in sub.inputs if port.name != "in"} <= before
        events[sub.name] = known[step.stream] = before | {sub.name}


def test_a_request_is_recorded_once_and_replayed_with_other_numbers(bundle: Bundle) -> None:
    fake = stand_in()
    request = CudaGraphSession(bundle, "cpu", fake)
    fork = ["a records", "a records", "a records", "b waits", "b records", "a waits", "a records"]
    assert fake.said == [
        *fork,
        *fork[2:],
        "a waits",
    ], "start, stem; then a branch each, and the merge; at the end the side stream joins"
    plain = LoadedNetwork(bundle)
    answers = []
    for seed in range(3):
        x = image(bundle, seed)
        answers.append(next(iter(request.run({"image": x}).values())))
        np.testing.assert_allclose(answers[-1], plain.run_sequential(x), atol=1e-4)
    assert not np.array_equal(answers[0], answers[1]), (
        "an answer is the caller's own, the next request leaves it alone"
    )
    np.testing.assert_allclose(answers[0], plain.run_sequential(image(bundle, 0)), atol=1e-4)


def test_a_stream_of_requests_is_copied_on_streams_of_its_own(bundle: Bundle) -> None:
    """Three items in it at once: nothing of one is in the place of another."""
    fake, sub = stand_in(), bundle.manifest.subgraphs[0]
    device = TorchCuda(sub, bundle.files[sub.file], bundle.name, "cpu", fake)
    assert isinstance(device, DeviceBackend)
    plain, images = LoadedNetwork(bundle), [image(bundle, seed) for seed in range(3)]
    wanted = [plain.results(sub.name, {"image": x}) for x in images]
    fake.said.clear()
    held = [device.upload({"image": x}) for x in images]
    for x in images:
        x[:] = 0
    made = [device.execute(one) for one in held]
    found = [device.download(one) for one in made]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=1e-4)
    assert fake.said == ["b is waited for"] * 3 + ["c is waited for"] * 3 + ["d is waited for"] * 3
    with pytest.raises(BrokenFile, match=r"CUDA cannot run it"):
        device.execute({})


def test_a_request_checks_what_it_is_given(bundle: Bundle) -> None:
    request = CudaGraphSession(bundle, "cpu", stand_in())
    with pytest.raises(BadInput, match=r"^input image, expected 1x3x8x8 float32"):
        request.run({"image": np.zeros((1, 3, 9, 9), np.float32)})


def test_a_merge_alone_is_a_request_too() -> None:
    a, b, y = Port("a", feature_map(2)), Port("b", feature_map(3)), Port("y", feature_map(5))
    given_ = {"a": np.ones((1, 2, 8, 8), np.float32), "b": np.zeros((1, 3, 8, 8), np.float32)}
    request = CudaGraphSession(one_file(concat([a, b], y), [a, b], [y]), "cpu", stand_in())
    assert np.array_equal(request.run(given_)["y"], np.concatenate(list(given_.values()), 1))
