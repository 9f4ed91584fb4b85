"""Cuts are exactly the tensors that alone separate input from output.

Units and repeats follow from them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_networks import INPUT, Step, network, relative
from torch import nn

from nnstretch.capture import build, load_model, trace
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef
from nnstretch.structure.blocks import find_stages, find_units
from nnstretch.structure.cuts import INPUT as ENTRY
from nnstretch.structure.cuts import (
    Cut,
    cut_named,
    find_cuts,
    prune_unread,
    section,
    separating_positions,
)

MAP = TensorSpec((1, 8, 4, 4))
RESNET18_CUTS = (
    "relu maxpool layer1.0 layer1 layer2.0 layer2 layer3.0 layer3 layer4.0 layer4 avgpool flatten"
    " output"
)
MACS = {"resnet18": 1_814_074_344, "resnet34": 3_663_762_408, "resnet50": 4_089_185_256}
PARAMS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032}


@cache
def resnet(name: str) -> Graph:
    torch.set_num_threads(1)
    return trace(load_model(f"torchvision:{name}"), torch.zeros(1, 3, 224, 224), name).graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random DAG of additions, activations and opaque operators, everything in it alive."""
    nodes: list[Node] = []
    names = ["x"]
    for i in range(draw(st.integers(1, 10))):
        op = draw(st.sampled_from(("relu", "batch_norm", "max_pool2d", "add.Tensor")))
        first = draw(st.sampled_from(names[-3:]))
        args = (
            (ValueRef(first), ValueRef(draw(st.sampled_from(names))))
            if op == "add.Tensor"
            else (ValueRef(first),)
        )
        nodes.append(Node(f"n{i}", op, args, (MAP,)))
        names.append(f"n{i}")
    return Graph(
        "drawn", (Value("x", MAP),), (), prune_unread(tuple(nodes), names[-1:]), (names[-1],)
    )


def reachable(graph: Graph, without: str) -> bool:
    """Whether the output still depends on the input when one tensor is taken away."""
    known = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if node.name != without and known & set(node.inputs):
            known.add(node.name)
    return graph.outputs[0] in known


@pytest.mark.slow
@given(graphs())
@settings(max_examples=300)
def test_separators_are_those_of_brute_force(graph: Graph) -> None:
    expected = [
        node.name
        for node in graph.nodes
        if reachable(graph, "") and not reachable(graph, node.name)
    ]
    assert [graph.nodes[i].name for i, _ in separating_positions(graph)] == expected


@pytest.mark.slow
@given(graphs())
@settings(max_examples=300)
def test_only_the_inside_of_a_kernel_is_left_out(graph: Graph) -> None:
    """Of the separators, those are no cuts whose one reader is an activation behind a norm or a
    sum, or behind activations that follow one.
    """
    readers = graph.consumers()
    nodes = {node.name: node for node in graph.nodes}
    kept = {cut.value for cut in find_cuts(graph)}

    def kernel_of(node: Node) -> Node:
        """Return the node that the kernel of activations behind a node began with."""
        while node.kind == "relu" and node.inputs[0] in nodes:
            before = nodes[node.inputs[0]]
            if len(readers[before.name]) > 1 or before.name in graph.outputs:
                break
            node = before
        return node

    for i, name in separating_positions(graph):
        node = graph.nodes[i]
        mine = readers.get(node.name, ())
        followed = name != "output" and len(mine) == 1 and mine[0].kind == "relu"
        fused = followed and kernel_of(node).kind in ("batch_norm", "add")
        assert (node.name in kept) is not fused


@pytest.mark.slow
def test_the_cuts_of_resnet18_are_named_as_its_modules() -> None:
    assert " ".join(cut.name for cut in find_cuts(resnet("resnet18"))) == RESNET18_CUTS


@pytest.mark.slow
@pytest.mark.parametrize("name", MACS)
def test_work_and_weights_are_the_published_ones(name: str) -> None:
    assert (resnet(name).macs, resnet(name).params) == (MACS[name], PARAMS[name])


@pytest.mark.slow
def test_units_add_up_and_repeats_name_the_first_of_their_stage() -> None:
    for name in MACS:
        graph = resnet(name)
        found = find_units(graph)
        assert sum(u.macs for u in found) == graph.macs
        assert sum(u.params for u in found) == graph.params
        assert [u.start.name for u in found] == [ENTRY, *(u.end.name for u in found[:-1])]
    repeats = [
        f"{u.end.name} < {u.repeat_of}" for u in find_units(resnet("resnet18")) if u.repeat_of
    ]
    assert repeats == [
        "layer1 < layer1.0",
        "layer2 < layer2.0",
        "layer3 < layer3.0",
        "layer4 < layer4.0",
    ]
    assert [stage.depth for stage in find_stages(resnet("resnet50"))] == [3, 4, 6, 3]


def test_a_plain_stage_repeats_its_convolutions() -> None:
    graph = trace(network([Step("conv", 24, 3)]), torch.zeros(INPUT), "plain").graph
    assert [(stage.first_end.name, stage.depth) for stage in find_stages(graph)] == [
        ("blocks.0", 3)
    ]


