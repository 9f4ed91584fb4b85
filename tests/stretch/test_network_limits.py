"""Bounds of the search: never above what they bound, and nothing that is hopeful is lost."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.brute_force import BruteForce
from support.search_bounds import crossings, random_prices, reached, slack, space_of
from support.search_instances import NETWORK, Instance, chip, random_instance

from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.bounds import entry_bins
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.entry_bins import width_bins
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.bounds.reduced_costs import excess_by_width
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.search_schedule import SearchSchedule
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace

SEEDS = range(40)


NO_LABELS = replace(SearchSchedule(), phases=(), limited_pair_bins=SearchSchedule().limited_bins)
"""With bins that leave something to prove on networks this small."""


def check_bounds(
    space: SearchSpace, prices: Multipliers, finest: float, first: float | None = None
) -> None:
    """No combination is better than its bound, also where bounds of wider bins came `first`."""
    every = list(segment_options(CostTables(space)))
    before = None if first is None else cost_to_go(space, every, prices, None, first)
    values = cost_to_go(space, every, prices, None, finest, before=before)
    for number, row, _, combinations in crossings(every, space):
        least, bound = (
            float(reached(every[number], combinations, values).min()),
            float(values.options[number][row]),
        )
        assert bound <= least + slack(least), every[number].name
        assert values.at[every[number].i][row] <= bound


@pytest.mark.slow
@pytest.mark.parametrize("finest", [1.0, 1.3, 4.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_is_better_than_its_bound(seed: int, finest: float) -> None:
    space = space_of(random_instance(seed))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), finest
    )


@pytest.mark.slow
@pytest.mark.parametrize("finest", [1.3, 4.0])
@pytest.mark.parametrize("seed", range(1, 40, 2))
def test_no_combination_is_better_than_its_bound_where_few_widths_share_bins(
    seed: int, finest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    space = space_of(random_instance(seed, neighbours=seed % 4 == 1))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), finest
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_no_combination_is_better_than_its_bound_that_began_with_wider_bins(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    space = space_of(random_instance(seed, neighbours=seed % 4 == 0))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), 1.05, 4.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_is_better_than_its_bound_where_macs_are_dear(seed: int) -> None:
    space = space_of(random_instance(seed, neighbours=seed % 2 == 0))
    check_bounds(space, Multipliers(-abs(random_prices(Random(seed), space).per_mac)), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_is_better_than_the_bound_of_the_whole(seed: int) -> None:
    rng, one = Random(seed), random_instance(seed)
    space, best = space_of(one), BruteForce(one).best()
    for _ in range(3):
        prices = random_prices(rng, space)
        if best is not None and (prices.per_mac >= 0 or one.bounds.max_macs < math.inf):
            finest = rng.choice((1.05, 1.3)) if prices.per_mac >= 0 else 1.0
            values = cost_to_go(
                space, list(segment_options(CostTables(space))), prices, None, finest
            )
            assert float(values.at[0][0]) + prices.constant(one.bounds) <= best[0] + slack(best[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_the_best_plan_survives_what_reduced_costs_leave_out(seed: int) -> None:
    """Segments, at the widths that they read, which no plan as good as the best can use."""
    one = replace(random_instance(seed), bounds=NetworkLimits())
    space, best = space_of(one), BruteForce(one).best()
    tables = CostTables(space)
    options = tuple(segment_options(tables))
    path = ExactSearch(tables, options, NetworkLimits(), 0.0).run().best
    assert best is not None
    assert path is not None
    assert path.latency_us == pytest.approx(best[0], rel=1e-9)
    values = cost_to_go(space, options, Multipliers(), None, 4.0)
    room_us = best[0] - float(values.at[0][0]) + slack(best[0])
    excess = excess_by_width(options, values)
    usable = {number: excess_us <= room_us for number, excess_us in excess.items()}
    width = space.original_width(0)
    for number, choice in path.steps:
        option, totals = options[number], options[number].branch_totals(width)
        assert usable[number][space.merged_row(option.i, width)], option.name
        assert totals is not None
        rows = tuple(np.array([row]) for row in choice)
        width = int(option.admissible_combinations(width, totals, rows).width[0])
    finer = cost_to_go(space, options, Multipliers(), list(usable), 1.0, usable)
    assert float(finer.at[0][0]) <= best[0] + slack(best[0])


@pytest.mark.slow
def test_bounds_are_not_idle() -> None:
    """At no price, the bound of the whole is most of the best latency where nothing else is asked
    for.
    """
    shares = []
    for seed in SEEDS:
        one = random_instance(seed)
        best = BruteForce(
            Instance(one.graph, one.soc, one.limits, NetworkLimits(), one.width_steps, one.merges)
        ).best()
        assert best is not None
        space = space_of(one)
        shares.append(
            float(
                cost_to_go(
                    space, list(segment_options(CostTables(space))), Multipliers(), None, 1.015
                ).at[0][0]
            )
            / best[0]
        )
    assert max(shares) <= 1 + 1e-9
    assert np.median(shares) > 0.9


@pytest.mark.parametrize(("seed", "share"), [(7, 0.97), (19, 0.985)])
def test_bounds_are_tight_where_merged_channels_are_dear(seed: int, share: float) -> None:
    """Branches narrow enough to merge cheaply lack the MACs that their segment demands."""
    one = random_instance(seed)
    dear = replace(one.soc.merge, us_per_kib=8 * one.soc.merge.us_per_kib + 6)
    one = replace(one, soc=replace(one.soc, merge=dear), bounds=NetworkLimits())
    space, best = space_of(one), BruteForce(one).best()
    assert best is not None
    options = list(segment_options(CostTables(space)))
    bound_us = float(cost_to_go(space, options, Multipliers(), None, 1.0).at[0][0])
    assert share * best[0] <= bound_us <= best[0] + slack(best[0])


def test_bins_far_from_the_original_width_are_finer_where_three_may_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    analysis, limits = NetworkAnalysis(NETWORK), SegmentLimits(min_width=0.1)
    space = SearchSpace(analysis, CostModel(chip()), ("cpu", "gpu", "dsp"), limits)
    i = max(range(1, space.last), key=lambda k: len(space.merged_widths(k)))
    widths, factor = space.merged_widths(i), 1.6
    starts = width_bins(space, i, factor)
    even = [0]
    for k, width in enumerate(widths.tolist()):
        if width > factor * widths[even[-1]]:
            even.append(k)
    assert widths[-1] > 2 * space.original_width(i)
    assert len(starts[widths[starts] > space.original_width(i)]) > len(
        [k for k in even if widths[k] > space.original_width(i)]
    )


@pytest.mark.parametrize("finest", [1.0, 1.05, 1.3])
def test_ranges_cover_all_widths_and_leave_the_original_alone(finest: float) -> None:
    space = space_of(random_instance(3))
    for i in range(len(space.cuts) - 1):
        widths, starts = space.merged_widths(i), width_bins(space, i, finest).tolist()
        full = int(np.searchsorted(widths, space.original_width(i)))
        assert starts[0] == 0
        assert full in starts
        assert full + 1 in (*starts, len(widths))
        for low, high in zip(starts, [*starts[1:], len(widths)], strict=True):
            assert widths[high - 1] <= finest * widths[low] + 1e-9


@pytest.mark.slow
def test_limits_that_do_not_bind_are_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without label searches, more is proven where the bound without limits is looked at, too."""

    def proven(seed: int) -> bool:
        tables = CostTables(space_of(random_instance(seed)))
        options, limits = tuple(segment_options(tables)), NetworkLimits(min_macs=1, min_params=1)
        return ExactSearch(tables, options, limits, 0.0, schedule=NO_LABELS).run().is_proven(0.0)

    with_it = {seed for seed in SEEDS if proven(seed)}
    monkeypatch.setattr(ExactSearch, "limits_seem_slack", lambda _self: False)
    assert with_it > {seed for seed in SEEDS if proven(seed)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 12, 22, 45, 47])
def test_bounds_around_the_best_multipliers_hold_and_rule_out_more(seed: int) -> None:
    one = random_instance(seed)
    tables, best = CostTables(space_of(one)), BruteForce(one).best()
    options = tuple(segment_options(tables))
    search = ExactSearch(tables, options, one.bounds, 0.0, schedule=NO_LABELS).run()
    assert best is not None
    assert not search.is_over
    known, alive = len(search.bounds), len(search.alive)
    search.surround(search.bounds)
    totals_us = [values.total(one.bounds) for values in search.bounds]
    assert max(totals_us) <= best[0] + slack(best[0])
    if seed in (1, 45):
        assert len(search.alive) < alive
    search.surround(search.bounds)
    tried = {values.multipliers for values in search.bounds}
    assert known < len(search.bounds) == len(tried), "no multipliers twice"
