"""Inputs and outputs of ONNX files: sizes left open, names, types, and choices among several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from nnstretch.capture import build, default_input, load_model, trace
from nnstretch.capture.example_inputs import example_inputs
from nnstretch.capture.model_spec import spec_with
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.model_text import parse_input_shapes


def detector(path: Path, opset: int = 13) -> Path:
    """A map with open height and width, upsampled to the input's by shape arithmetic."""
    weights = {
        "w": np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32),
        "two": np.array([2, 3], dtype=np.int64),
        "none": np.array([], dtype=np.float32),
        "head": np.array([1, 4], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "two"], ["hw"], axis=0),
        helper.make_node("Concat", ["head", "hw"], ["size"], axis=0),
        helper.make_node(
            "Resize",
            ["c", "none", "none", "size"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "det",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, "a", "b"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path


def test_open_sizes_are_closed_or_named_with_what_to_type(tmp_path: Path) -> None:
    path = detector(tmp_path / "det.onnx")
    with pytest.raises(BadInput, match=r"x is nx3xhxw: .* --input '1,3,224,224'"):
        load_model(str(path))
    captured = read_onnx(path, parse_input_shapes("1,3,20,24"))
    assert captured.graph.inputs[0].spec.shape == (1, 3, 20, 24)
    assert captured.graph.specs()[captured.graph.outputs[0]].shape == (1, 4, 20, 24)
    x = np.random.default_rng(1).normal(size=(1, 3, 20, 24)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        computed = build(captured.graph, captured.weights).eval()(torch.from_numpy(x))
    np.testing.assert_allclose(computed.numpy(), session.run(None, {"x": x})[0], atol=1e-5)


def test_a_model_says_its_input_itself(tmp_path: Path) -> None:
    spec = spec_with(str(detector(tmp_path / "det.onnx")), parse_input_shapes("1,3,20,24"), ())
    assert spec.endswith("det.onnx?input=1,3,20,24")
    assert default_input(spec, load_model(spec)) == (1, 3, 20, 24)
    with pytest.raises(BadInput, match="unknown setting 'inputs'"):
        load_model(spec.replace("input", "inputs"))


def two_inputs(path: Path) -> Path:
    """Tokens of int64 and a mask of float32, with two outputs."""
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Mul", ["e", "mask"], ["masked"]),
        helper.make_node("ReduceMean", ["masked"], ["pooled"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "tokens",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "length"]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n", "length", 1]),
        ],
        [
            helper.make_tensor_value_info("masked", TensorProto.FLOAT, ["n", "length", 8]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["n", 8]),
        ],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def test_several_inputs_have_names_shapes_and_types(tmp_path: Path) -> None:
    path = two_inputs(tmp_path / "tokens.onnx")
    with pytest.raises(BadInput, match="--input 'ids=1,128;mask=1,128,1'"):
        read_onnx(path)
    graph = read_onnx(path, parse_input_shapes("mask=1,5,1;ids=1,5")).graph
    found = [(value.name, value.spec.shape, value.spec.dtype) for value in graph.inputs]
    assert found == [("ids", (1, 5), "int64"), ("mask", (1, 5, 1), "float32")]
    with pytest.raises(BadInput, match="no input 'idz'"):
        read_onnx(path, parse_input_shapes("idz=1,5"))
    with pytest.raises(BadInput, match="3 input shapes"):
        read_onnx(path, parse_input_shapes("1,5;1,5,1;1"))


def test_outputs_are_chosen_by_name_or_position(tmp_path: Path) -> None:
    spec = spec_with(
        str(two_inputs(tmp_path / "tokens.onnx")), parse_input_shapes("1,5;1,5,1"), ("pooled",)
    )
    module = load_model(spec)
    graph = trace(module, example_inputs(spec, module)).graph
    assert [graph.specs()[name].shape for name in graph.outputs] == [(1, 8)]
    by_position = load_model(spec.replace("#pooled", "#1,0"))
    with torch.no_grad():
        pooled, masked = by_position(*example_inputs(spec, by_position))
    assert (pooled.shape, masked.shape) == ((1, 8), (1, 5, 8))
    with pytest.raises(UnknownName, match="its outputs are masked, pooled"):
        load_model(spec.replace("#pooled", "#poled"))


def two_heads(path: Path) -> Path:
    """Outputs whose names no module may bear, one of them another name of a value inside."""
    kernel = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["head/scores"]),
        helper.make_node("GlobalAveragePool", ["head/scores"], ["p"]),
        helper.make_node("Identity", ["p"], ["/head/boxes:0"]),
    ]
    outputs = {"head/scores": (1, 4, 8, 8), "/head/boxes:0": (1, 4, 1, 1)}
    graph = helper.make_graph(
        nodes,
        "heads",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(kernel, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("wanted", "shapes"),
    [
        ("head/scores", [(1, 4, 8, 8)]),
        ("/head/boxes:0", [(1, 4, 1, 1)]),
        ("head_scores", [(1, 4, 8, 8)]),
        ("/head/boxes:0,head/scores", [(1, 4, 1, 1), (1, 4, 8, 8)]),
    ],
)
def test_outputs_are_chosen_by_the_names_that_a_file_gives_them(
    wanted: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    spec = spec_with(str(two_heads(tmp_path / "net.onnx")), (), wanted.split(","))
    module = load_model(spec)
    graph = trace(module, example_inputs(spec, module)).graph
    assert [graph.specs()[name].shape for name in graph.outputs] == shapes


def test_an_unknown_output_is_refused_with_the_names_of_the_file(tmp_path: Path) -> None:
    spec = spec_with(str(two_heads(tmp_path / "net.onnx")), (), ("head/score",))
    says = "unknown output 'head/score', .*net.onnx, its outputs are head/scores, /head/boxes:0 "
    with pytest.raises(UnknownName, match=says):
        load_model(spec)


@pytest.mark.parametrize("opset", range(9, 24))
def test_every_opset_from_9_to_23_is_captured_or_refused_by_name(
    opset: int, tmp_path: Path
) -> None:
    """Operators whose sizes moved from attributes to inputs, by the library's own converter."""
    from onnx import version_converter

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["a"], ["b"], min=0.0, max=6.0),
        helper.make_node("Pad", ["b"], ["c"], pads=[0, 0, 0, 0, 0, 0, 1, 1]),
        helper.make_node("Slice", ["c"], ["d"], starts=[0], ends=[2], axes=[1]),
        helper.make_node("Split", ["d"], ["e", "f"], axis=1, split=[1, 1]),
        helper.make_node("Concat", ["f", "e"], ["g"], axis=1),
        helper.make_node("ReduceMean", ["g"], ["h"], axes=[3], keepdims=0),
        helper.make_node("ReduceSum", ["h"], ["i"], axes=[2], keepdims=1),
        helper.make_node("Squeeze", ["i"], ["j"], axes=[2]),
        helper.make_node("Dropout", ["j"], ["k"]),
        helper.make_node("Unsqueeze", ["k"], ["l"], axes=[1]),
        helper.make_node("Softmax", ["l"], ["y"], axis=2),
    ]
    kernel = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "sweep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1, 2))],
        [numpy_helper.from_array(kernel, "w")],
    )
    oldest = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8)
    model = oldest if opset == 9 else version_converter.convert_version(oldest, opset)
    file = tmp_path / "net.onnx"
    onnx.save(model, str(file))
    captured = read_onnx(file)
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(str(file)).run(None, {"x": x})
    with torch.no_grad():
        got = build(captured.graph, captured.weights).eval()(torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_a_token_network_is_not_captured_as_one_of_images(tmp_path: Path) -> None:
    """The shape of a file's input is its own, whatever its rank."""
    tokens = spec_with(str(two_inputs(tmp_path / "t.onnx")), parse_input_shapes("1,5;1,5,1"), ())
    module = load_model(tokens)
    assert default_input(tokens, module) == (1, 5)
    assert [tuple(x.shape) for x in example_inputs(tokens, module)] == [(1, 5), (1, 5, 1)]