class Bent(nn.Module):
    """A residual block whose bend and sum take options."""

    def __init__(self, approximate: str = "none", alpha: int = 1) -> None:
        super().__init__()
        self.conv, self.approximate, self.alpha = nn.Conv2d(4, 4, 3, 1, 1), approximate, alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.conv(x), approximate=self.approximate)
        return torch.add(x, y, alpha=self.alpha)


@pytest.mark.parametrize("options", [{"approximate": "tanh"}, {"alpha": -3}])
def test_blocks_that_differ_in_an_option_are_no_repeats(options: dict[str, Any]) -> None:
    blocks = (nn.Conv2d(3, 4, 1), Bent(), Bent(), Bent(**options), Bent(**options))
    graph = trace(nn.Sequential(*blocks).eval(), torch.zeros(1, 3, 8, 8), "bent").graph
    assert [unit.repeat_of for unit in find_units(graph)] == [None, None, "1", None, "3"]


class Counted(nn.Module):
    """A residual block that adds whole numbers, which it computes as floating ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.float()).round().to(torch.int32) + x


class Scaled(nn.Module):
    """A convolution of whole numbers, as floating ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.float() / 8)


class Cast(nn.Module):
    """The same numbers in another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def test_blocks_that_change_the_type_of_their_input_are_no_repeats() -> None:
    layers = (nn.Conv2d(3, 4, 1), Cast(torch.int8), Counted(), Counted(), Scaled())
    graph = trace(nn.Sequential(*layers).eval(), torch.zeros(1, 3, 8, 8), "whole").graph
    specs = graph.specs()
    for stage in find_stages(graph):
        for repeat in stage.repeats:
            ends = (specs[cut.value] for cut in (repeat.start, repeat.end))
            assert len({spec.dtype for spec in ends}) == 1, repeat.end.name


def test_a_cut_may_be_named_by_any_module_that_ends_there() -> None:
    graph = resnet("resnet18")
    assert cut_named(graph, "layer1.1") == cut_named(graph, "layer1")
    assert cut_named(graph, "layer1.1.relu") == cut_named(graph, "layer1")
    assert cut_named(graph, ENTRY) == Cut(ENTRY, "x", -1)
    with pytest.raises(
        BadPlan,
        match=(
            r"unknown cut 'layer1\.0\.conv1', network resnet18, its cuts are relu, maxpool,"
            r" layer1\.0"
        ),
    ):
        cut_named(graph, "layer1.0.conv1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["residual", "dense", "shuffle", "squeeze", "attention", "standard"]
)
def test_two_sections_at_any_cut_compute_the_whole(kind: str) -> None:
    x = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))
    captured = trace(module := network([Step(kind, 16, 2)]), x, kind)
    with torch.no_grad():
        expected = module.eval()(x)
        for cut in find_cuts(captured.graph)[:-1]:
            front = section(captured.graph, cut_named(captured.graph, ENTRY), cut)
            back = section(captured.graph, cut, find_cuts(captured.graph)[-1])
            halves = [build(part, captured.weights).eval() for part in (front, back)]
            assert relative(expected, halves[1](halves[0](x))) <= 1e-5
            assert front.macs + back.macs == captured.graph.macs


def test_nobody_meets_where_a_batch_is_folded_into_pixels() -> None:
    class Folding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            folded = torch.relu(self.a(x.reshape(-1, 4)))
            return self.b(folded).reshape(x.shape[0], -1)

    graph = trace(Folding(), torch.zeros(2, 3, 4), "folding").graph
    assert [cut.name for cut in find_cuts(graph)] == ["output"]


def test_two_inputs_or_outputs_have_no_cuts() -> None:
    nodes = (
        Node("a", "relu", (ValueRef("x"),), (MAP,)),
        Node("b", "relu", (ValueRef("a"),), (MAP,)),
    )
    assert find_cuts(Graph("two", (Value("x", MAP),), (), nodes, ("a", "b"))) == ()
    assert find_cuts(Graph("two", (Value("x", MAP), Value("y", MAP)), (), nodes, ("b",))) == ()


def test_nothing_is_cut_between_a_convolution_and_what_scales_it() -> None:
    """Converted networks often have batch norms as products and sums with constants."""
    scale, shift = (ValueRef(name) for name in ("scale", "shift"))
    steps = (
        ("conv", "conv2d", (ValueRef("x"), ValueRef("weight"))),
        ("scaled", "mul.Tensor", (ValueRef("conv"), scale)),
        ("shifted", "add.Tensor", (ValueRef("scaled"), shift)),
        ("act", "hardswish", (ValueRef("shifted"),)),
        ("again", "mul.Tensor", (ValueRef("act"), scale)),
        ("pool", "max_pool2d", (ValueRef("again"), (2, 2))),
    )
    weights = tuple(
        Value(name, TensorSpec(shape))
        for name, shape in (("weight", (8, 8, 1, 1)), ("scale", (8, 1, 1)), ("shift", (8, 1, 1)))
    )
    nodes = tuple(
        Node(name, op, args, (TensorSpec((1, 8, 2, 2)) if name == "pool" else MAP,))
        for name, op, args in steps
    )
    graph = Graph("scaled", (Value("x", MAP),), weights, nodes, ("pool",))
    assert [cut.value for cut in find_cuts(graph)] == ["again", "pool"]
