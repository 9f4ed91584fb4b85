"""Weak bounds by sums over units: never above what they bound, and near enough to be of use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.search_bounds import blocked, crossings, options_of, reached, slack, space_of
from support.search_instances import Instance, four_processors, random_instance

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds import cost_to_go as module
from nnstretch.stretch.search.bounds import weak_bounds as weak_bounds_module
from nnstretch.stretch.search.bounds.cost_to_go import (
    affine_minorants,
    alike_by_end,
    cost_to_go,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.bounds.unit_sums import POWER_OFFSETS
from nnstretch.stretch.search.bounds.weak_bounds import (
    BranchSums,
    SumRelaxations,
    lines_behind,
    weak_bounds,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


def groups_alike(options: list[SegmentOption]) -> Iterator[dict[int, SegmentOption]]:
    """Return options by number that share end, processors and merge."""
    for groups in alike_by_end(options, range(len(options))).values():
        for group in groups:
            yield {number: options[number] for number in group}


def all_weak_bounds(options: list[SegmentOption], values: CostToGo) -> dict[int, Array]:
    weak: dict[int, Array] = {}
    for group in groups_alike(options):
        weak |= weak_bounds(group, values)
    return weak


def check_weak_bounds(one: Instance, spoil: bool = False) -> None:
    space = space_of(one)
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    if spoil:
        spoil_values(values, space)
    weak = all_weak_bounds(options, values)
    assert weak
    for number, row, _, combinations in crossings(options, space):
        if number in weak:
            least = float(reached(options[number], combinations, values).min())
            assert weak[number][row] <= least + slack(least), options[number].name


def spoil_values(values: CostToGo, space: SearchSpace) -> None:
    """Give cuts other bounds: some infinite, those of the original widths far from the others."""
    rng = np.random.default_rng(0)
    for i in range(1, space.last):
        at_us = values.at[i] * rng.uniform(0.5, 1.5, len(values.at[i]))
        at_us[rng.random(len(at_us)) < 0.3] = np.inf
        at_us[space.merged_row(i, space.original_width(i))] *= rng.choice([0.0, 1.0, 3.0])
        at_us = np.nan_to_num(at_us, nan=0.0, posinf=np.inf)
        values.at[i] = at_us
        widths, full = space.merged_widths(i), space.original_width(i)
        values.minorants[i] = affine_minorants(widths, at_us, full)


@pytest.mark.parametrize("seed", range(1, 40, 4))
def test_no_combination_is_better_than_its_weak_bound_whatever_follows(seed: int) -> None:
    check_weak_bounds(random_instance(seed), spoil=True)


def test_options_whose_first_units_cannot_all_be_built_have_no_weak_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = space_of(random_instance(3))
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    monkeypatch.setattr(weak_bounds_module, "reads_any_width", lambda tables, i, key: i != 1)
    weak = all_weak_bounds(options, values)
    branched = {n: option for n, option in enumerate(options) if option.branched}
    kept = {n for n, option in branched.items() if option.i != 1 or option.merge == "project"}
    assert set(weak) == kept < set(branched)


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_no_combination_is_better_than_its_weak_bound(seed: int) -> None:
    check_weak_bounds(random_instance(seed, neighbours=seed % 2 == 0))


@pytest.mark.parametrize("main_macs", [0.3, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_no_combination_of_four_processors_is_better_than_its_weak_bound(
    seed: int, main_macs: float
) -> None:
    one = four_processors(seed)
    check_weak_bounds(replace(one, limits=replace(one.limits, main_macs=main_macs)))


def test_nothing_is_bounded_weakly_where_runtimes_copy_between_layouts() -> None:
    space = space_of(blocked(random_instance(3)))
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    assert not all_weak_bounds(options, values)


def dual_us(
    sums: BranchSums, relaxations: SumRelaxations, r: int, n: int, line: tuple[float, float], w: int
) -> float:
    """Return what a relaxation of an option bounds over all tables of its branches, at a width."""
    option, (slope, base_us) = sums.options[n], line
    per_channel = slope + option.merge_us_per_channel
    total_us = base_us + option.sync_us + option.merge_us + float(relaxations.demands_us[r, n])
    costs = option.branch_costs(w)
    assert costs is not None
    for b, (branch, table) in enumerate(zip(costs, option.branch_tables, strict=True)):
        weight = relaxations.weights[r, b, n]
        per_mac = sums.us_per_mac[b, relaxations.offsets[r, b, n], n]
        us = weight * (branch.us - per_mac * branch.macs) + per_channel * table.channels_out
        total_us += float(us.min())
    return total_us


def check_relaxations(sums: BranchSums, relaxations: SumRelaxations, demands: list[float]) -> None:
    """Weights sum to one, what is demanded has its price, and no table bounds less."""
    assert relaxations.weights.sum(axis=1) == pytest.approx(1.0)
    branches, options = np.arange(len(sums.branches))[:, None], np.arange(len(sums.options))
    us_per_mac = sums.us_per_mac[branches, relaxations.offsets, options]
    for r, (weights, prices) in enumerate(zip(relaxations.weights, us_per_mac, strict=True)):
        paid = (weights * prices).max(axis=0) * demands
        assert relaxations.demands_us[r] == pytest.approx(paid)
    for line in lines_behind(sums.options[0], sums.values):
        totals_us = sums.totals_us(relaxations, *line)
        for r in range(len(totals_us)):
            for n, option in enumerate(sums.options):
                width = option.space.original_width(option.i)
                dual = dual_us(sums, relaxations, r, n, line, width)
                assert totals_us[r, n] <= dual + slack(dual)
                if not option.space.branch_depths.droppable_units(option.j)[option.i :].any():
                    assert totals_us[r, n] == pytest.approx(dual, rel=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 7, 9, 11, 19])
def test_sums_over_units_bound_what_tables_of_depths_and_widths_do(seed: int) -> None:
    one = random_instance(seed, neighbours=seed % 2 == 0)
    space = space_of(one)
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    for group in groups_alike(options):
        sums = BranchSums(list(group.values()), values)
        demands = [option.bounds.macs for option in sums.options]
        check_relaxations(sums, sums.balanced(), demands)
        main_demands = [option.bounds.main_macs for option in sums.options]
        check_relaxations(sums, sums.by_main_branch(1), main_demands)


@pytest.mark.parametrize("seed", [1, 2, 7, 9, 11, 19])
def test_narrower_and_wider_inputs_are_bounded_by_what_first_units_add(seed: int) -> None:
    space = space_of(random_instance(seed))
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    for group in groups_alike(options):
        sums = BranchSums(list(group.values()), values)
        relaxations = sums.balanced()
        lines = lines_behind(sums.options[0], values)
        tightest = sums.tightest(relaxations)
        for n, option in enumerate(sums.options):
            bounds = tightest.at_widths(n)
            for width, bound in zip(space.merged_widths(option.i), bounds.tolist(), strict=True):
                if np.isfinite(bound):
                    duals = [
                        dual_us(sums, relaxations, r, n, line, int(width))
                        for r in range(len(relaxations.weights))
                        for line in lines
                    ]
                    assert bound <= max(duals) + slack(bound)


def test_weak_bounds_spare_most_others_and_change_no_bound_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = options_of("torchvision:resnet18")
    branched = sum(option.branched for option in options)
    space = options[0].space
    with_weak = cost_to_go(space, options, Multipliers(), None, 1.05)
    monkeypatch.setattr(module, "alike_by_end", lambda options, numbers: {})
    without = cost_to_go(space, options, Multipliers(), None, 1.05)
    assert with_weak.at[0][0] == pytest.approx(without.at[0][0], rel=1e-3)
    assert len(without.relaxations) == branched > 2 * len(with_weak.relaxations)


@pytest.mark.slow
def test_options_relax_as_well_as_without_weak_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an option that waited is relaxed by serves longer ones; it is no choice of few widths."""
    options = options_of("torchvision:googlenet")
    with_weak = cost_to_go(options[0].space, options, Multipliers(), None, 1.05)
    monkeypatch.setattr(module, "alike_by_end", lambda options, numbers: {})
    without = cost_to_go(options[0].space, options, Multipliers(), None, 1.05)
    assert with_weak.at[0][0] >= without.at[0][0] * (1 - 1e-9)


def test_more_branches_than_can_be_combined_share_their_offsets() -> None:
    space = space_of(four_processors(0))
    options = [option for option in segment_options(CostTables(space)) if option.branched]
    values = cost_to_go(space, options, Multipliers(), None, 1.0)
    (group,) = [g for g in groups_alike(options) if len(next(iter(g.values())).processors) == 4][:1]
    sums = BranchSums(list(group.values()), values)
    combined = weak_bounds(group, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weak_bounds_module, "MOST_COMBINED", 3)
        few = sums.balanced()
        assert len(few.weights) == len(POWER_OFFSETS)
        check_relaxations(sums, few, [option.bounds.macs for option in sums.options])
        for number, bound in weak_bounds(group, values).items():
            assert (bound <= combined[number] * (1 + 1e-9)).all()
