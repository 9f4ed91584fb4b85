"""Ratios of depth and width become what a network can have, or are refused."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.random_networks import INPUT, Step, network
from torch import nn

from nnstretch.capture import load_model, trace
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import NetworkAnalysis, lower, stretch
from nnstretch.stretch.lowering.channel_allocation import (
    allocate_channels,
    nearest_sum,
    reachable_sums,
)
from nnstretch.stretch.weights.branched_module import build_module
from nnstretch.structure.channel_groups import analyze_channels

torch.set_num_threads(1)


X = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))


@cache
def resnet18() -> NetworkAnalysis:
    return NetworkAnalysis(
        trace(load_model("torchvision:resnet18"), torch.zeros(1, 3, 64, 64), "resnet18").graph
    )


def plan_with(
    *branches: Branch, start: str = "maxpool", end: str = "layer1", merge: str = "concat"
) -> Plan:
    before = (Segment("input", start, (Branch("cpu"),)),)
    return Plan(
        "resnet18",
        (1, 3, 64, 64),
        (*before, Segment(start, end, branches, merge), Segment(end, "output", (Branch("cpu"),))),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            plan_with(Branch("cpu", 1, 32), Branch("dsp", 9, 32), start="layer4", end="avgpool"),
            "depth 9 is impossible, segment layer4",
        ),
        (plan_with(Branch("cpu", 0, 32)), "depth 0 is impossible"),
        (
            plan_with(Branch("cpu", 1, 0)),
            (
                "width 0 is impossible, segment maxpool -> layer1 on cpu, a branch needs at least"
                " one channel"
            ),
        ),
        (
            plan_with(Branch("cpu"), end="layer9"),
            "unknown cut 'layer9', network resnet18, its cuts are relu, maxpool",
        ),
        (plan_with(Branch("cpu"), Branch("cpu")), "two branches on one processor, cpu, cpu"),
        (plan_with(Branch("cpu", activation="sine")), "unknown activation 'sine'"),
        (plan_with(Branch("cpu"), start="layer2", end="layer1"), "not after its start"),
        (Plan("resnet18", (1, 3, 64, 64), ()), "empty plan"),
        (
            Plan("resnet18", (1, 3, 64, 64), (Segment("input", "layer1", (Branch("cpu"),)),)),
            "it must end at 'output'",
        ),
        (
            Plan(
                "resnet18",
                (1, 3, 64, 64),
                (Segment("input", "output", (Branch("cpu", width=500),)),),
            ),
            "output becomes 1x500",
        ),
    ],
)
def test_impossible_plans_are_refused(plan: Plan, said: str) -> None:
    with pytest.raises(BadPlan) as refusal:
        lower(resnet18(), plan)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_gap_between_segments_is_named() -> None:
    segments = (
        Segment("input", "layer1", (Branch("cpu"),)),
        Segment("layer2", "output", (Branch("cpu"),)),
    )
    with pytest.raises(
        BadPlan,
        match="segment 1 starts at 'layer2', plan of resnet18, the one before ends at 'layer1'",
    ):
        lower(resnet18(), Plan("resnet18", (1, 3, 64, 64), segments))


def test_ratios_become_the_nearest_numbers_that_can_be_had() -> None:
    plan = plan_with(Branch("cpu", "0.5x", "0.5x"), Branch("dsp", "1x", "0.75x"))  # type: ignore[arg-type]
    filled = [b.branch for b in lower(resnet18(), plan).segments[1].branches]
    assert [(b.depth, b.width) for b in filled] == [(1, 32), (2, 48)]


def test_a_deeper_branch_repeats_its_last_block() -> None:
    two, four = (lower(resnet18(), plan_with(Branch("cpu", depth, 64))) for depth in (2, 4))
    assert four.params - two.params == 2 * (2 * 64 * 64 * 9 + 4 * 64)


def test_a_width_that_groups_cannot_make_is_refused_with_the_nearest() -> None:
    graph = trace(network([Step("grouped", 16)]), X, "grouped").graph
    name = next(cut.name for cut in NetworkAnalysis(graph).cuts if "blocks" in cut.name)
    plan = Plan(
        "grouped",
        INPUT,
        (
            Segment("input", name, (Branch("cpu", width=10),)),
            Segment(name, "output", (Branch("cpu"),)),
        ),
    )
    said = (
        r"width 10 is impossible, segment input -> .* on cpu, channels come in whole groups, 8 is"
        r" the nearest"
    )
    with pytest.raises(BadPlan, match=said):
        lower(graph, plan)


def widened_plan(*widths: int | str) -> tuple[Graph, Plan]:
    """Branches that begin before a convolution that doubles the channels of its four groups."""
    layers = (nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 64, 1, groups=4), nn.ReLU())
    module = nn.Sequential(*layers, nn.Conv2d(64, 8, 1)).eval()
    branches = tuple(Branch(f"cpu{i}", width=width) for i, width in enumerate(widths))
    segments = (
        Segment("input", "1", (Branch("cpu0"),)),
        Segment("1", "3", branches),
        Segment("3", "output", (Branch("cpu0"),)),
    )
    x = torch.zeros(1, 3, 4, 4)
    return trace(module, x, "widened").graph, Plan("widened", (1, 3, 4, 4), segments)


@pytest.mark.parametrize(("width", "nearest"), [(8, 16), (24, 16), (40, 32), (56, 48), (72, 64)])
def test_a_width_whose_groups_its_input_cannot_make_is_refused(width: int, nearest: int) -> None:
    said = f"^width {width} is impossible, .*, channels come in whole groups, {nearest} is the nea"
    with pytest.raises(BadPlan, match=said):
        lower(*widened_plan(width))


def test_ratios_keep_the_groups_of_the_input_whole() -> None:
    lowered = lower(*widened_plan("0.1x", "0.3x", "0.6x", "0.9x"))
    assert [b.branch.width for b in lowered.segments[1].branches] == [16, 16, 32, 48]
    assert build_module(lowered).eval()(torch.zeros(1, 3, 4, 4)).shape == (1, 8, 4, 4)


def grouped_plan(width: int, group_width: int) -> tuple[Graph, Plan]:
    """A grouped convolution of 16 channels in groups of 8, at another width and group width."""
    graph = trace(network([Step("grouped", 16)]), X, "grouped").graph
    name = next(cut.name for cut in NetworkAnalysis(graph).cuts if "blocks" in cut.name)
    branch = Branch("cpu", width=width, group_width=group_width)
    ends = Segment("input", name, (branch,)), Segment(name, "output", (Branch("cpu"),))
    return graph, Plan("grouped", INPUT, ends)


@pytest.mark.parametrize(("group_width", "nearest"), [(16, 12), (48, 24), (5, 4)])
def test_a_group_width_that_channels_cannot_make_is_refused_with_the_nearest(
    group_width: int, nearest: int
) -> None:
    said = (
        f"^group width {group_width} is impossible, segment input -> .* on cpu, .* reads 24"
        f" channels and writes 24, {nearest} is the nearest$"
    )
    with pytest.raises(BadPlan, match=said):
        lower(*grouped_plan(24, group_width))


@pytest.mark.slow
@pytest.mark.parametrize("group_width", [1, 8, 12, 24])
def test_a_group_width_that_can_be_had_is_that_of_the_network(group_width: int) -> None:
    graph, plan = grouped_plan(24, group_width)
    stretched = stretch(network([Step("grouped", 16)]), plan).eval()
    assert stretched(X).shape == graph.nodes[-1].output.shape
    (grouped,) = (
        layer
        for layer in stretched.modules()
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 24
    )
    assert grouped.in_channels // grouped.groups == group_width


def test_widths_of_a_projection_are_refused_where_there_is_none() -> None:
    graph = trace(network([Step("grouped", 16)]), X, "grouped").graph
    plan = Plan("grouped", INPUT, (Segment("input", "output", (Branch("cpu", width_in=8),)),))
    with pytest.raises(BadPlan, match=r"width_in is 8, .* only branches of a project merge"):
        lower(graph, plan)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 120))
def test_reachable_sums_are_those_of_brute_force(steps: list[int], wanted: int) -> None:
    reached = {sum(steps)}
    for _ in range(140):
        reached |= {n + step for n in reached for step in steps if n + step <= 140}
    assert {n for n in range(141) if reachable_sums(steps, 140) >> n & 1} == {
        n for n in reached if n <= 140
    }
    assert abs(nearest_sum(steps, wanted) - wanted) == min(abs(n - wanted) for n in reached)  # type: ignore[arg-type]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_shares_make_the_width_or_the_nearest(groups: list[tuple[int, int]], wanted: int) -> None:
    from dataclasses import replace
    from fractions import Fraction

    found = replace(
        analyze_channels(resnet18().graph),
        granularity={root: count for root, (_, count) in enumerate(groups)},
    )
    free = {root: step * count for root, (step, count) in enumerate(groups)}
    shares = allocate_channels(free, found, Fraction(wanted), Fraction(wanted, sum(free.values())))
    made = sum(free[root] * scale for root, scale in shares.items())
    assert made == nearest_sum([step for step, _ in groups], Fraction(wanted))
    assert all(
        scale > 0 and (scale * found.granularity[root]).denominator == 1
        for root, scale in shares.items()
    )
