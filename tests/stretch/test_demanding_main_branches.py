"""A main branch that needs more MACs than a segment needs in all is not lost by the search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.brute_force import BruteForce
from support.optimal_plans import check_is_optimal
from support.search_instances import Instance, random_instance

from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits, branched_segments


def demanding(seed: int, beta: float, segment_macs: float) -> Instance:
    limits = SegmentLimits(alpha=3.0, beta=beta, main_macs=0.9, segment_macs=segment_macs)
    return replace(random_instance(seed), limits=limits, bounds=NetworkLimits())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 17, 131, 168, 219])
def test_the_only_main_branch_is_kept_beside_a_faster_one_that_is_none(seed: int) -> None:
    one = demanding(seed, 1.5, 0.3)
    optimum = check_is_optimal(one, BruteForce(one).best())
    assert optimum is not None
    assert branched_segments(optimum.trial)


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_what_brute_force_finds(seed: int) -> None:
    one = demanding(seed, 1.0, 0.8)
    check_is_optimal(one, BruteForce(one).best())
