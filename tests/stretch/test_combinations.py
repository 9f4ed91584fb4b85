"""Combinations within the limits are kept or dominated."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.search_bounds import (
    NEEDS_LIBRARY,
    crossings,
    loosened,
    random_prices,
    reached,
    search_by_arrays,
    slack,
    space_of,
    with_dear_copies,
)
from support.search_instances import Instance, random_instance

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.cutting_planes import CuttingPlanes
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.bounds.relaxations import known_rows
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting import branch_join
from nnstretch.stretch.search.label_setting.combinations import candidate_combinations
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.label_setting.small_sums import SmallSums
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.search_schedule import SearchSchedule
from nnstretch.stretch.search.space.cost_tables import CostTables

SEEDS = range(40)
BOTH_WAYS = [pytest.param(False, marks=NEEDS_LIBRARY), True]


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


def priced_limits(prices: Multipliers, bounds: NetworkLimits) -> Multipliers:
    """Return prices of what is limited, as a search has them: else work is worth nothing."""
    per_mac = prices.per_mac
    if bounds.min_macs <= 0:
        per_mac = min(0.0, per_mac)
    if bounds.max_macs == math.inf:
        per_mac = max(0.0, per_mac)
    return replace(
        prices, per_mac=per_mac, per_param=prices.per_param if bounds.min_params > 0 else 0.0
    )


@pytest.mark.parametrize("by_arrays", BOTH_WAYS)
@pytest.mark.parametrize("most", [10**9, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_combinations_within_the_limits_are_kept_or_dominated(
    seed: int, most: int, by_arrays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the room, and below what was left out, each combination is kept or another is at least
    equal.
    """
    if by_arrays:
        search_by_arrays(monkeypatch)
    check_combinations(random_instance(seed), Random(seed), most)


@pytest.mark.parametrize("by_arrays", BOTH_WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_combination_whose_copies_take_too_long_dominates_none(
    seed: int, by_arrays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of (96, 128) channels and of (48, 176) differ, though both merge into as many."""
    if by_arrays:
        search_by_arrays(monkeypatch)
    monkeypatch.setattr(branch_join, "DOMINANCE_FROM", 0)
    rng = Random(seed)
    one = with_dear_copies(loosened(random_instance(seed)), rng)
    least = NetworkLimits(min_macs=rng.choice((0.0, 0.8 * one.graph.macs)))
    check_combinations(replace(one, width_steps=12, bounds=least), rng, 10**9)


def check_combinations(one: Instance, rng: Random, most: int) -> None:
    """Compare candidates with all combinations, at every merged width of every option."""
    space = space_of(one)
    every = list(segment_options(CostTables(space)))
    prices = priced_limits(random_prices(rng, space), one.bounds)
    values = cost_to_go(space, every, prices, None, 1.05)
    for number, _, width, combinations in crossings(every, space):
        option, after = every[number], reached(every[number], combinations, values)
        room_us = (
            float(rng.choice((after.min(), np.median(after), after.max()))) * (1 + 1e-9) + 1e-6
        )
        ways = known_rows(number, option, values, width)
        totals = option.branch_totals(width)
        assert totals is not None
        options, left_out_us = candidate_combinations(
            option, width, values, ways, one.bounds, room_us, most
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
        kept = option.admissible_combinations(width, totals, options)
        assert at_least_equal(hopeful, kept, one.bounds).any(axis=1).all(), option.name
        assert len(options[0]) <= most or not option.branched


@pytest.mark.slow
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


@pytest.mark.parametrize("seed", range(8))
def test_undominated_among_many_rows_is_what_pairs_say(seed: int) -> None:
    draw = np.random.default_rng(seed)
    group, latency = draw.integers(0, 2, 400), draw.integers(0, 60, 400).astype(float)
    resources = [latency + draw.integers(0, 12, 400) for _ in range(2)]
    kept = undominated(group, latency, resources)
    beats = (group[:, None] == group) & (latency[:, None] <= latency)
    for resource in resources:
        beats &= resource[:, None] >= resource
    assert len(kept) > 80
    assert beats[kept].any(axis=0).all()
    assert (beats[np.ix_(kept, kept)] == np.eye(len(kept), dtype=bool)).all()


SUMS = st.lists(st.sampled_from((-2.0, 0.0, 1.0, 3.0, np.inf)), max_size=30)


@given(SUMS, SUMS, st.sampled_from((-1.0, 0.0, 2.0, 4.0, np.inf)), st.integers(1, 50))
def test_small_sums_are_all_of_them_in_slices(
    first: list[float], second: list[float], most: float, size: int
) -> None:
    sums = SmallSums.up_to(np.array(first), np.array(second), most)
    slices = list(sums.slices(size))
    pairs = [pair for s in slices for pair in zip(s[0].tolist(), s[1].tolist(), strict=True)]
    expected = [(a, b) for a in range(len(first)) for b in range(len(second))]
    expected = [(a, b) for a, b in expected if first[a] + second[b] <= most]
    assert sorted(pairs) == expected
    assert len(sums) == len(expected)
    assert all(len(rows) <= size + len(second) for rows, _ in slices)


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


@pytest.mark.parametrize("limits", [NetworkLimits(min_params=1e5), NetworkLimits(max_macs=1e6)])
@pytest.mark.parametrize("share", [-1.4, 1.4])
def test_multipliers_beyond_the_grid_are_followed_by_those_at_its_end(
    limits: NetworkLimits, share: float
) -> None:
    """Multipliers around the best may climb past the largest, and others begin there."""
    largest = Multipliers(3e-6, 3e-3, 300.0)
    planes = CuttingPlanes(limits, largest, SearchSchedule())
    planes.planes.append((1000.0, 1e6, 1e5, 1))
    beyond = Multipliers(
        share * largest.per_mac if limits.max_macs < math.inf else 0.0,
        abs(share) * largest.per_param if limits.min_params else 0.0,
    )
    planes.bounds_us[beyond] = 900.0
    proposal, _ = planes.propose()
    assert abs(proposal.per_mac) <= largest.per_mac
    assert proposal.per_param <= largest.per_param
