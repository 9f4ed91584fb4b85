"""TensorFlow Lite files that no runtime is to see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import subgraph

from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.bundle.model_files import check_tflite as check_tflite_module
from nnstretch.bundle.model_files.check_tflite import check_tflite
from nnstretch.errors import BrokenFile
from nnstretch.graph import TensorSpec
from nnstretch.run.backends.registry import load_backend

flatbuffers = pytest.importorskip("flatbuffers")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
Change = Callable[[Any], None]


def good(dtype: str = "float32") -> bytes:
    """A 3x3 convolution of a map of 8x8 and 4 channels, then a maximum over 2x2."""
    from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder

    builder = TfliteModelBuilder(dtype)
    x = builder.read((1, 8, 8, 4))
    weights = builder.weight((4, 3, 3, 4), 0)
    bias = builder.bias(4, x)
    conv = builder.op(
        *("CONV_2D", (x, weights, bias), (1, 8, 8, 4), "Conv2DOptions"),
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
    )
    y = builder.op(
        *("MAX_POOL_2D", (conv,), (1, 4, 4, 4), "Pool2DOptions", conv),
        strideH=2,
        strideW=2,
        filterHeight=2,
        filterWidth=2,
    )
    builder.outputs = [y]
    return builder.bytes()


def described(data: bytes, side: int = 4) -> Subgraph:
    ports = [Port(name, TensorSpec((1, n, n, 4)), "NHWC") for name, n in (("x", 8), ("y", side))]
    fields = {"format": "litert"}
    return subgraph("s", "cpu", data, ports[:1], ports[1:], **fields)


def changed(change: Change) -> bytes:
    model = schema.ModelT.InitFromPackedBuf(good(), 0)
    change(model)
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def tensors(model: Any) -> Any:
    return model.subgraphs[0].tensors


def operators(model: Any) -> Any:
    return model.subgraphs[0].operators


def no_stride(model: Any) -> None:
    operators(model)[0].builtinOptions.strideW = 0


def no_pool(model: Any) -> None:
    operators(model)[1].builtinOptions.filterHeight = -1


def other_options(model: Any) -> None:
    operators(model)[0].builtinOptions = schema.AddOptionsT()
    operators(model)[0].builtinOptionsType = schema.BuiltinOptions.AddOptions


def tensor_index(model: Any) -> None:
    operators(model)[0].inputs = [0, 99, 2]


def output_index(model: Any) -> None:
    model.subgraphs[0].outputs = [-1]


def operator_code(model: Any) -> None:
    operators(model)[1].opcodeIndex = 7


def control_flow(model: Any) -> None:
    model.operatorCodes[1].builtinCode = schema.BuiltinOperator.WHILE


def custom_code(model: Any) -> None:
    model.operatorCodes[1].customCode = b"system"


def unknown_code(model: Any) -> None:
    model.operatorCodes[1].builtinCode = 70_000


def buffer_index(model: Any) -> None:
    tensors(model)[1].buffer = 1 << 20


def buffer_outside(model: Any) -> None:
    buffer = model.buffers[tensors(model)[1].buffer]
    buffer.data, buffer.offset, buffer.size = None, 1 << 40, 576


def short_weights(model: Any) -> None:
    tensors(model)[1].shape = [4, 3, 3, 400]


def huge_tensor(model: Any) -> None:
    tensors(model)[3].shape = [1 << 20, 1 << 20, 8, 4]


def negative_tensor(model: Any) -> None:
    tensors(model)[3].shape = [1, -8, 8, 4]


def open_tensor(model: Any) -> None:
    tensors(model)[0].shapeSignature = [-1, 8, 8, 4]


def element_type(model: Any) -> None:
    tensors(model)[3].type = schema.TensorType.STRING


def variable(model: Any) -> None:
    tensors(model)[3].isVariable = True


def two_graphs(model: Any) -> None:
    model.subgraphs = [model.subgraphs[0]] * 2


def cycle(model: Any) -> None:
    operators(model)[0].inputs = [4, 1, 2]


def written_twice(model: Any) -> None:
    operators(model)[1].outputs = [3]


def scales(model: Any) -> None:
    how = schema.QuantizationParametersT()
    how.scale, how.zeroPoint, how.quantizedDimension = [1.0] * 3, [0] * 3, 9
    tensors(model)[1].quantization = how


def other_shape(model: Any) -> None:
    tensors(model)[4].shape = [1, 8, 8, 4]


BROKEN: dict[Change, str] = {
    no_stride: "operator 0, strides, kernels and dilations [0, 1, 1, 1], 1 to 65536",
    no_pool: "operator 1, strides, kernels and dilations [2, 2, 2, -1], 1 to 65536",
    other_options: "operator 0, options of type 11, needed is 1",
    tensor_index: "an operator refers to tensor 99, there are 5",
    output_index: "a graph refers to tensor -1, there are 5",
    operator_code: "operator 1 of code 7, the file has 2",
    control_flow: "operator code 119, custom code, control flow, state or an unknown one",
    custom_code: "operator code 17, custom code",
    unknown_code: "operator code 70000, custom code",
    buffer_index: "tensor 1 in buffer 1048576 of 3",
    buffer_outside: "buffer 1 at byte 1099511627776",
    short_weights: "tensor 1 of 57600 bytes in a buffer of 576",
    huge_tensor: "tensor 3 of shape (1048576, 1048576, 8, 4), limit",
    negative_tensor: "tensor 3 of shape (1, -8, 8, 4), limit",
    open_tensor: "tensor 0 of shape (1, 8, 8, 4) with signature (-1, 8, 8, 4), open sizes",
    element_type: "tensor 3 of element type 5, unknown",
    variable: "tensor 3, it is a variable, a sub-graph keeps no state",
    two_graphs: "2 graphs, a sub-graph is one, without control flow",
    cycle: "operator 0 reads tensor 4 before it is written, a cycle",
    written_twice: "operator 1 writes tensor 3, it is written twice",
    scales: "tensor 1, 3 scales on axis 9 of (4, 3, 3, 4)",
    other_shape: "it writes y as 1x8x8x4 float32, the manifest says 1x4x4x4 float32 NHWC",
}


def test_the_unchanged_file_is_taken() -> None:
    data = good()
    assert load_backend("litert", described(data), data, "b")


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_broken_file_is_refused_before_the_runtime_sees_it(change: Change) -> None:
    data = changed(change)
    with pytest.raises(BrokenFile) as caught:
        load_backend("litert", described(data), data, "b")
    assert str(caught.value).startswith("broken bundle b, member s.onnx, ")
    assert BROKEN[change] in str(caught.value)


def test_lists_that_operators_share_are_not_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_tflite_module, "MAX_READS", 2)
    data = good()
    with pytest.raises(BrokenFile, match="operator 0, operators up to it read 3 tensors, limit 2"):
        load_backend("litert", described(data), data, "b")


def test_tensors_that_signatures_share_are_not_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signed(model: Any) -> None:
        signature, entry = schema.SignatureDefT(), schema.TensorMapT()
        entry.name, entry.tensorIndex = "x", 0
        signature.inputs, signature.outputs, signature.signatureKey = [entry] * 3, [entry] * 2, "f"
        model.signatureDefs = [signature] * 2

    data = changed(signed)
    check_tflite(data, described(data), "f")
    monkeypatch.setattr(check_tflite_module, "MAX_READS", 9)
    with pytest.raises(BrokenFile, match="signatures of 10 tensors, limit 9"):
        load_backend("litert", described(data), data, "b")


def test_what_the_session_says_is_compared_again() -> None:
    """LiteRT computes shapes anew: a promise that file and manifest share may still be wrong."""
    data = changed(other_shape)
    with pytest.raises(BrokenFile, match="it writes y as 1x4x4x4 float32, the manifest says 1x8x8"):
        load_backend("litert", described(data, side=8), data, "b")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_a_byte_is_refused_or_read(data: st.DataObject) -> None:
    file = bytearray(good("int8"))
    sub = described(bytes(file))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(file) - 1))
        file[at] = data.draw(st.integers(0, 255))
    for size in (len(file), data.draw(st.integers(0, len(file)))):
        with suppress(ValueError, BrokenFile):
            check_tflite(bytes(file[:size]), sub, "f")
