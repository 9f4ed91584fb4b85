"""Every shipped backend passes the suite that authors of backends inherit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support.bundles import feature_map, model_bytes, subgraph
from support.cuda_stand_in import stand_in

from nnstretch.bundle.archive import digest
from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.errors import BrokenFile
from nnstretch.graph import TensorSpec
from nnstretch.run.backends.registry import load_backend
from nnstretch.run.tensor_io import from_port, to_port
from nnstretch.testing.backend_suite import (
    Arrays,
    BackendCase,
    BackendSuite,
    BindableBackendSuite,
    DeviceBackendSuite,
)

torch = pytest.importorskip("torch")

INPUTS = (Port("a", feature_map(3)), Port("b", feature_map(5)))
OUTPUTS = (Port("y", feature_map(8)), Port("z", feature_map(3)))


def reference(values: Arrays) -> list[np.ndarray]:
    """A ReLU of both inputs side by side, and the negated first."""
    joined = np.concatenate([values["a"], values["b"]], axis=1)
    return [np.maximum(joined, 0), -values["a"]]


def onnx_file() -> bytes:
    from onnx import helper

    nodes = [
        helper.make_node("Concat", ["a", "b"], ["joined"], axis=1),
        helper.make_node("Relu", ["joined"], ["y"]),
        helper.make_node("Neg", ["a"], ["z"]),
    ]
    return model_bytes(nodes, INPUTS, OUTPUTS, {})


def onnx_case(backend: str) -> BackendCase:
    data = onnx_file()
    sub = subgraph("s", "cpu", data, INPUTS, OUTPUTS)
    return BackendCase(lambda: load_backend(backend, sub, data, "b"), INPUTS, OUTPUTS, reference)


class Kept:
    """A backend that keeps what it returns, or lets nobody write on it."""

    def __init__(self, is_read_only: bool) -> None:
        self.results: list[np.ndarray] = []
        self.is_read_only = is_read_only

    def run(self, inputs: Arrays, /) -> Sequence[np.ndarray]:
        self.results = self.results or reference(inputs)
        for result in self.results:
            result.flags.writeable = not self.is_read_only
        return self.results


@pytest.mark.parametrize("is_read_only", [True, False])
def test_a_backend_whose_results_are_not_the_callers_is_caught(is_read_only: bool) -> None:
    case = BackendCase(lambda: Kept(is_read_only), INPUTS, OUTPUTS, reference)
    with pytest.raises(AssertionError):
        BackendSuite().test_a_caller_may_write_on_results(case)


class Doubled:
    """A backend of numpy that doubles whatever shape it reads."""

    def run(self, inputs: Arrays, /) -> Sequence[np.ndarray]:
        if "a" not in inputs:
            raise BrokenFile("sub-graph s, input a is missing")
        return [np.array(inputs["a"] + inputs["a"])]

    def bind(self, reads: Arrays, writes: Sequence[np.ndarray], /) -> Callable[[], object]:
        return lambda: np.copyto(writes[0], self.run(reads)[0])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (4,), (4, 6)], ids=str)
class TestOfAnyRank(BindableBackendSuite):
    @pytest.fixture
    def case(self, shape: tuple[int, ...], dtype: str) -> BackendCase:
        spec = TensorSpec(shape, dtype)
        return BackendCase(
            Doubled,
            (Port("a", spec),),
            (Port("y", spec),),
            lambda values: [values["a"] + values["a"]],
        )


class WritesAllOver(Doubled):
    """One that fills its memory beyond the part that it was given."""

    def bind(self, reads: Arrays, writes: Sequence[np.ndarray], /) -> Callable[[], object]:
        whole = writes[0] if writes[0].base is None else writes[0].base
        return lambda: whole.fill(0)


def test_a_write_beyond_the_only_axis_is_caught() -> None:
    spec = TensorSpec((4,))
    ports = (Port("a", spec),), (Port("y", spec),)
    case = BackendCase(WritesAllOver, *ports, lambda values: [values["a"] + values["a"]])
    with pytest.raises(AssertionError):
        BindableBackendSuite().test_a_bound_call_leaves_the_gaps_in_its_memory_alone(case, -1)


class TestOnnxRuntime(BindableBackendSuite):
    @pytest.fixture
    def case(self) -> BackendCase:
        return onnx_case("onnxruntime")


class TestTorch(BackendSuite):
    @pytest.fixture
    def case(self) -> BackendCase:
        return onnx_case("torch")


class TestOpenVINO(BackendSuite):
    @pytest.fixture
    def case(self) -> BackendCase:
        pytest.importorskip("openvino")
        return onnx_case("openvino:CPU")


class TestTorchCuda(DeviceBackendSuite):
    """On a stand-in of CUDA graphs, which repeats the recorded operators on the CPU."""

    @pytest.fixture
    def case(self) -> BackendCase:
        from nnstretch.run.backends.torch_cuda import TorchCuda

        data = onnx_file()
        sub = subgraph("s", "gpu", data, INPUTS, OUTPUTS)
        return BackendCase(
            lambda: TorchCuda(sub, data, "b", "cpu", stand_in()), INPUTS, OUTPUTS, reference
        )


class JoinedReLU(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, a, b):  # type: ignore[no-untyped-def]
        return torch.relu(torch.cat([a, b], 1))


def litert_case(data: bytes, tolerance: float) -> BackendCase:
    """A case with the file's own ports; the reference is computed on real numbers."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data)
    details = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    ports = []
    for name, detail in zip("aby", details, strict=True):
        spec = TensorSpec(tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]).name)
        scale, zero_point = detail["quantization"]
        ports.append(Port(name, spec, "NHWC", float(scale), int(zero_point)))
    inputs, outputs = tuple(ports[:2]), tuple(ports[2:])

    def expected(values: Arrays) -> list[np.ndarray]:
        real = {port.name: from_port(port, values[port.name]) for port in inputs}
        return [to_port(outputs[0], np.ascontiguousarray(reference(real)[0]))]

    sub = Subgraph(
        "s", "cpu", "s.tflite", digest(data), len(data), inputs, outputs, format="litert"
    )
    return BackendCase(
        lambda: load_backend("litert", sub, data, "b"), inputs, outputs, expected, tolerance
    )


@pytest.fixture(scope="module")
def litert_file() -> bytes:
    pytest.importorskip("litert_torch")
    from nnstretch.export.litert.convert import to_litert

    examples = [torch.randn(1, 3, 8, 8), torch.randn(1, 5, 8, 8)]
    return to_litert(JoinedReLU().eval(), examples, "s")


@pytest.fixture(scope="module")
def int8_file(litert_file: bytes) -> bytes:
    pytest.importorskip("ai_edge_quantizer")
    from nnstretch.export.litert.convert import to_int8

    examples = [(torch.randn(1, 3, 8, 8), torch.randn(1, 5, 8, 8)) for _ in range(8)]
    return to_int8(litert_file, iter(examples), "s")


class TestLiteRT(BindableBackendSuite):
    @pytest.fixture
    def case(self, litert_file: bytes) -> BackendCase:
        return litert_case(litert_file, 1e-5)


class TestLiteRTInt8(BindableBackendSuite):
    @pytest.fixture
    def case(self, int8_file: bytes) -> BackendCase:
        return litert_case(int8_file, 2)
