"""Shapes of networks are inferred as onnx does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.bundles import feature_map, model_bytes

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.model_files.check_onnx import IR_VERSIONS, OPSETS, check_shapes
from nnstretch.bundle.model_files.onnx_file import read_onnx
from nnstretch.graph import TensorSpec

X, Y = Port("x", feature_map(4)), Port("y", feature_map(4))


sizes = st.integers(1, 9)


@st.composite
def windows(draw: st.DrawFn) -> onnx.NodeProto:
    kind = draw(st.sampled_from(["Conv", "MaxPool", "AveragePool", "ConvTranspose"]))
    fields: dict[str, object] = {
        "strides": [draw(st.integers(1, 3)), draw(st.integers(1, 3))],
        "kernel_shape": [draw(st.integers(1, 3)), draw(st.integers(1, 3))],
    }
    if kind != "ConvTranspose" and draw(st.booleans()):
        fields["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        fields["pads"] = [draw(st.integers(0, 1)) for _ in range(4)]
    if kind != "AveragePool":
        fields["dilations"] = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    reads = ["x", "w"] if kind.startswith("Conv") else ["x"]
    return helper.make_node(kind, reads, ["y"], **fields)


@st.composite
def others(draw: st.DrawFn) -> onnx.NodeProto:
    axes = st.integers(-4, 3)
    order = draw(st.permutations(range(4)))
    return draw(
        st.sampled_from(
            [
                helper.make_node("Transpose", ["x"], ["y"], perm=order),
                helper.make_node("Flatten", ["x"], ["y"], axis=draw(axes)),
                helper.make_node("Concat", ["x", "x"], ["y"], axis=draw(axes)),
                helper.make_node("ReduceMean", ["x"], ["y"], axes=[draw(axes)]),
                helper.make_node("ReduceMax", ["x"], ["y"], keepdims=0, axes=[draw(axes)]),
                helper.make_node("GlobalAveragePool", ["x"], ["y"]),
                helper.make_node("MatMul", ["x", "m"], ["y"]),
                helper.make_node("Add", ["x", "row"], ["y"]),
                helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["y"]),
                helper.make_node("Gather", ["x", "zeros"], ["y"], axis=draw(axes)),
                helper.make_node("Unsqueeze", ["x", "axes"], ["y"]),
                helper.make_node("Tile", ["x", "four"], ["y"]),
                helper.make_node("Pad", ["x", "eight"], ["y"]),
                helper.make_node("Reshape", ["x", "as"], ["y"]),
            ]
        )
    )


@settings(max_examples=250, deadline=None)
@given(
    node=st.one_of(windows(), others()),
    shape=st.tuples(st.just(2), st.just(4), st.integers(5, 9), st.integers(5, 9)),
    integers=st.lists(st.integers(-6, 6), min_size=2, max_size=2),
    few=st.lists(st.integers(1, 3), min_size=8, max_size=8),
)
def test_shapes_are_those_of_onnx(
    node: onnx.NodeProto, shape: tuple[int, ...], integers: list[int], few: list[int]
) -> None:
    read = replace(X, spec=TensorSpec(shape))
    kernel = [list(a.ints) for a in node.attribute if a.name == "kernel_shape"] or [[1, 1]]
    weights = {
        "w": np.zeros((4, 4, *kernel[0]), np.float32),
        "m": np.zeros((shape[-1], 5), np.float32),
        "row": np.zeros((4, 1, shape[-1]), np.float32),
        "starts": np.array(integers),
        "ends": np.array(integers[::-1]),
        "axes": np.array([2, 3]),
        "zeros": np.zeros((2, 3), np.int64),
        "four": np.array(few[:4]),
        "eight": np.array(few),
        "as": np.array([0, -1]),
    }
    model = onnx.load_model_from_string(model_bytes([node], [read], [Y], weights))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    ends = inferred.graph.output[0].type.tensor_type.shape
    assert check_shapes(read_onnx(inferred.SerializeToString(), OPSETS, IR_VERSIONS)) is None
    ends.dim[0].dim_value += 1
    with pytest.raises(ValueError, match=f"^{node.op_type} 'y' writes 'y' of shape"):
        check_shapes(read_onnx(inferred.SerializeToString(), OPSETS, IR_VERSIONS))
