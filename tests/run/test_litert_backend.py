"""LiteRT files, of floats and int8, on their backend."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.bundles import subgraph

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.graph import TensorSpec
from nnstretch.run import Session
from nnstretch.run.backends import litert
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.tensor_io import from_port

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    """A branch and a meeting point, as modules and float files, and the meeting point as an int8
    file.
    """
    pytest.importorskip("litert_torch")
    pytest.importorskip("ai_edge_quantizer")
    from nnstretch.export.litert.convert import to_int8, to_litert

    class Meet(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Conv2d(4, 5, 1)

        def forward(self, a, b):  # type: ignore[no-untyped-def]
            return self.project(torch.cat([a, b], 1)).relu()

    torch.manual_seed(0)
    branch, meet = torch.nn.Conv2d(3, 2, 3, padding=1).eval(), Meet().eval()
    pairs = [(torch.randn(1, 2, 8, 6), 3 * torch.randn(1, 2, 8, 6)) for _ in range(16)]
    file, plain = (
        to_litert(branch, [torch.randn(1, 3, 8, 6)], "branch"),
        to_litert(meet, pairs[0], "meet"),
    )
    return SimpleNamespace(
        branch=branch,
        meet=meet,
        file=file,
        plain=plain,
        pairs=pairs,
        int8=to_int8(plain, iter(pairs), "meet"),
    )


def last(name: str, channels: int, **fields: object) -> Port:
    return Port(
        name, TensorSpec((1, 8, 6, channels), str(fields.pop("dtype", "float32"))), "NHWC", **fields
    )  # type: ignore[arg-type]


def lite(
    name: str,
    processor: str,
    data: bytes,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    **fields: object,
) -> Subgraph:
    sub = subgraph(name, processor, data, inputs, outputs, **fields)
    return replace(sub, file=f"{name}.tflite", format="litert")


@pytest.fixture(scope="module")
def floats(made: SimpleNamespace) -> Bundle:
    """Two branches, which share a file, and their meeting point."""
    x, a, b, y = last("x", 3), last("a", 2), last("b", 2), last("y", 5)
    left = lite("left", "cpu", made.file, [x], [a])
    right = replace(left, name="right", processor="gpu", outputs=(b,))
    meet = lite("meet", "cpu", made.plain, [a, b], [y], role="merge")
    return Bundle(
        Manifest("lite", None, (x,), (y,), (left, right, meet), 0.0),
        {left.file: made.file, meet.file: made.plain},
    )


def ports_of(model: bytes, names: Sequence[str]) -> list[Port]:
    """Ports as the file itself has them."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model)
    tensors = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    return [
        last(
            name,
            int(one["shape"][3]),
            dtype=np.dtype(one["dtype"]).name,
            scale=one["quantization"][0],
            zero_point=one["quantization"][1],
        )
        for name, one in zip(names, tensors, strict=True)
    ]


@pytest.fixture(scope="module")
def whole(made: SimpleNamespace) -> Bundle:
    a, b, y = ports_of(made.int8, "aby")
    return Bundle(
        Manifest("int8", None, (a, b), (y,), (lite("f", "cpu", made.int8, [a, b], [y]),), 0.0),
        {"f.tflite": made.int8},
    )


def test_a_float_litert_bundle_takes_and_gives_what_pytorch_does(
    made: SimpleNamespace, floats: Bundle
) -> None:
    with Session(floats, clock="real") as session:
        assert session.backends == {"cpu": "litert", "gpu": "litert"}
        x = session.network.random_inputs(0)["x"]
        assert (x.shape, x.dtype) == ((1, 3, 8, 6), np.float32)
        half = made.branch(torch.from_numpy(x))
        expected = made.meet(half, half).detach().numpy()
        for mine in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1))):
            found = session.run(mine)
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, expected, atol=1e-4)
            assert np.array_equal(found, session.network.run_sequential(mine))
        assert np.array_equal(session.run(x, raw=True), found.transpose(0, 2, 3, 1))


def test_an_int8_file_takes_real_numbers_or_its_own(made: SimpleNamespace, whole: Bundle) -> None:
    from nnstretch.export.litert.runner import LiteRTRunner

    network, runner = LoadedNetwork(whole), LiteRTRunner(made.int8, "meet")
    y, coarsest = whole.manifest.outputs[0], max(port.scale for port in whole.manifest.inputs)
    for a, b in made.pairs[:3]:
        real = {"a": a.numpy(), "b": b.numpy()}
        found, raw = (
            network.run_sequential(real),
            network.outputs(network.all_tensors(network.inputs(real)), raw=True),
        )
        assert isinstance(found, np.ndarray)
        assert isinstance(raw, np.ndarray)
        assert (found.shape, found.dtype, raw.shape, raw.dtype) == (
            (1, 5, 8, 6),
            np.float32,
            (1, 8, 6, 5),
            np.int8,
        )
        assert np.array_equal(found, from_port(y, raw))
        assert np.abs(found - runner.run(*real.values())).max() <= 1.01 * y.scale
        assert np.abs(found - made.meet(a, b).detach().numpy()).mean() < coarsest
        assert np.array_equal(network.run_sequential(network.inputs(real)), found)
    assert {(x.shape, x.dtype.name) for x in network.random_inputs(0).values()} == {
        ((1, 2, 8, 6), "float32")
    }


