"""Explanations of a cut.

The numbers behind every refusal, in golden lines, and the same verdicts as the search counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brute_force import all_combinations
from support.random_networks import Dense, Inverted, Residual, conv
from support.toy_network import classifier
from torch import nn

from nnstretch import capture
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, TensorSpec, ValueRef, Weight
from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import SEGMENT_RULES, SegmentLimits
from nnstretch.stretch.search.explain import (
    SegmentVerdict,
    explain,
    fastest_us,
    format_amount,
    format_violation,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.stretch.search.statistics import refusals
from nnstretch.structure.macs import count_macs
from nnstretch.trial import Violation

LOOSE = SegmentLimits(alpha=2.0, beta=1.5, main_macs=0.2, segment_macs=0.5)


@dataclass(frozen=True)
class Rate:
    """One number a processor: MACs per microsecond, nothing else costs."""

    macs_per_us: float

    def estimate(self, kernel: Kernel, /) -> Estimate:
        us = kernel.macs / self.macs_per_us
        return Estimate(us, us / 10)


def plain(widths: tuple[int, ...] = (32, 32, 64), px: int = 8) -> Graph:
    """Convolutions one after the other, each its own block; then a pool and a classifier.

    Written without PyTorch.
    """
    nodes: list[Node] = []
    weights: list[Weight] = []
    at, cin = "x", 3
    for n, cout in enumerate(widths):
        weight = Weight(f"conv{n}.weight", TensorSpec((cout, cin, 3, 3)))
        weights.append(weight)
        out = TensorSpec((1, cout, px, px))
        args = (ValueRef(at), ValueRef(weight.name), None, (1, 1), (1, 1), (1, 1), 1)
        nodes.append(
            Node(
                f"conv{n}",
                "conv2d",
                args,
                (out,),
                f"conv{n}",
                macs=count_macs("conv2d", args, out, {weight.name: weight.spec}),
            )
        )
        at, cin = f"conv{n}", cout
    return classifier(TensorSpec((1, 3, px, px)), nodes, weights, at, cin)


def chip(fixed_us: float = 5.0, names: tuple[str, ...] = ("cpu", "dsp")) -> Soc:
    rates = {name: Rate(1_000.0 * (n + 1)) for n, name in enumerate(names)}
    processors = (
        Processor(names[0], "cpu", 1),
        *(Processor(n, n, 2, Link(fixed_us), Link(fixed_us), sync_us=2.0) for n in names[1:]),
    )
    return Soc("toy", processors, "int8", rates, Link(1.0))


def space(
    limits: SegmentLimits,
    soc: Soc | None = None,
    graph: Graph | None = None,
    merges: tuple[str, ...] = ("concat",),
) -> SearchSpace:
    soc = soc or chip()
    return SearchSpace(
        NetworkAnalysis(graph or plain()),
        CostModel(soc),
        tuple(p.name for p in soc.processors),
        limits,
        4,
        merges,
    )


def lines(limits: SegmentLimits, cut: str = "conv1", **more: object) -> tuple[str, ...]:
    return explain(space(limits, **more), cut).lines  # type: ignore[arg-type]


def test_every_rule_has_its_golden_line() -> None:
    # Meeting costs 5 + 5 + 2 + 1 us. The original takes 64 x 32 x 27 / 2000 = 27.6 us for conv0 and
    # 294.9 us for conv1 on the dsp.
    assert lines(SegmentLimits(alpha=0.01)) == (
        "input -> conv1 on cpu+dsp: cost_amortised needs 13 us, limit 3.2 us",
        "conv0 -> conv1 on cpu+dsp: cost_amortised needs 13 us, limit 2.9 us",
    )
    assert lines(SegmentLimits(alpha=5, beta=0.05)) == (
        "input -> conv1 on cpu+dsp: no_stragglers needs 16.9 us, limit 16.1 us",
        "conv0 -> conv1 on cpu+dsp: no_stragglers needs 147.5 us, limit 14.7 us",
    )
    assert (
        lines(SegmentLimits(alpha=5, beta=0.3, main_macs=0.5))[0]
        == "input -> conv1 on cpu+dsp: main_branch has 5.53e+04 MACs, limit at least 3.226e+05 MACs"
    )
    assert (
        lines(SegmentLimits(alpha=5, beta=0.3, main_macs=0, segment_macs=0.9))[0]
        == "input -> conv1 on cpu+dsp: capacity has 1.106e+05 MACs, limit at least 5.806e+05 MACs"
    )
    assert lines(SegmentLimits(alpha=5, beta=1.0)) == (
        (
            "input -> conv1 on cpu+dsp: allowed, branches left cpu 6 of 8, dsp 7 of 8, fastest"
            " 199.6 us, original 322.6 us (1.62x)"
        ),
        (
            "conv0 -> conv1 on cpu+dsp: allowed, branches left cpu 2 of 4, dsp 3 of 4, fastest"
            " 234.2 us, original 294.9 us (1.26x)"
        ),
    )


def test_a_cut_that_is_no_meeting_point_says_why() -> None:
    assert lines(LOOSE, "pool") == (
        (
            "pool is no meeting point: it is behind the global pool (1x64), where hardly any work"
            " is left to share"
        ),
    )
    assert lines(LOOSE, "output") == (
        (
            "output is no meeting point: the output keeps its width, so the last segment is never"
            " branched"
        ),
    )
    assert lines(LOOSE, "input")[0].startswith(
        "input is no meeting point: it is the network's input"
    )
    alone = explain(space(LOOSE, chip(names=("cpu",))), "conv1")
    assert alone.lines == (
        "conv1 is no meeting point: only one processor is given, so nothing runs at once",
    )
    with pytest.raises(
        BadPlan, match=r"unknown cut 'nowhere', .* conv0, conv1, conv2, pool, output"
    ):
        explain(space(LOOSE), "nowhere")


class Down(nn.Module):
    """An inverted bottleneck without a skip, so that cuts lie inside."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(8, 32, 1), conv(32, 32, 3, 2, 32), conv(32, 16, 1, act=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.mark.slow
