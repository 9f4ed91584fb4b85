"""The optimum of an instance as brute force finds it, and as the search does."""

from __future__ import annotations

from functools import cache

import pytest
from support.brute_force import BruteForce, within
from support.search_instances import Instance, random_instance

from nnstretch.plan import Plan
from nnstretch.stretch.cost.cost_model import estimate_plan
from nnstretch.stretch.lowering.lower import lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import (
    branched_segments,
    constraints_of,
)
from nnstretch.stretch.search.search_result import ScoredPlan


@cache
def least_latency(seed: int) -> tuple[float, Plan] | None:
    """What brute force finds for a random instance."""
    return BruteForce(random_instance(seed)).best()


def check_is_optimal(one: Instance, expected: tuple[float, Plan] | None) -> ScoredPlan | None:
    """The search and brute force agree, and what the search found is what it says."""
    found = one.answer()
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return found
    analysis = NetworkAnalysis(one.graph)
    (latency_us, plan), trial = expected, estimate_plan(lower(analysis, found.trial.plan), one.soc)
    assert estimate_plan(lower(analysis, plan), one.soc).latency_us == pytest.approx(
        latency_us, rel=1e-9
    ), "brute force prices whole plans"
    assert found.trial.latency_us == pytest.approx(latency_us, rel=1e-9)
    assert (trial.latency_us, trial.macs, trial.params) == (
        found.trial.latency_us,
        found.trial.macs,
        found.trial.params,
    )
    assert within(one.bounds, trial.macs, trial.params, len(branched_segments(trial)))
    assert [constraint(trial) for constraint in constraints_of(one.limits, one.soc)] == [None] * 5
    return found
