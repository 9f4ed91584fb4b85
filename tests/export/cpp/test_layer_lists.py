"""The two lists of CEDR's translator: in the order of definition, and of the forward pass."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.cedr_example import EXAMPLE, INPUT, Model  # noqa: E402
from support.exports import PLAN, tiny  # noqa: E402
from torch import nn  # noqa: E402

from nnstretch.capture.torch_export import trace  # noqa: E402
from nnstretch.export.cpp.export import export_cpp  # noqa: E402
from nnstretch.export.cpp.layer_lists.layer_lists import LayerLists, list_layers  # noqa: E402
from nnstretch.export.subgraph_specs import ExportRequest  # noqa: E402


def lists_of(module: nn.Module, *shapes: tuple[int, ...]) -> LayerLists:
    """Capture a module and list its layers."""
    inputs = tuple(torch.zeros(shape) for shape in shapes)
    return list_layers(module, trace(module.eval(), inputs, "network"))


def as_in_the_slides(record: dict[str, Any], slide: dict[str, Any]) -> dict[str, Any]:
    """Return what the slides show of an entry, in their order, `next` as one name."""
    shown: dict[str, Any] = {}
    for key, value in slide.items():
        ours = record[key]
        if isinstance(value, dict):
            ours = as_in_the_slides(ours, value)
        elif key == "next":
            (ours,) = ours or ["NONE"]
        elif key == "type":
            ours = value if EXAMPLE["type_aliases"].get(value) == ours else ours
        shown[key] = ours
    return shown


def test_the_example_of_the_slides_gives_both_of_its_lists() -> None:
    lists = lists_of(Model(), INPUT)
    for records, slides in ((lists.definition, "step1"), (lists.forward, "step2")):
        assert [
            as_in_the_slides(record, slide)
            for record, slide in zip(records, EXAMPLE[slides], strict=True)
        ] == EXAMPLE[slides]
    pool = lists.forward[1]
    assert (pool["kernel_size"], pool["stride"], pool["ceil_mode"]) == (2, 2, False)
    assert pool["input_bytes"] == [8 * 64 * 64 * 4]
    assert pool["next_bytes"] == [8 * 32 * 32 * 4]
    assert lists.forward[2]["in_features"] == 32
    assert lists.definition[0]["0"]["parameters"] == {"weight": [8, 3, 3, 3], "bias": [8]}


class Block(nn.Module):
    """Functional operators, a layer that is called twice, a variable that is assigned twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.act = nn.LeakyReLU(0.2)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.unused = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block."""
        y = self.act(self.conv(x))
        left, right = torch.chunk(self.act(y * self.scale), 2, 1)
        y = torch.cat((left, right, x), 1)
        return nn.functional.max_pool2d(y, 2)


class Net(nn.Module):
    """A block inside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        layers = {"wide": nn.Conv2d(8, 8, 1), "act": nn.ReLU()}
        self.named = nn.Sequential(OrderedDict(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the network."""
        y = self.block(x)
        return self.named(self.named(y)) + 1


def test_functional_operators_branches_and_repeated_layers_are_entries() -> None:
    lists = lists_of(Net(), (1, 4, 8, 8))
    assert [record["name"] for record in lists.definition] == [
        *("block_scale", "block_act", "block_conv", "block_unused", "named")
    ]
    forward = {record["name"]: record for record in lists.forward}
    assert list(forward) == [
        *("block_conv", "block_act", "mul", "block_act_2", "chunk", "getitem", "getitem_1"),
        *("cat", "max_pool2d", "named", "named_2", "add"),
    ]
    assert [forward["named"][str(number)]["name"] for number in (0, 1)] == [
        *("named_wide", "named_act")
    ]
    assert forward["block_act"]["negative_slope"] == 0.2
    assert forward["mul"]["parameters"] == {"block.scale": [4, 1, 1]}
    assert forward["chunk"]["next"] == ["getitem", "getitem_1"]
    assert forward["chunk"]["next_bytes"] == [2 * 64 * 4] * 2
    assert (forward["chunk"]["chunks"], forward["chunk"]["dim"]) == (2, 1)
    assert forward["cat"]["input"] == ["getitem", "getitem_1", "x"]
    assert forward["max_pool2d"]["kernel_size"] == [2, 2]
    assert forward["max_pool2d"]["output"] == "y"
    assert forward["add"]["returned"]
    assert forward["add"]["next"] == []


def test_the_folder_of_a_plan_lists_the_stretched_network_with_its_processors(
    tmp_path: Path,
) -> None:
    written = export_cpp(ExportRequest(tiny(), PLAN), tmp_path / "net", build_here=False)
    forward = json.loads((written.folder / "layers" / "forward.json").read_text())
    placed = {record["name"]: record.get("processor") for record in forward}
    assert list(placed.values()).count("dsp") == 2
    assert placed["max_pool2d"] == "cpu"
    assert [record["type"] for record in forward if "processor" not in record] == ["cat"]
    unplaced = [group.name for group in written.program.groups if not group.placement]
    assert [name for name in unplaced if not name.endswith("/merge")] == []
