"""ONNX files that no runtime is to see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support.bundles import conv, feature_map, model_bytes, subgraph

from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.bundle.model_files.check import check_file
from nnstretch.bundle.model_files.check_onnx import IR_VERSIONS, OPSETS
from nnstretch.bundle.model_files.indexing_rules import known_integers
from nnstretch.bundle.model_files.onnx_file import read_onnx
from nnstretch.bundle.model_files.rule_context import RuleContext
from nnstretch.errors import BrokenFile
from nnstretch.run.backends.registry import READS, load_backend

X, Y = Port("x", feature_map(4)), Port("y", feature_map(4))


Change = Callable[[onnx.ModelProto], None]


def good() -> bytes:
    weights = {"w": np.ones((4, 4, 3, 3), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return model_bytes(nodes, [X], [Y], weights)


def changed(change: Change) -> bytes:
    model = onnx.load_model_from_string(good())
    change(model)
    return model.SerializeToString()


def described(data: bytes) -> Subgraph:
    return subgraph("s", "cpu", data, [X], [Y])


def refusal(data: bytes, backend: str = "onnxruntime") -> str:
    with pytest.raises(BrokenFile) as caught:
        load_backend(backend, described(data), data, "b")
    text = str(caught.value)
    assert text.startswith("broken bundle b, member s.onnx, ")
    assert "\n" not in text
    assert len(text) < 500
    return text.removeprefix("broken bundle b, member s.onnx, ")


def external(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")


def external_weights(model: onnx.ModelProto) -> None:
    external(model.graph.initializer[0])


def external_attribute(model: onnx.ModelProto) -> None:
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.ones(3)))
    external(constant.attribute[0].t)
    model.graph.node.insert(0, constant)


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def control_flow(model: onnx.ModelProto) -> None:
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=body))


def function(model: onnx.ModelProto) -> None:
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("mine", "f", ["a"], ["b"], [], imports))


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def training(model: onnx.ModelProto) -> None:
    model.training_info.add()


def opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**31


def ir_version(model: onnx.ModelProto) -> None:
    model.ir_version = 2**40


def domain(model: onnx.ModelProto) -> None:
    model.graph.node[1].domain = "com.microsoft"


def written_twice(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = "y"


def short_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = bytes(8)


def no_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")


def huge_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 2**40


def negative_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def groups(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("group", 0))


def strides(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("strides", [0, 1]))


def pads(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute[0].ints[0] = 2**62


def kernel(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("kernel_shape", [5, 5]))


def other_shape(model: onnx.ModelProto) -> None:
    model.graph.node[1].CopyFrom(
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    )


def other_rank(model: onnx.ModelProto) -> None:
    model.graph.node[1].CopyFrom(helper.make_node("Flatten", ["c"], ["y"]))


def index(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1, 2, 99]), "i"))
    model.graph.node[1].CopyFrom(helper.make_node("Gather", ["c", "i"], ["y"], axis=1))


def axis(model: onnx.ModelProto) -> None:
    model.graph.node[1].CopyFrom(helper.make_node("Softmax", ["c"], ["y"], axis=9))


def grown(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([10**9, 4, 8, 8]), "size"))
    model.graph.node[1].CopyFrom(helper.make_node("Expand", ["c", "size"], ["big"]))
    model.graph.node.append(helper.make_node("ReduceMax", ["big"], ["y"], axes=[0]))


def grown_unseen(model: onnx.ModelProto) -> None:
    model.graph.node[1].CopyFrom(helper.make_node("ArgMax", ["c"], ["size"], axis=1))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["big"]))
    model.graph.node.append(helper.make_node("ReduceMax", ["big"], ["y"]))


def many_axes(model: onnx.ModelProto) -> None:
    for number in range(7):
        axes = {"axes": list(range(2))}
        names = [f"c{number}" if number else "c"], [f"c{number + 1}"]
        model.graph.node.insert(1 + number, helper.make_node("Unsqueeze", *names, **axes))
    model.graph.node[-1].CopyFrom(helper.make_node("ReduceMax", ["c7"], ["y"]))


def open_size(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "h"


def open_rank(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def other_type(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8


def sequence(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = 1


def missing_output(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "z"


def text_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = TensorProto.STRING


def long_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "n" * 100_000


BROKEN: dict[Change, str] = {
    external_weights: "constant 'w', its data lie outside the file",
    external_attribute: "its data lie outside the file",
    cycle: "Conv 'c' reads 'y', before it is written, a cycle",
    control_flow: "attribute 'then_branch' is a graph, control flow",
    function: "it holds functions",
    sparse: "it holds sparse_initializer",
    training: "it holds training_info",
    opset: "opset 2147483648, known are 7 to 28",
    ir_version: "IR version 1099511627776, known are 3 to 14",
    domain: "Relu 'y' of domain 'com.microsoft', only ONNX's own are known",
    written_twice: "Relu 'y' reads 'c', which nothing writes",
    short_weights: "constant 'w', raw_data has 8 where 144 of float32 need 576",
    no_weights: "constant 'w', its numbers are in no field",
    huge_weights: "constant 'w' of shape (1099511627776, 4, 3, 3), sizes are from 0",
    negative_weights: "constant 'w' of shape (-4, 4, 3, 3), sizes are from 0",
    groups: "Conv 'c', filters of (4, 4, 3, 3) in 0 groups",
    strides: "Conv 'c', strides (0, 1), dilations (1, 1), from 1",
    pads: "Conv 'c', pads (4611686018427387904, 1, 1, 1), from 0",
    kernel: "Conv 'c', kernel_shape (5, 5) with filters of (4, 4, 3, 3)",
    other_shape: "MaxPool 'y' writes 'y' of shape (1, 4, 4, 4), the file declares (1, 4, 8, 8)",
    other_rank: "Flatten 'y' writes 'y' of shape (1, 256), the file declares (1, 4, 8, 8)",
    index: "Gather 'y', index 99 on an axis of 4",
    many_axes: "Unsqueeze 'c7' writes 18 axes, limit 16",
    axis: "Softmax 'y', axis 9 of a tensor of 4 axes",
    grown: "Expand 'big' writes 2.6e+11 elements, limit 4294967296",
    grown_unseen: "ConstantOfShape 'big', the file does not give the size of its output",
    open_size: "it writes y as 1x4x?x8 float32, the manifest says 1x4x8x8 float32",
    open_rank: "it writes y as a tensor of open rank, float32, the manifest says",
    other_type: "it writes y as 1x4x8x8 int8, the manifest says 1x4x8x8 float32",
    sequence: "the type of tensor 'y', unknown field 4",
    missing_output: "output 'y', which nothing writes",
    text_weights: "constant 'w' of element type 8, unknown",
    long_name: "of 100000 characters, limit 4096",
}


def test_the_unchanged_file_is_taken() -> None:
    data = good()
    check_file(described(data), data, "b")
    assert load_backend("onnxruntime", described(data), data, "b")


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_broken_file_is_refused_before_a_runtime_sees_it(change: Change) -> None:
    assert BROKEN[change] in refusal(changed(change))


def test_numbers_that_no_shape_has_are_not_kept() -> None:
    joined = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    node = read_onnx(model_bytes([joined], [X], [Y], {}), OPSETS, IR_VERSIONS).nodes[0]
    for size, kept in ((128, (1,) * 256), (129, None)):
        context = RuleContext(node, ((size,), (size,)), ((1,) * size, (1,) * size), 17)
        assert known_integers(context) == kept
    for size, kept in ((256, (1,) * 256), (257, None)):
        constant = helper.make_node("Constant", [], ["y"], value_ints=[1] * size)
        node = read_onnx(model_bytes([constant], [X], [Y], {}), OPSETS, IR_VERSIONS).nodes[0]
        assert known_integers(RuleContext(node, (), (), 17)) == kept


@pytest.mark.parametrize("backend", [name for name, form in READS.items() if form == "onnx"])
def test_every_backend_asks_the_one_check(backend: str) -> None:
    assert BROKEN[cycle] in refusal(changed(cycle), backend)


def test_a_second_graph_is_refused() -> None:
    """Protobuf would merge it with the first."""
    assert refusal(good() + changed(other_shape)) == "the ONNX model, ir_version is there twice"


def test_an_unknown_field_is_refused() -> None:
    assert refusal(good() + b"\xfa\x06\x01x") == "the ONNX model, unknown field 111"


def test_every_version_of_the_installed_library_is_known() -> None:
    assert onnx.defs.onnx_opset_version() in OPSETS
    assert onnx.IR_VERSION in IR_VERSIONS


@given(st.binary(max_size=200))
def test_bytes_are_refused_or_a_graph(data: bytes) -> None:
    with pytest.raises(ValueError, match=","):
        read_onnx(data, OPSETS, IR_VERSIONS)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_a_byte_is_refused_or_a_graph(data: st.DataObject) -> None:
    file = bytearray(conv(X, Y, 0))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(file) - 1))
        file[at] = data.draw(st.integers(0, 255))
    cut = bytes(file[: data.draw(st.integers(0, len(file)))])
    for changed_file in (bytes(file), cut):
        with suppress(BrokenFile):
            check_file(described(changed_file), changed_file, "b")