def test_cuts_inside_blocks_name_the_block() -> None:
    net = nn.Sequential(
        conv(3, 8),
        Down(),
        Inverted(16),
        Inverted(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    found = space(LOOSE, graph=capture(net.eval(), torch.zeros(1, 3, 16, 16), "net"))
    for cut in ("1.body.0", "1.body.1"):
        assert (
            explain(found, cut).reason
            == "it is inside the block that ends at 1, whose layers scale together"
        )
    dense = nn.Sequential(
        conv(3, 8),
        Dense(8, 8, 3),
        conv(32, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    found = space(LOOSE, graph=capture(dense.eval(), torch.zeros(1, 3, 16, 16), "net"))
    for cut in ("0", "cat", "cat_1"):
        assert (
            explain(found, cut).reason
            == "it belongs to a dense block: 1 holds on to its channels, which cannot change alone"
        )
    idle = nn.Sequential(
        conv(3, 16),
        nn.MaxPool2d(2),
        conv(16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    found = space(LOOSE, graph=capture(idle.eval(), torch.zeros(1, 3, 16, 16), "net"))
    assert explain(found, "1").lines[0] == "0 -> 1: no weighted work to branch"


RESIDUAL = capture(
    nn.Sequential(
        conv(3, 16),
        Residual(16, 32, 2),
        Residual(32, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    ).eval(),
    torch.zeros(1, 3, 16, 16),
    "net",
)
shares = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 2.0])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    graph=st.sampled_from([plain(), RESIDUAL]),
    limits=st.builds(
        SegmentLimits, alpha=shares, beta=shares, main_macs=shares, segment_macs=shares
    ),
    names=st.sampled_from([("cpu", "dsp"), ("cpu", "gpu", "dsp")]),
)
def test_every_meeting_point_says_what_the_search_counts_and_what_enumeration_finds(
    graph: Graph, limits: SegmentLimits, names: tuple[str, ...]
) -> None:
    whole = space(limits, chip(names=names), graph, ("concat", "project"))
    tables = CostTables(whole)
    counted: Counter[str] = Counter()
    for i, j in combinations(range(len(whole.cuts) - 1), 2):
        found = {
            (v.processors, v.merge): v
            for v in explain(whole, whole.cuts[j].name).verdicts
            if v.start == whole.cuts[i].name
        }
        for (processors, merge), verdict in found.items():
            if merge == "concat" and verdict.first_violation:
                counted[verdict.first_violation.rule] += 1
            check_enumerated(verdict, SegmentOption(tables, i, j, processors, merge))
    refused = refusals(tables)
    assert counted == {
        rule.name: refused[rule.name] for rule in SEGMENT_RULES if rule.name in refused
    }


def check_enumerated(verdict: SegmentVerdict, option: SegmentOption) -> None:
    combinations = all_combinations(option, option.space.original_width(option.i))
    best = (
        None
        if combinations is None or not len(combinations)
        else float(combinations.latency_us.min())
    )
    assert verdict.fastest_us == (None if best is None else pytest.approx(best, rel=1e-12))
    if verdict.first_violation is not None:
        least = verdict.first_violation.sense == "at least"
        assert (verdict.first_violation.demand < verdict.first_violation.limit) == least, (
            "a violation breaks its own limit"
        )


def test_large_products_are_priced_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = space(LOOSE, chip(names=("cpu", "gpu", "dsp")), RESIDUAL)
    option = SegmentOption(CostTables(whole), 0, len(whole.cuts) - 2, ("cpu", "gpu", "dsp"))
    found = option.branch_totals(whole.original_width(0))
    assert found is not None
    at_once = fastest_us(option, whole.original_width(0), found)
    monkeypatch.setattr("nnstretch.stretch.search.explain.CHUNK", 3)
    assert fastest_us(option, whole.original_width(0), found) == at_once


def test_a_violation_says_in_which_sense_its_limit_holds() -> None:
    least = Violation("capacity", "segment a -> b", 7e5, 8e5, "MACs", "at least")
    assert str(least) == "capacity: segment a -> b has 7e+05 MACs, limit at least 8e+05 MACs"
    most = Violation("memory", "processor dsp", 9.0, 8.0, "bytes")
    assert str(most) == "memory: processor dsp needs 9 bytes, limit 8 bytes"


def test_amounts_carry_their_unit() -> None:
    assert format_amount(812.0, "us") == "812 us"
    assert format_amount(13.04, "us") == "13 us"
    assert (
        format_violation(Violation("cost_amortised", "", 812.0, 640.0, "us"))
        == "cost_amortised needs 812 us, limit 640 us"
    )
    assert (
        format_violation(Violation("capacity", "", 7e5, 8e5, "MACs", "at least"))
        == "capacity has 7e+05 MACs, limit at least 8e+05 MACs"
    )
