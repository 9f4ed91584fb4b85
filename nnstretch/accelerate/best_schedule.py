"""Policy `best`: the fastest of all policies, orders and overlaps, and what a climb makes of it.

The same is done for halves of each buffer: what is planned for less memory also fits more, so
doubling a buffer never slows the result, as long as the budget lets all of them be simulated. The
other policies as they are known are simulated whatever the budget, so none of them is faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.climb import Climb, GroupingPlan, Planned
from nnstretch.accelerate.policies import (
    POLICIES,
    ClusterSchedule,
    ScheduleOptions,
    schedule_cluster,
)
from nnstretch.chip.accelerator import Accelerator
from nnstretch.errors import BadPlan

SMALLEST_BYTES = 1024
"""Buffers are halved down to this size."""


def best_schedule(
    chip: ChipGraph,
    rates: ChipRates,
    options: ScheduleOptions,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> ClusterSchedule:
    """Return the fastest schedule that is simulated within a budget of a clock.

    Raises BadPlan where none fits.
    """
    reached: list[tuple[Climb, Planned]] = []
    refusal: BadPlan | None = None
    until_s = clock() + budget_s
    options = replace(options, keep_weights=options.keeps_weights)
    for number, machine in enumerate(smaller_machines(rates.accelerator)):
        sized = replace(rates, accelerator=machine)
        try:
            start = best_candidate(chip, sized, options, until_s, number == 0, clock)
        except BadPlan as error:
            refusal = refusal or error
            if not reached and number > 2:
                break
            continue
        if start is None:
            break
        # On the machine itself half of the time is for the climb, half for smaller plans.
        climb = Climb(chip, sized, until_s if number else (clock() + until_s) / 2, clock)
        planned = climb.climb(start)
        reached.append((climb, climb.climb_by_pairs(planned) if number == 0 else planned))
    if not reached:
        assert refusal is not None
        raise refusal
    schedules: list[ClusterSchedule] = []
    for climb, planned in reached:
        climb.until_s = until_s
        schedules.append(climb.climb_by_pairs(planned)[1])
    return replace(min(schedules, key=lambda schedule: schedule.latency_us), rates=rates)


def best_candidate(
    chip: ChipGraph,
    rates: ChipRates,
    options: ScheduleOptions,
    until_s: float,
    whole_policies: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Planned | None:
    """Return the fastest of all candidates; None where time runs out before any.

    Policies as they are known are simulated whatever the time where `whole_policies`. Raises
    BadPlan where none fits.
    """
    best: Planned | None = None
    refusal: BadPlan | None = None
    for candidate in candidates(rates.accelerator, options):
        known = candidate == replace(options, policy=candidate.policy)
        late = clock() > until_s
        if late and not (whole_policies and (known or best is None)):
            continue
        try:
            schedule = schedule_cluster(chip, rates, candidate)
        except BadPlan as error:
            refusal = refusal or error
            continue
        if best is None or schedule.latency_us < best[1].latency_us:
            best = GroupingPlan.of(schedule, candidate), schedule
    if best is None and refusal is not None:
        raise refusal
    return best


def candidates(machine: Accelerator, options: ScheduleOptions) -> Iterator[ScheduleOptions]:
    """Yield the options that are simulated on a machine."""
    for policy in POLICIES:
        if policy == "best" or (policy == "gb" and machine.shared is None):
            continue
        plain = replace(options, policy=policy)
        yield plain
        if options.overlap is not None:
            continue
        yield replace(plain, overlap="layers")
        if policy == "graphturbo":
            for order in ("depth", "breadth"):
                yield replace(plain, order=order)
            yield replace(plain, clean_up=False)
            yield replace(plain, propagate=True)
            yield replace(plain, batch_only=True)
            yield replace(plain, parts_margin=math.inf)


def smaller_machines(machine: Accelerator) -> Iterator[Accelerator]:
    """Yield a machine, then those with halves of each buffer, larger ones first."""
    locals_, shareds = machine.local.size_bytes, machine.shared_bytes
    halvings = product(range(count_halvings(locals_)), range(count_halvings(shareds)))
    for local, shared in sorted(halvings, key=lambda pair: (sum(pair), pair)):
        sizes = machine.local.size_bytes >> local, machine.shared_bytes >> shared
        yield machine.with_buffers(*sizes)


def count_halvings(size_bytes: int) -> int:
    """Return how many sizes a buffer is planned for."""
    return max(1, (size_bytes // SMALLEST_BYTES).bit_length())
