"""Limits on memory and parameters are kept, and what is left is still optimal."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
from support.brute_force import BruteForce
from support.optimal_plans import check_is_optimal
from support.search_instances import NETWORK, Instance, chip, random_instance

from nnstretch.errors import NoPlan
from nnstretch.stretch.search.constraints import (
    SegmentLimits,
    constraints_of,
)
from nnstretch.stretch.search.search import MAX_PARAMS, search


@cache
def free_weights(seed: int) -> tuple[str, int] | None:
    """The processor that holds most bytes in an instance's best plan; None where none branches."""
    one = random_instance(seed)
    answer = one.answer()
    if answer is None or not any(s.branched for s in answer.trial.plan.segments):
        return None
    by_processor = answer.trial.weight_bytes(one.soc.element_bytes)
    return max(by_processor.items(), key=lambda item: item[1])


def forgetful(seed: int, share: float) -> Instance | None:
    """An instance where one processor has memory for less than the best plan wants from it."""
    weights = free_weights(seed)
    if weights is None:
        return None
    one, (name, wanted_bytes) = random_instance(seed), weights
    processors = tuple(
        replace(p, memory_bytes=int(share * wanted_bytes)) if p.name == name else p
        for p in one.soc.processors
    )
    return replace(one, soc=replace(one.soc, processors=processors))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_memory_that_binds_is_kept_to_and_the_rest_is_still_optimal(share: float) -> None:
    checked = 0
    for seed in range(40):
        one = forgetful(seed, share)
        if one is not None:
            check_is_optimal(one, BruteForce(one).best())
            checked += 1
        if checked == 3:
            return
    pytest.fail(f"only {checked} instances have memory that binds")


@pytest.mark.slow
def test_alternatives_fit_memory_too_and_where_nothing_fits_that_is_said() -> None:
    free = search(NETWORK, chip(), ("cpu", "dsp"), top=3)
    held = free.plans[0].trial.weight_bytes(1)
    assert held["dsp"] > 0
    soc = chip()
    tight = replace(
        soc,
        processors=(soc.processors[0], replace(soc.processors[1], memory_bytes=held["dsp"] // 2)),
    )
    for found in search(NETWORK, tight, ("cpu", "dsp"), top=3).plans:
        assert constraints_of(SegmentLimits(), tight)[-1](found.trial) is None
    nothing = replace(soc, processors=tuple(replace(p, memory_bytes=10) for p in soc.processors))
    with pytest.raises(NoPlan, match=r"1e-05M parameters on cpu, 1e-05M parameters on dsp"):
        search(NETWORK, nothing, ("cpu", "dsp"))


@cache
def branched_params(seed: int) -> int | None:
    """Parameters of an instance's best plan without bounds; None where it branches nowhere."""
    answer = unbounded(seed).answer()
    if answer is None or not any(s.branched for s in answer.trial.plan.segments):
        return None
    return answer.trial.params


def unbounded(seed: int) -> Instance:
    """An instance that asks for no least parameters or meeting points."""
    one = random_instance(seed)
    return replace(one, bounds=replace(one.bounds, min_params=0.0, min_meetings=0))


@pytest.mark.parametrize("share", [pytest.param(0.85, marks=pytest.mark.slow), 0.97])
def test_parameters_that_are_bounded_from_above_leave_the_optimum_below(share: float) -> None:
    binding = 0
    for seed in range(14):
        params = branched_params(seed)
        if params is not None:
            bound = replace(unbounded(seed), max_params=share * params)
            answer = check_is_optimal(bound, BruteForce(bound).best())
            assert answer is None or answer.trial.params <= bound.max_params
            binding += answer is not None
    assert binding >= 3


def test_parameters_are_bounded_by_default() -> None:
    limits = SegmentLimits(alpha=5.0, beta=2.0)
    free = search(NETWORK, chip(0.2), ("cpu", "dsp"), limits, max_params=math.inf)
    usual = search(NETWORK, chip(0.2), ("cpu", "dsp"), limits)
    assert usual.plans[0].trial.params <= MAX_PARAMS * NETWORK.params
    assert free.plans[0].trial.latency_us <= usual.plans[0].trial.latency_us
    most = search(
        NETWORK, chip(0.2), ("cpu", "dsp"), limits, max_params=0.9 * NETWORK.params, top=3
    )
    assert all(found.trial.params <= 0.9 * NETWORK.params for found in most.plans)
