"""Tables of a space: a branch put together from them costs what the branch costs that is lowered
and priced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stretch.test_layout_costs import ORT
from support.random_networks import Step, network, recipes
from support.search_bounds import space_of
from support.search_instances import chip, random_instance
from support.toy_network import residual

from nnstretch import load_soc
from nnstretch.capture.torch_export import capture
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_arrays import Array, CostArrays, TailCosts
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.unit_costs import UnitCostModel
from nnstretch.stretch.lowering.lower import equal_slices, lower_branch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.options.single_costs import single_costs
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace

CASES = 30
"""Branches looked at in one space."""
PROCESSORS = ("cpu", "dsp")


@cache
def mi9() -> Soc:
    return load_soc("mi9")


def blocked() -> Soc:
    """A chip whose processors keep maps in blocks of channels."""
    return replace(chip(), fusion={"cpu": ORT, "dsp": ORT})


@dataclass(frozen=True)
class Case:
    """One branch of a space, by cuts, width it reads, and numbers of its depth and width."""

    i: int
    j: int
    width_in: int
    depth: int
    width: int
    merge: str


def cases(space: SearchSpace, seed: int, merges: tuple[str, ...]) -> list[Case]:
    rng, last = Random(seed), len(space.cuts) - 1
    found = []
    for _ in range(CASES):
        i = rng.randrange(last)
        j = rng.randrange(i + 1, last + 1)
        merge = rng.choice(merges) if j < last else "concat"
        width_in = (
            space.original_width(i)
            if merge == "project"
            else rng.choice(space.merged_widths(i).tolist())
        )
        found.append(
            Case(
                i,
                j,
                width_in,
                rng.randrange(len(space.depths(i, j))),
                rng.randrange(len(space.widths(j))),
                merge,
            )
        )
    return found


def unit_number(first: Array, rest: TailCosts, case: Case) -> int:
    """The number of a branch's first unit, which all depths may share."""
    return int(np.broadcast_to(first, rest.macs.shape)[case.depth, case.width])


def tabled(tables: CostTables, case: Case, share: int) -> tuple[dict[str, float], float, float]:
    """Microseconds on each processor, MACs and parameters, as the tables say."""
    space, (d, w) = tables.space, (case.depth, case.width)
    rest = tables.tail_costs(case.i, case.j, case.merge)
    kind = 0
    if case.merge == "project":
        first = tables.projected_head_costs(case.i, case.j)
        at: tuple[int, ...] = (unit_number(rest.projected_first, rest, case),)
        last = tables.adapted_tail(case.i, case.j, share)
    else:
        front = tables.head_costs(case.i)
        first, at = front.costs, (front.row(case.width_in), unit_number(rest.first, rest, case))
        last = CostArrays(rest.exit_us, rest.macs, rest.params)
        if space.layout_model.blocked:
            kind = int(tables.needs_no_adapter(case.i)[at])
    us: dict[str, float] = {}
    for p in space.processors:
        behind_us = float(rest.us[p][kind, d, w]) + float(last.latency_us[p][kind, d, w])
        us[p] = float(first.latency_us[p][at]) + behind_us
    macs, params = float(last.macs[d, w]), float(last.params[d, w])
    return us, macs + float(first.macs[at]), params + float(first.params[at])


def check_branch(tables: CostTables, case: Case) -> bool:
    """Whether there is such a branch; a finite price is the price of the lowered branch."""
    space, rest = tables.space, tables.tail_costs(case.i, case.j)
    branch = Branch("cpu", int(rest.depths[case.depth]), int(rest.widths[case.width]))
    segment = Segment(space.cuts[case.i].name, space.cuts[case.j].name, (branch,), case.merge)
    share = equal_slices(space.original_width(case.j), 2)[0]
    us, macs, params = tabled(tables, case, share)
    if not np.isfinite(list(us.values())).all():
        return False
    try:
        graph = lower_branch(space.analysis, segment, branch, case.width_in, share).graph
    except BadPlan as refused:
        pytest.fail(f"priced but refused: {case}, {refused}")
    assert macs == pytest.approx(graph.macs, rel=1e-9), case
    assert params == pytest.approx(graph.params, rel=1e-9), case
    for processor in space.processors:
        lowered_us = space.cost_model.estimate_graph(graph, processor).latency_us
        assert us[processor] == pytest.approx(lowered_us, rel=1e-9), (case, processor)
    return True


def check_space(
    graph: Graph,
    soc: Soc,
    steps: int | None,
    seed: int,
    merges: tuple[str, ...] = ("concat", "project"),
) -> int:
    """How many branches there were."""
    space = SearchSpace(
        NetworkAnalysis(graph),
        CostModel(soc, "nearest"),
        PROCESSORS,
        SegmentLimits(min_depth=0.2, min_width=0.2),
        steps,
        merges,
    )
    tables = CostTables(space)
    return sum(check_branch(tables, case) for case in cases(space, seed, merges))


def captured(recipe: tuple[tuple[Step, ...], bool]) -> Graph:
    return capture(network(*recipe).eval(), torch.zeros(1, 3, 16, 16), "net")


def toy(rng: Random) -> Graph:
    stages = tuple(
        (rng.choice((8, 12, 16, 24, 32)), rng.randint(1, 3)) for _ in range(rng.randint(1, 2))
    )
    return residual(stages, 16, rng.choice((8, 16)), rng.random() < 0.6)


