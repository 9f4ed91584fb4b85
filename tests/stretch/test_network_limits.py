"""Bounds of the search: never above what they bound, and nothing that is hopeful is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brute_force import (
    NETWORK,
    BruteForce,
    Instance,
    all_combinations,
    chip,
    random_instance,
)

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.bounds import cost_to_go as bounds_over_options
from nnstretch.stretch.search.bounds import entry_bins
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go, tighten_loose
from nnstretch.stretch.search.bounds.cutting_planes import CuttingPlanes
from nnstretch.stretch.search.bounds.entry_bins import width_bins
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.bounds.reduced_costs import excess_by_width
from nnstretch.stretch.search.bounds.relaxations import known_relaxations
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.label_setting.combinations import candidate_combinations
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.options.segment_option import BranchCombinations, SegmentOption
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.search_schedule import SearchSchedule
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace

SEEDS = range(40)
NO_LABELS = replace(SearchSchedule(), phases=())


def space_of(one: Instance) -> SearchSpace:
    return SearchSpace(
        NetworkAnalysis(one.graph),
        CostModel(one.soc),
        one.processors,
        one.limits,
        one.width_steps,
        one.merges,
    )


def random_prices(rng: Random, space: SearchSpace) -> Multipliers:
    """Up to three times what a MAC and a parameter cost on the fastest processor."""
    us, macs = CostTables(space).original(0, len(space.cuts) - 1)
    each, all_us = min(us.values()) / macs, min(us.values())
    return Multipliers(
        rng.choice((0.0, 3 * each * rng.uniform(-1, 1))),
        rng.choice((0.0, 3 * all_us / space.analysis.graph.params * rng.random())),
        rng.choice((0.0, all_us * rng.random())),
    )


def reached(option: SegmentOption, combinations: BranchCombinations, values: CostToGo) -> Array:
    """Reduced latency of combinations, and the bound on what is left behind them."""
    reduced = values.multipliers.reduced(
        combinations.latency_us, combinations.macs, combinations.params, option.meetings
    )
    if option.j == len(option.space.cuts) - 1:
        return reduced
    return np.asarray(
        reduced
        + values.at[option.j][
            np.searchsorted(option.space.merged_widths(option.j), combinations.width)
        ]
    )


def crossings(
    every: list[SegmentOption], space: SearchSpace
) -> Iterator[tuple[int, int, int, BranchCombinations]]:
    """Every lane at every width it can read.

    Its number, the width and its number, and all admissible combinations.
    """
    for number, option in enumerate(every):
        for row, width in enumerate(space.merged_widths(option.i).tolist()):
            combinations = all_combinations(option, width)
            if combinations is not None and len(combinations):
                yield number, row, width, combinations


def slack(value: float) -> float:
    """Rounding of sums that are taken in another order."""
    return 1e-9 * (1 + abs(value))


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
    loose = list(values.loose)
    everywhere = {number: np.full(len(values.options[number]), True) for number in loose}
    tighten_loose(space, every, values, loose, everywhere)
    assert not values.loose
    for number, row, _, combinations in crossings(every, space):
        if number in everywhere:
            least = float(reached(every[number], combinations, values).min())
            assert values.options[number][row] <= least + slack(least), every[number].name


@pytest.mark.parametrize("finest", [1.0, 1.3, 4.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_is_better_than_its_bound(seed: int, finest: float) -> None:
    space = space_of(random_instance(seed))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), finest
    )


@pytest.mark.parametrize("finest", [1.3, 4.0])
@pytest.mark.parametrize("seed", range(1, 40, 2))
def test_no_combination_is_better_than_its_bound_where_few_widths_share_bins(
    seed: int, finest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    monkeypatch.setattr(bounds_over_options, "WINDOW_FROM", 0)
    space = space_of(random_instance(seed, neighbours=seed % 4 == 1))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), finest
    )


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_no_combination_is_better_than_its_bound_that_began_with_wider_bins(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    monkeypatch.setattr(bounds_over_options, "WINDOW_FROM", 0)
    space = space_of(random_instance(seed, neighbours=seed % 4 == 0))
    prices = random_prices(Random(seed), space)
    check_bounds(
        space, Multipliers(abs(prices.per_mac), prices.per_param, prices.per_meeting), 1.05, 4.0
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_is_better_than_its_bound_where_macs_are_dear(seed: int) -> None:
    space = space_of(random_instance(seed, neighbours=seed % 2 == 0))
    check_bounds(space, Multipliers(-abs(random_prices(Random(seed), space).per_mac)), 1.0)


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


def at_least_equal(
    combinations: BranchCombinations, others: BranchCombinations, bounds: NetworkLimits
) -> Array:
    """Over (pick, other): whether the other hands over as much and is no worse in latency and in
    all that is bounded.
    """
    fine = (combinations.width[:, None] == others.width) & (
        others.latency_us <= combinations.latency_us[:, None] + 1e-9
    )
    if bounds.min_macs > 0:
        fine &= others.macs >= combinations.macs[:, None]
    if bounds.max_macs < math.inf:
        fine &= others.macs <= combinations.macs[:, None]
    if bounds.min_params > 0:
        fine &= others.params >= combinations.params[:, None] - 1e-6
    return np.asarray(fine)


@pytest.mark.parametrize("most", [10**9, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_combinations_within_the_limits_are_kept_or_dominated(seed: int, most: int) -> None:
    """Below the room, and below what was left out, each combination is kept or another is at least
    equal.
    """
    rng, one = Random(seed), random_instance(seed)
    space = space_of(one)
    every = list(segment_options(CostTables(space)))
    values = cost_to_go(space, every, random_prices(rng, space), None, 1.05)
    for number, _, width, combinations in crossings(every, space):
        option, after = every[number], reached(every[number], combinations, values)
        room_us = (
            float(rng.choice((after.min(), np.median(after), after.max()))) * (1 + 1e-9) + 1e-6
        )
        relaxations = known_relaxations(number, option, values, width)
        options, left_out_us = candidate_combinations(
            option, width, values, relaxations, one.bounds, room_us, most
        )
        hopeful = combinations.take(
            np.flatnonzero(
                after
                <= min(
                    room_us - 1e-6,
                    left_out_us - slack(left_out_us) if left_out_us < math.inf else math.inf,
                )
            )
        )
        if not len(hopeful):
            continue
        assert options is not None, option.name
        found = option.branch_totals(width)
        assert found is not None
        kept = option.admissible_combinations(width, found, options)
        assert at_least_equal(hopeful, kept, one.bounds).any(axis=1).all(), option.name
        assert len(options[0]) <= most or not option.branched


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 3), st.data())
def test_undominated_is_what_pairs_say(columns: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*[st.integers(0, 3)] * (2 + columns)), max_size=25))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 2 + columns)
    group, latency = table[:, 0], table[:, 1].astype(float)
    kept = undominated(group, latency, [table[:, 2 + c].astype(float) for c in range(columns)])

    def beats(a: int, b: int) -> bool:
        return bool(
            group[a] == group[b]
            and latency[a] <= latency[b]
            and (table[a, 2:] >= table[b, 2:]).all()
        )

    assert len(set(kept.tolist())) == len(kept)
    assert not any(beats(a, b) for a in kept for b in kept if a != b)
    assert all(any(beats(a, b) for a in kept) for b in range(len(rows)))


@pytest.mark.parametrize(
    ("limits", "priced"),
    [
        (NetworkLimits(), (False, False, False)),
        (NetworkLimits(min_macs=1e6), (True, False, False)),
        (NetworkLimits(max_macs=1e6), (True, False, False)),
        (NetworkLimits(min_params=1e5), (False, True, False)),
        (NetworkLimits(min_macs=1e6, min_params=1e5), (True, False, False)),
        (NetworkLimits(min_macs=1e6, min_meetings=2), (True, False, True)),
    ],
)
def test_what_is_limited_has_a_price_from_the_first_round_on(
    limits: NetworkLimits, priced: tuple[bool, bool, bool]
) -> None:
    """Without one, bounds know nothing of a limit on parameters and labels must prove it all."""
    planes = CuttingPlanes(limits, Multipliers(3e-6, 3e-3, 300.0), SearchSchedule())
    first = planes.first(0.9e6)
    assert (first.per_mac > 0, first.per_param > 0, first.per_meeting > 0) == priced
    assert (planes.first(1.1e6).per_mac > 0) == (limits.max_macs < math.inf)
    assert (planes.rounds() > 1) == any(priced)


def test_options_that_cannot_be_best_have_no_tight_bound() -> None:
    loose = branched = 0
    for seed in SEEDS:
        space = space_of(random_instance(seed))
        options = list(segment_options(CostTables(space)))
        values = cost_to_go(space, options, Multipliers(), None, 1.05)
        branched += sum(options[number].branched for number in values.options)
        loose += len(values.loose)
    assert 0.05 * branched < loose < branched


def test_limits_that_do_not_bind_are_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without label searches, more is proven where the bound without limits is looked at, too."""

    def proven(seed: int) -> bool:
        tables = CostTables(space_of(random_instance(seed)))
        options, limits = tuple(segment_options(tables)), NetworkLimits(min_macs=1, min_params=1)
        return ExactSearch(tables, options, limits, 0.0, schedule=NO_LABELS).run().is_proven(0.0)

    with_it = {seed for seed in SEEDS if proven(seed)}
    monkeypatch.setattr(ExactSearch, "limits_seem_slack", lambda _self: False)
    assert with_it > {seed for seed in SEEDS if proven(seed)}


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