def test_inputs_go_by_the_numbers_of_their_names(made: SimpleNamespace, whole: Bundle) -> None:
    from nnstretch.bundle.model_files.edges import argument_order

    assert argument_order([f"serving_default_args_{i}:0" for i in (1, 10, 0, 2)]) == [2, 0, 3, 1]
    assert argument_order(["b", "args_0"]) == [0, 1]


def test_a_litert_file_that_is_not_what_its_manifest_says_is_named(
    made: SimpleNamespace, whole: Bundle
) -> None:
    a, b, y = (*whole.manifest.inputs, *whole.manifest.outputs)
    coarse, moved = replace(b, scale=2 * b.scale), replace(y, zero_point=y.zero_point + 1)
    turned, real = (
        replace(b, spec=TensorSpec((1, 2, 8, 6), "int8"), layout="NCHW"),
        replace(y, spec=TensorSpec(y.spec.shape), scale=0.0),
    )
    for ports, what in (
        ((a, coarse, y), "it reads b as 1x8x6x2 int8, scale .*, the manifest says"),
        (
            (a, b, moved),
            (
                "it writes y as 1x8x6x5 int8, scale .*, zero point -128, the manifest says .*, zero"
                " point -127"
            ),
        ),
        ((a, turned, y), "it reads b as 1x8x6x2 int8.*, the manifest says 1x2x8x6 int8 NCHW"),
        ((a, b, real), "it writes y as .* int8.*, the manifest says 1x8x6x5 float32 NHWC"),
        ((b, a, y), "it reads b as 1x8x6x2 int8, scale .*, the manifest says"),
    ):
        sub = lite("f", "cpu", made.int8, ports[:2], ports[2:])
        with pytest.raises(BrokenFile, match=rf"^broken bundle bundle, member f\.tflite, {what}"):
            LoadedNetwork(
                Bundle(Manifest("m", None, ports[:2], ports[2:], (sub,), 0.0), whole.files)
            )
    with pytest.raises(BrokenFile, match=r"it reads 2 tensors, the manifest says 1$"):
        LoadedNetwork(
            Bundle(
                Manifest("m", None, (a,), (y,), (lite("f", "cpu", made.int8, [a], [y]),), 0.0),
                whole.files,
            )
        )
    for data in (b"garbage", b"", made.int8[:-400]):
        with pytest.raises(
            BrokenFile,
            match=r"^broken bundle bundle, member f\.tflite, [^\n]*(no flatbuffer|cut off|leads to)",
        ):
            LoadedNetwork(
                Bundle(
                    Manifest("m", None, (a, b), (y,), (lite("f", "cpu", data, [a, b], [y]),), 0.0),
                    {"f.tflite": data},
                )
            )


@pytest.mark.parametrize("backend", ["onnxruntime", "gpu=openvino"])
def test_litert_files_on_a_backend_for_onnx_are_refused(floats: Bundle, backend: str) -> None:
    with pytest.raises(
        BadInput,
        match=(
            r"^backend \w+, sub-graph (left|right) of bundle, it reads onnx and the file is litert$"
        ),
    ):
        Session(floats, clock="real", backend=backend)


def test_many_threads_may_share_a_network(floats: Bundle) -> None:
    """An interpreter belongs to one thread at a time: the others wait for it."""
    network = LoadedNetwork(floats)
    given = [network.random_inputs(seed) for seed in range(8)]
    expected = [network.run_sequential(x) for x in given]
    found: dict[int, object] = {}

    def serve(number: int) -> None:
        for _ in range(10):
            found[number] = network.run_sequential(given[number])

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected[number]) for number in range(8))  # type: ignore[arg-type]


def test_errors_are_heard_again_whoever_was_silent_last() -> None:
    before, leave, inside = os.fstat(2), threading.Event(), threading.Event()

    def second() -> None:
        with litert._silence_greeting():
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=second)
    with litert._silence_greeting():
        thread.start()
        inside.wait(0.1)  # it may not come in yet
    leave.set()
    thread.join(30)
    assert (os.fstat(2).st_dev, os.fstat(2).st_ino) == (before.st_dev, before.st_ino)


def test_litert_runs_without_torch_and_without_a_word(tmp_path: Path, floats: Bundle) -> None:
    write_bundle(tmp_path / "a.nns", floats.manifest, floats.files)
    code = (
        "import sys\nfor name in ('torch', 'onnx', 'onnxruntime', 'litert_torch', 'openvino'):"
        " sys.modules[name] = None\nfrom nnstretch import Session\nsession ="
        f" Session({str(tmp_path / 'a.nns')!r},"
        " clock='real')\nprint(session.run(session.network.random_inputs(0)).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(1, 5, 8, 6)\n", "")
