"""Inputs and outputs that a user says: sizes an ONNX file leaves open, types, names, choices."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from nnstretch.capture import build, capture, default_input, load_model, trace
from nnstretch.capture.example_inputs import example_inputs, integer_values
from nnstretch.capture.model_spec import parse_model_spec, spec_with
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.errors import BadInput, BadPlan, NnstretchError, UnknownName
from nnstretch.files.input_shapes import format_input_shapes, parse_input_shapes
from nnstretch.files.plan_yaml import parse_plan, plan_text
from nnstretch.graph import InputShape
from nnstretch.stretch import single_processor_plan, stretch

# --- text ----------------------------------------------------------------------------------------


def test_inputs_are_read_as_text() -> None:
    assert parse_input_shapes("1,3,32,32") == (InputShape((1, 3, 32, 32)),)
    assert parse_input_shapes("1x3x32x32") == (InputShape((1, 3, 32, 32)),)
    assert parse_input_shapes(" x=1,3 ; ids=1,128:int64;sr=():int64") == (
        InputShape((1, 3), "x"),
        InputShape((1, 128), "ids", "int64"),
        InputShape((), "sr", "int64"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "1,,3", "1,0", "1,-3", "=1,3", "x=1;x=2", "1:float", "1,3.5", "1,99999999999999", "x"],
)
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_input_shapes(text)


names = st.text("abcdefgh_.0123/:", min_size=1, max_size=8)
shapes = st.lists(st.integers(1, 1 << 20), max_size=5).map(tuple)
dtypes = st.sampled_from(["", "int64", "float32"])


@given(
    st.lists(st.builds(InputShape, shapes, names, dtypes), min_size=1, unique_by=lambda i: i.name)
)
def test_text_of_inputs_is_read_back(inputs: list[InputShape]) -> None:
    assert parse_input_shapes(format_input_shapes(inputs)) == tuple(inputs)
    spec = parse_model_spec(spec_with("a/net.onnx", inputs, ("out", "2")))
    assert spec.outputs == ("out", "2")
    assert parse_input_shapes(dict(spec.query)["input"]) == tuple(inputs)


@given(st.text(max_size=30))
def test_any_text_of_inputs_is_read_or_refused(text: str) -> None:
    with suppress(NnstretchError):
        parse_input_shapes(text)


# --- ONNX files ----------------------------------------------------------------------------------


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


# --- modules -------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        embedded = self.table(ids) * mask
        return {"masked": embedded, "pooled": embedded.mean(1)}


def test_inputs_that_are_no_image_are_asked_for_by_name() -> None:
    with pytest.raises(BadInput, match="forward takes ids, mask"):
        default_input("net.py:Tokens", Tokens())
    with pytest.raises(BadInput, match="first layer, Embedding"):
        default_input("net.py:make", nn.Sequential(nn.Embedding(5, 2)))
    with pytest.raises(BadInput, match="--input '1,1,224,224'"):
        default_input("net.py:make", nn.Sequential(nn.Conv2d(1, 2, 3)))
    assert default_input("net.py:make", nn.Sequential(nn.Conv2d(3, 2, 3))) == (1, 3, 224, 224)


def test_a_module_is_captured_at_named_inputs_of_any_type() -> None:
    module = Tokens()
    wanted = parse_input_shapes("mask=1,5,1;ids=1,5:int64")
    examples = example_inputs("net.py:Tokens", module, wanted)
    graph = trace(module, examples).graph
    assert [value.spec.dtype for value in graph.inputs] == ["int64", "float32"]
    with pytest.raises(BadInput, match="no shape of input ids"):
        example_inputs("net.py:Tokens", module, wanted[:1])


def test_a_plan_of_a_token_network_says_that_it_reads_integers(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 4))\n"
    )
    spec = f"{tmp_path / 'net.py'}:make"
    loaded = load_model_argument(spec, parse_input_shapes("1,5:int64"))
    plan = single_processor_plan(loaded.captured.graph, spec, "cpu")
    assert parse_plan(plan_text(plan), "plan.yaml") == plan
    (tmp_path / "plan.yaml").write_text(plan_text(plan))
    again = load_model_argument(str(tmp_path / "plan.yaml"))
    assert again.captured.graph.inputs == loaded.captured.graph.inputs
    ids = torch.randint(0, 50, (1, 5))
    torch.testing.assert_close(stretch(loaded.module, plan).eval()(ids), loaded.module(ids))
    with pytest.raises(BadPlan, match="dtype"):
        parse_plan(plan_text(plan).replace("int64", "int65"), "plan.yaml")


def test_a_module_without_any_input_is_refused() -> None:
    with pytest.raises(BadInput, match="no example input, capture of net"):
        capture(nn.Linear(2, 2), (), "net")
    with pytest.raises(BadInput, match=r"example input is \(0, 2\), capture of net, it holds no"):
        capture(nn.Linear(2, 2), torch.zeros(0, 2), "net")


def test_outputs_of_a_module_are_chosen_by_key(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(3, 4, 3)\n"
        "    def forward(self, x):\n"
        "        y = self.conv(x)\n"
        "        return {'map': y, 'sides': [y.mean(1), y.sum(1)]}\n"
    )
    spec = f"{file}:Net#sides.1,map"
    module = load_model(spec)
    graph = trace(module, torch.zeros(1, 3, 8, 8)).graph
    assert [graph.specs()[name].shape for name in graph.outputs] == [(1, 6, 6), (1, 4, 6, 6)]


class Picked(nn.Module):
    """Tokens of a table of 50, words of one of 7, bytes as numbers, and computed places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 4), nn.Embedding(9, 4)
        self.words = nn.EmbeddingBag(7, 4)

    def forward(
        self, ids: torch.Tensor, raw: torch.Tensor, shift: torch.Tensor, bag: torch.Tensor
    ) -> torch.Tensor:
        picked: torch.Tensor = self.tokens(ids) + self.places(shift * 3 + 1) + self.words(bag)
        return picked * raw.float().unsqueeze(-1)


def test_drawn_integers_fit_the_tables_they_pick_from() -> None:
    wanted = parse_input_shapes("ids=1,5:int64;raw=1,5:int64;shift=1,5:int64;bag=1,5:int64")
    module = Picked()
    graph = trace(module, example_inputs("net.py:Picked", module, wanted)).graph
    drawn = [integer_values(graph, name) for name in ("ids", "raw", "shift", "bag")]
    assert drawn == [50, 256, 2, 7]


def test_a_model_file_is_run_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written again within a second at the same length, it is another file all the same."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "net.py"
    widths = []
    for width in (16, 32):
        path.write_text(f"from torch import nn\ndef make():\n    return nn.Linear(4, {width})\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        widths.append(load_model(f"{path}:make").out_features)
    assert widths == [16, 32]


class Decoder(nn.Module):
    """Queries that look at a memory of another length, with no batch in front."""

    def forward(self, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Attend."""
        return (queries @ memory.T).softmax(-1) @ memory


def test_inputs_with_first_axes_of_different_sizes_keep_them() -> None:
    captured = trace(Decoder(), (torch.randn(5, 8), torch.randn(4, 8)))
    assert [value.spec.shape for value in captured.graph.inputs] == [(5, 8), (4, 8)]
    assert [node.output.shape for node in captured.graph.nodes][-1] == (5, 8)
