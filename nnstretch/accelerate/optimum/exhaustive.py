"""Every plan of a small graph: all groupings, factors and orders, the fastest by simulation.

Plans are simulated in order of the time that none of their orders beats (least_busy.py), until that
time is no less than the fastest so far: what is left cannot be faster. A group has at most
`most_parts` parts; parts of one group run in order of their index, since they are equal but for
their borders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.grouping_plan import (
    Operators,
    groups_of_plan,
    partitions,
    splits_into,
)
from nnstretch.accelerate.optimum.least_busy import LeastBusy
from nnstretch.accelerate.policies import (
    ClusterSchedule,
    ScheduleOptions,
    bind,
    simulate_order,
    split_rules,
)
from nnstretch.accelerate.steps.slicing import needs_of, slice_groups
from nnstretch.chip.instances import Group, Instance, Split
from nnstretch.errors import BadInput, BadPlan

MOST_OPERATORS = 7
MOST_PARTS = 4
MOST_SIMULATED = 500


@dataclass(frozen=True)
class Optimum:
    """The fastest plan of a graph."""

    schedule: ClusterSchedule
    plans: int
    """Groupings with factors."""
    simulated: int
    """Of these, in one order each, those that were simulated."""
    proven: bool
    """Whether none of the others is faster; False where the simulations allowed were used up."""


def exhaustive_optimum(
    chip: ChipGraph,
    rates: ChipRates,
    options: ScheduleOptions,
    start: ClusterSchedule,
    most_parts: int = MOST_PARTS,
    most_simulated: int = MOST_SIMULATED,
) -> Optimum:
    """Return the fastest of all groupings, factors and orders of a graph, and of a first schedule.

    Raises BadInput for more operators than can be tried.
    """
    if len(chip.operators) > MOST_OPERATORS:
        raise BadInput(
            f"{len(chip.operators)} operators, exhaustive search, it tries all plans of at most"
            f" {MOST_OPERATORS}"
        )
    bound = LeastBusy(chip, rates, options.overlaps, options.keeps_weights)
    plans = [
        (bound.plan_us(groups), groups) for groups in every_plan(chip, rates, options, most_parts)
    ]
    best = start
    simulated = 0
    for least_us, groups in sorted(plans, key=lambda plan: plan[0]):
        if least_us >= best.latency_us:
            break
        instances = slice_groups(chip, groups)
        for order in orders(instances):
            if simulated == most_simulated:
                return Optimum(best, len(plans), simulated, proven=False)
            simulated += 1
            try:
                schedule = schedule_in_order(chip, groups, order, rates, options)
            except BadPlan:
                continue
            if schedule.latency_us < best.latency_us:
                best = schedule
    return Optimum(best, len(plans), simulated, proven=True)


def schedule_in_order(
    chip: ChipGraph,
    groups: Sequence[Group],
    order: Sequence[Instance],
    rates: ChipRates,
    options: ScheduleOptions,
) -> ClusterSchedule:
    """Return the schedule of instances in an order. Raises BadPlan where a layer does not fit."""
    bound = bind(chip, groups, order, needs_of(order), rates, options)
    return simulate_order(chip, groups, order, bound, rates, options)


def every_plan(
    chip: ChipGraph, rates: ChipRates, options: ScheduleOptions, most_parts: int
) -> Iterator[tuple[Group, ...]]:
    """Yield every grouping with every factor of each group."""
    rules = split_rules(rates, options)
    splits: dict[Operators, tuple[Split, ...]] = {}
    for partition in partitions(chip):
        for operators in partition:
            if operators not in splits:
                splits[operators] = splits_into(chip, operators, rules, most_parts)
        for chosen in product(*(splits[operators] for operators in partition)):
            groups = groups_of_plan(chip, list(zip(partition, chosen, strict=True)))
            assert groups is not None
            yield groups


def orders(instances: Sequence[Instance]) -> Iterator[tuple[Instance, ...]]:
    """Yield every order of instances in which parts of a group run in order of their index."""
    needs = needs_of(instances)
    waiting: dict[int, list[Instance]] = {}
    for instance in instances:
        waiting.setdefault(instance.group, []).append(instance)

    def grow(done: list[Instance]) -> Iterator[tuple[Instance, ...]]:
        if len(done) == len(instances):
            yield tuple(done)
            return
        names = {instance.name for instance in done}
        for group in waiting.values():
            if group and names.issuperset(needs[group[0].name]):
                done.append(group.pop(0))
                yield from grow(done)
                group.insert(0, done.pop())

    yield from grow([])