def pricings(blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often units are priced for all tables of a stage of so many equal blocks."""
    counted = Counter[str]()
    price = UnitCostModel.costs

    def count(unit: UnitCostModel, *args: Any, **kwargs: Any) -> CostArrays:
        counted["units"] += 1
        return price(unit, *args, **kwargs)

    graph = NetworkAnalysis(residual(((32, blocks),)))
    space = SearchSpace(graph, CostModel(chip()), PROCESSORS, SegmentLimits())
    tables = CostTables(space)
    with monkeypatch.context() as patch:
        patch.setattr(UnitCostModel, "costs", count)
        for i, j in combinations(range(len(space.cuts)), 2):
            tables.head_costs(i)
            tables.tail_costs(i, j)
            tables.projected_head_costs(i, j)
    return counted["units"]


def test_equal_units_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < pricings(8, monkeypatch) == pricings(5, monkeypatch)


@pytest.mark.parametrize("make", [mi9, chip], ids=["mi9", "rate"])
@pytest.mark.parametrize("seed", range(20))
def test_a_branch_of_a_toy_costs_what_its_tables_say(make: object, seed: int) -> None:
    rng = Random(seed)
    assert check_space(toy(rng), make(), rng.choice((None, 3, 5)), seed) > CASES / 2  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("make", [mi9, chip], ids=["mi9", "rate"])
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@example(((Step("residual", 24, 3), Step("dense", 16, 2)), False), 5, 0)
@example(((Step("shuffle", 24, 2), Step("dense", 16, 2)), True), None, 16)
@example(
    ((Step("dense", 16, 2),), True), None, 0
)  # a pool behind 18 channels, which are on no granule
@given(recipes, st.sampled_from((None, 3, 5)), st.integers(0, 1000))
def test_a_branch_of_any_network_costs_what_its_tables_say(
    make: object, recipe: tuple[tuple[Step, ...], bool], steps: int | None, seed: int
) -> None:
    check_space(captured(recipe), make(), steps, seed, ("concat", "project"))  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("make", [mi9, chip], ids=["mi9", "rate"])
@pytest.mark.parametrize(
    "kind",
    ["conv", "residual", "inverted", "depthwise", "squeeze", "dense", "inception", "layernorm"],
)
def test_a_projected_branch_costs_what_its_tables_say(make: object, kind: str) -> None:
    for width in (16, 24, 32):
        check_space(captured(((Step(kind, width, 2),), False)), make(), 5, width, ("project",))  # type: ignore[operator]


def test_a_projected_branch_that_starts_with_a_pool_costs_what_its_tables_say() -> None:
    graph = captured(((Step("grouped", 32, 1), Step("split", 24, 1)), True))
    space = SearchSpace(
        NetworkAnalysis(graph), CostModel(chip()), PROCESSORS, SegmentLimits(min_width=0.2)
    )
    tables, names = CostTables(space), [cut.name for cut in space.cuts]
    i, j = names.index("blocks"), names.index("pool")
    for width in range(len(space.widths(j))):
        check_branch(tables, Case(i, j, space.original_width(i), 0, width, "project"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_branch_of_a_toy_costs_what_its_tables_say_where_maps_are_blocked(seed: int) -> None:
    assert check_space(toy(Random(seed)), blocked(), 5, seed) > CASES / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conv", "residual", "inverted", "depthwise", "squeeze"])
@pytest.mark.parametrize("width", [16, 32])
def test_no_layout_is_guessed_where_maps_are_blocked(kind: str, width: int) -> None:
    """What branches read decides which layouts their units leave; few channels fill no block."""
    graph = captured(((Step(kind, width, 2), Step("residual", width, 1)), False))
    both = ("concat", "project")
    assert check_space(graph, blocked(), 5, width, both) > CASES / 2


@pytest.mark.parametrize("steps", [None, 3])
def test_the_original_costs_what_its_units_cost(steps: int | None) -> None:
    analysis, cost_model = NetworkAnalysis(residual(((32, 3), (64, 2)))), CostModel(mi9())
    space = SearchSpace(analysis, cost_model, PROCESSORS, SegmentLimits(), steps)
    us, macs = CostTables(space).original(0, len(space.cuts) - 1)
    assert macs == analysis.graph.macs
    assert us == pytest.approx(
        {p: cost_model.estimate_graph(analysis.graph, p).latency_us for p in PROCESSORS}
    )


@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_one_processor_costs_what_its_tables_say(seed: int, is_blocked: bool) -> None:
    one = random_instance(seed)
    space = space_of(replace(one, soc=blocked()) if is_blocked else one)
    tables = CostTables(space)
    for option in segment_options(tables):
        if option.branched:
            continue
        behind, costs = option.branch_tables[0], single_costs([option])
        for row, width in enumerate(space.merged_widths(option.i).tolist()):
            (entry,) = option.entry_costs(width) or []
            first = behind.first[-1]
            us = entry.us[first] + option.times_behind(behind, width)[-1] + option.sync_us
            assert costs.us[0, row] == pytest.approx(us)
            assert costs.macs[0, row] == pytest.approx(entry.macs[first] + behind.macs[-1])
            assert costs.params[0, row] == pytest.approx(entry.params[first] + behind.params[-1])


def test_widths_are_on_the_granule_and_end_with_the_original() -> None:
    space = SearchSpace(
        NetworkAnalysis(residual(((32, 2), (64, 2)))),
        CostModel(chip()),
        PROCESSORS,
        SegmentLimits(min_width=0.25),
    )
    assert space.widths(2).tolist() == [8, 16, 24, 32]
    assert space.widths(len(space.cuts) - 1).tolist() == [10]
    assert set(space.merged_widths(2).tolist()) == set(range(16, 72, 8)), (
        "sums of two, and the original"
    )
    narrow = replace_steps(space, 3)
    assert len(narrow.widths(4)) == 3


def replace_steps(space: SearchSpace, steps: int) -> SearchSpace:
    return SearchSpace(space.analysis, space.cost_model, space.processors, space.limits, steps)
