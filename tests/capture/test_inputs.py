"""Inputs and outputs that a user says: shapes, types, names, choices."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nnstretch.capture import capture, default_input, load_model, trace
from nnstretch.capture.example_inputs import example_inputs, integer_values
from nnstretch.capture.model_spec import factory_settings, spec_with
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.errors import BadInput, BadPlan, NnstretchError
from nnstretch.files.model_text import (
    ModelSpec,
    format_input_shapes,
    parse_input_shapes,
    parse_model_spec,
)
from nnstretch.files.plan_yaml import parse_plan, plan_text
from nnstretch.graph import InputShape
from nnstretch.stretch import single_processor_plan, stretch


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


sources = st.sampled_from(
    ["a#1/net.onnx", "net.pt2", "b.c/d#e/net.py:make", "torchvision:resnet18", "timm:hub:a/b"]
)
queries = st.lists(st.tuples(names, st.text("ab#?/&=,%", max_size=5))).map(tuple)
chosen = st.lists(st.text("ab_.01/:?#=&%", min_size=1, max_size=8)).map(tuple)


@given(sources, queries, chosen)
def test_text_of_a_model_is_read_back(
    source: str, query: tuple[tuple[str, str], ...], outputs: tuple[str, ...]
) -> None:
    spec = ModelSpec(source, query, outputs)
    assert parse_model_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "source", "outputs"),
    [
        ("det.onnx#head/scores,/boxes", "det.onnx", ("head/scores", "/boxes")),
        ("a#b/det.onnx", "a#b/det.onnx", ()),
        ("a#b/det.onnx#c/d", "a#b/det.onnx", ("c/d",)),
        ("#1/net.py:make#0", "#1/net.py:make", ("0",)),
        ("net.py:make?n=3#feats.0", "net.py:make", ("feats.0",)),
        ("plan.yaml#0", "plan.yaml#0", ()),
    ],
)
def test_outputs_are_what_stands_behind_a_network(
    text: str, source: str, outputs: tuple[str, ...]
) -> None:
    spec = parse_model_spec(text)
    assert (spec.source, spec.outputs) == (source, outputs)


@given(st.text(max_size=30))
def test_any_text_of_inputs_is_read_or_refused(text: str) -> None:
    with suppress(NnstretchError):
        parse_input_shapes(text)


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


@pytest.mark.parametrize("text", ["1,5:int64", "ids=1,5:int64"])
def test_inputs_that_are_left_out_are_asked_for_by_name(text: str) -> None:
    says = "no shape of input mask, net.py:Tokens, .* --input 'ids=1,5:int64;mask=1,128'"
    with pytest.raises(BadInput, match=says):
        example_inputs("net.py:Tokens", Tokens(), parse_input_shapes(text))


def test_arguments_with_a_default_may_be_left_out() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
            return x * scale

    assert len(example_inputs("net.py:Scaled", Scaled(), parse_input_shapes("1,5"))) == 1


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


def test_arguments_of_a_factory_are_yaml_and_none_has_two_spellings() -> None:
    query = [("a", "null"), ("b", "None"), ("c", "false"), ("d", "[1, 2]"), ("e", "word")]
    expected = {"a": None, "b": None, "c": False, "d": [1, 2], "e": "word"}
    assert factory_settings(query) == expected


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
