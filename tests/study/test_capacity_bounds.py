"""Which variants are tried, which bounds follow, and how variants become plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.capacity_study import net, stretcher_of
from torch import nn

from nnstretch.errors import BadInput, NoPlan
from nnstretch.stretch import NetworkAnalysis
from nnstretch.study.capacity import bounds as rules
from nnstretch.study.capacity import plans as capacity_plans
from nnstretch.study.capacity.bounds import (
    BranchShare,
    CapacityBounds,
    CapacityPoint,
    branch_shapes,
    lower_bounds,
)

shares = st.sampled_from([0.25, 0.3, 0.5, 0.75, 1.0])


points = st.lists(st.builds(CapacityPoint, shares, shares, st.booleans()), max_size=12)


def test_the_published_pairs_are_among_the_default_variants() -> None:
    pairs = {(shape.main, shape.second) for shape in branch_shapes()}
    assert {
        (BranchShare(0.5, 1.0), BranchShare(0.75, 0.4)),
        (BranchShare(0.5, 1.0), BranchShare(0.3, 1.0)),
        (BranchShare(1.0, 0.5), BranchShare(1.0, 0.3)),
    } <= pairs


@given(st.lists(shares, min_size=1), st.lists(shares, min_size=1))
def test_the_grid_varies_the_second_branch_and_the_first_is_never_smaller(
    depths: list[float], widths: list[float]
) -> None:
    grid = [shape for shape in branch_shapes(depths, widths) if shape.family == "grid"]
    assert {(shape.second.depth, shape.second.width) for shape in grid} == {
        (d, w) for d in depths for w in widths
    }
    assert all(
        (shape.depth, shape.width) == (shape.second.depth, shape.second.width) for shape in grid
    )


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(BadInput, match=r"depths holds .*above 0 and is at most 1"):
        branch_shapes((1.0, bad))
    with pytest.raises(BadInput, match="widths holds"):
        branch_shapes((1.0,), (bad,))


def test_the_bounds_are_the_smallest_shares_inside_which_all_hold() -> None:
    grid = [
        (1.0, 0.75, True),
        (1.0, 0.5, True),
        (1.0, 0.3, False),
        (0.5, 0.75, True),
        (0.5, 0.5, True),
        (0.5, 0.3, False),
    ]
    assert lower_bounds([CapacityPoint(*row) for row in grid]) == CapacityBounds(0.5, 0.5, 4)


def test_a_share_that_holds_below_one_that_fails_does_not_count() -> None:
    assert lower_bounds(
        [
            CapacityPoint(1.0, 0.75, True),
            CapacityPoint(1.0, 0.5, False),
            CapacityPoint(1.0, 0.3, True),
        ]
    ) == CapacityBounds(1.0, 0.75, 1)


def test_of_two_regions_the_one_with_more_variants_is_taken() -> None:
    deep = [CapacityPoint(1.0, w, True) for w in (0.75, 0.5, 0.3)]
    assert lower_bounds(
        [
            *deep,
            CapacityPoint(0.5, 0.75, True),
            CapacityPoint(0.5, 0.5, False),
            CapacityPoint(0.5, 0.3, False),
        ]
    ) == CapacityBounds(1.0, 0.3, 3)


def test_bounds_are_one_where_no_width_holds() -> None:
    assert lower_bounds(
        [CapacityPoint(1.0, 0.75, False), CapacityPoint(0.5, 0.5, True)]
    ) == CapacityBounds(1.0, 1.0, 0)
    assert lower_bounds([]) == CapacityBounds(1.0, 1.0, 0)


@given(points)
def test_no_variant_inside_the_bounds_fails_and_both_shares_were_tried(
    measured: list[CapacityPoint],
) -> None:
    found = lower_bounds(measured)
    inside = [p for p in measured if p.depth >= found.depth and p.width >= found.width]
    if found.supporting_variants:
        assert len(inside) == found.supporting_variants
        assert all(p.holds for p in inside)
        assert found.depth in {p.depth for p in inside}
        assert found.width in {p.width for p in inside}


@given(points)
def test_no_other_pair_of_bounds_admits_more_variants(measured: list[CapacityPoint]) -> None:
    found = lower_bounds(measured)
    for depth in (0.25, 0.3, 0.5, 0.75, 1.0):
        for width in (0.25, 0.3, 0.5, 0.75, 1.0):
            region = [p for p in measured if p.depth >= depth and p.width >= width]
            if all(p.holds for p in region):
                assert len(region) <= found.supporting_variants


@given(points, st.integers(0, 11))
def test_a_variant_that_fails_never_widens_what_is_admitted(
    measured: list[CapacityPoint], at: int
) -> None:
    worse = [replace(p, holds=p.holds and i != at) for i, p in enumerate(measured)]
    assert lower_bounds(worse).supporting_variants <= lower_bounds(measured).supporting_variants


def test_the_margin_is_the_tolerance_and_one_standard_error_of_a_difference() -> None:
    assert rules.accuracy_margin(0.005, [0.0, 0.0], 1) == 0.005
    assert rules.accuracy_margin(0.005, [0.01, 0.01, 0.4], 2) == pytest.approx(0.015)
    assert rules.accuracy_margin(0.005, [0.01, 0.01, 0.4], 8) == pytest.approx(0.010)
    assert rules.seed_deviation([0.9]) == 0.0
    assert rules.seed_deviation([0.8, 1.0]) == pytest.approx(0.1414, abs=1e-4)


def test_exactly_the_margin_below_the_original_still_holds() -> None:
    assert rules.is_within_margin(0.99 - 0.005, 0.99, 0.005)
    assert not rules.is_within_margin(0.9849, 0.99, 0.005)


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_one_image_of_two_hundred_is_half_a_point_wherever_it_is_lost(
    precision: Callable[[float], Any],
) -> None:
    for right in range(1, 201):
        original, less, least = (float(precision((right - n) / 200)) for n in range(3))
        assert rules.is_within_margin(less, original, 0.005)
        assert not rules.is_within_margin(least, original, 0.005)


def test_every_variant_branches_the_stage_and_keeps_stem_and_head() -> None:
    analysis = stretcher_of(net())
    for one in capacity_plans.plan_candidates(analysis, "net", branch_shapes()):
        assert one.shape is not None
        kinds = [segment.segment.branched for segment in one.stretched.segments]
        assert kinds.count(True) == 1
        assert not kinds[0]
        assert not kinds[-1]
        main, second = next(
            s.segment.branches for s in one.stretched.segments if s.segment.branched
        )
        assert isinstance(main.depth, int)
        assert isinstance(second.depth, int)
        assert (main.depth, second.depth) == tuple(
            -int(-4 * share.depth // 1) for share in (one.shape.main, one.shape.second)
        )
        assert not one.refusals


@pytest.mark.slow
def test_shapes_that_make_the_same_network_are_trained_once_under_the_largest_share() -> None:
    found = capacity_plans.plan_candidates(
        stretcher_of(net()), "net", branch_shapes((0.5, 0.4, 0.3), (0.5,))
    )
    grid = [
        one.shape.depth for one in found if one.shape is not None and one.shape.family == "grid"
    ]
    assert grid == [0.5]
    assert len({one.key for one in found}) == len(found)


def test_equal_plans_of_networks_that_differ_inside_have_different_keys() -> None:
    def twice(inner: int) -> NetworkAnalysis:
        return stretcher_of(
            nn.Sequential(
                nn.Conv2d(3, inner, 3),
                nn.ReLU(),
                nn.Conv2d(inner, 4, 3),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
        )

    one, other = (capacity_plans.original_candidate(twice(inner), "net") for inner in (8, 12))
    assert one.stretched.plan == other.stretched.plan
    assert one.key != other.key


def test_a_network_without_a_stage_to_branch_is_refused() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    with pytest.raises(NoPlan, match="no stage of net can be branched"):
        capacity_plans.plan_candidates(stretcher_of(flat), "net", branch_shapes())
