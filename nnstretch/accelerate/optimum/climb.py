"""Climb: from a plan to faster ones, one or two changes at a time, judged by simulation.

Neighbours are ordered by the time that none of their orders beats; those for which it is no less
than the present one are not simulated. Where no neighbour is faster, the neighbours of each
neighbour are tried. Ends where none of them is faster either, or with the time allowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.grouping_plan import (
    Operators,
    Part,
    cuts,
    groups_of_plan,
    joined,
    moved_borders,
    neighbours,
    split_along,
)
from nnstretch.accelerate.optimum.least_busy import LeastBusy
from nnstretch.accelerate.policies import (
    SCOPES,
    ClusterSchedule,
    ScheduleOptions,
    schedule_groups,
    split_rules,
)
from nnstretch.accelerate.steps.split import SplitRules, split_of
from nnstretch.chip.instances import Group, Split
from nnstretch.errors import BadPlan

ORDERS = ("depth", "breadth")


@dataclass(frozen=True)
class GroupingPlan:
    """Groups in parts, and the options under which they are ordered, bound and placed."""

    parts: tuple[Part, ...]
    options: ScheduleOptions

    @classmethod
    def of(cls, schedule: ClusterSchedule, options: ScheduleOptions) -> GroupingPlan:
        """Return the plan of a schedule that was made under options."""
        return cls(tuple((group.operators, group.split) for group in schedule.groups), options)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what tells plans apart, whatever the order in which their groups are listed."""
        return self.options, frozenset((names, s.factor, s.axis) for names, s in self.parts)


Planned = tuple[GroupingPlan, ClusterSchedule]


@dataclass
class Climb:
    """Climb of one graph on one machine."""

    chip: ChipGraph
    rates: ChipRates
    until_s: float
    """On the clock: nothing new is tried after it."""
    clock: Callable[[], float] = time.perf_counter
    tried: set[tuple[object, ...]] = field(default_factory=set)
    bounds: dict[tuple[str, bool], LeastBusy] = field(default_factory=dict)
    rules: SplitRules = field(init=False)
    splits: dict[tuple[Operators, int, int], Split | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = split_rules(self.rates, ScheduleOptions())

    def climb(self, start: Planned) -> Planned:
        """Return the fastest plan that single changes lead to."""
        best = start
        while (step := self.step(best[0], best[1].latency_us)) is not None:
            best = step
        return best

    def climb_by_pairs(self, start: Planned) -> Planned:
        """Return the fastest plan that pairs of changes lead to where single ones lead nowhere."""
        best = start
        while (step := self.double_step(best[0], best[1].latency_us)) is not None:
            best = self.climb(step)
        return best

    def step(self, plan: GroupingPlan, latency_us: float) -> Planned | None:
        """Return the first neighbour of a plan that is faster, None where none is."""
        for least_us, near in self.by_least_us(plan):
            if least_us >= latency_us or self.clock() > self.until_s:
                return None
            if near.key in self.tried:
                continue
            self.tried.add(near.key)
            schedule = self.simulated(near)
            if schedule is not None and schedule.latency_us < latency_us:
                return near, schedule
        return None

    def double_step(self, plan: GroupingPlan, latency_us: float) -> Planned | None:
        """Return the first neighbour of a neighbour that is faster, None where none is."""
        for _, near in self.by_least_us(plan):
            step = self.step(near, latency_us)
            if step is not None or self.clock() > self.until_s:
                return step
        return None

    def by_least_us(self, plan: GroupingPlan) -> list[tuple[float, GroupingPlan]]:
        """Return a plan's neighbours, ordered by the time that none of their orders beats.

        Empty where time runs out before.
        """
        ordered: list[tuple[float, GroupingPlan]] = []
        for near in self.neighbours_of(plan):
            if self.clock() > self.until_s:
                return []
            groups = groups_of_plan(self.chip, near.parts)
            if groups is not None:
                ordered.append((self.least_us(groups, near.options), near))
        return sorted(ordered, key=lambda item: item[0])

    def simulated(self, plan: GroupingPlan) -> ClusterSchedule | None:
        """Return the schedule of a plan, None where a layer does not fit."""
        groups = groups_of_plan(self.chip, plan.parts)
        assert groups is not None
        try:
            return schedule_groups(self.chip, groups, self.rates, plan.options)
        except BadPlan:
            return None

    def least_us(self, groups: Sequence[Group], options: ScheduleOptions) -> float:
        """Return the time that no order of groups beats."""
        rules = (options.overlaps, options.keeps_weights)
        if rules not in self.bounds:
            self.bounds[rules] = LeastBusy(self.chip, self.rates, *rules)
        return self.bounds[rules].plan_us(groups)

    def neighbours_of(self, plan: GroupingPlan) -> Iterator[GroupingPlan]:
        """Yield the plans that one change makes of a plan."""
        for options in self.other_options(plan.options):
            yield replace(plan, options=options)
        for place, (operators, split) in enumerate(plan.parts):
            others = (*plan.parts[:place], *plan.parts[place + 1 :])
            for changed in self.other_splits(operators, split):
                parted = replace(plan, parts=(*others, (operators, changed)))
                yield parted
                # Parts pay where they are ordered and stay on chip: policies of layers hide that.
                if plan.options.policy in SCOPES:
                    yield replace(parted, options=self.in_groups(plan.options))
            for two in cuts(self.chip, operators):
                yield from self.with_groups(plan, others, two, (split,))
        partition = [operators for operators, _ in plan.parts]
        for first, second in neighbours(self.chip, partition):
            splits = plan.parts[first][1], plan.parts[second][1]
            others = tuple(p for n, p in enumerate(plan.parts) if n not in (first, second))
            together = (joined(self.chip, partition[first], partition[second]),)
            yield from self.with_groups(plan, others, together, splits)
            for moved in moved_borders(self.chip, partition[first], partition[second]):
                yield from self.with_groups(plan, others, moved, splits)

    def other_options(self, options: ScheduleOptions) -> Iterator[ScheduleOptions]:
        """Yield another order, another place of results, and bindings handed on or not."""
        if options.policy not in SCOPES:
            for order in ORDERS:
                if order != options.order:
                    yield replace(options, order=order)
            yield replace(options, propagate=not options.propagate)
        for policy in (*SCOPES, "graphturbo"):
            has_buffer = policy != "gb" or self.rates.accelerator.shared is not None
            if policy != options.policy and has_buffer:
                yield replace(options, policy=policy, overlap=options.overlaps)

    def in_groups(self, options: ScheduleOptions) -> ScheduleOptions:
        """Return options under which groups are ordered and their results stay on chip."""
        return replace(options, policy="graphturbo", overlap=options.overlaps)

    def other_splits(self, operators: Operators, split: Split) -> Iterator[Split]:
        """Yield a group's splits into half as many parts, twice as many, two and one."""
        factors = {1, 2, split.factor // 2, split.factor, split.factor * 2} - {0}
        for factor in sorted(factors):
            for axis in self.chip.axes(operators[-1]) if factor > 1 else (0,):
                if (factor, axis) != (split.factor, split.axis):
                    changed = self.split(operators, axis, factor)
                    if changed is not None:
                        yield changed

    def with_groups(
        self,
        plan: GroupingPlan,
        others: tuple[Part, ...],
        groups: Sequence[Operators],
        splits: Sequence[Split],
    ) -> Iterator[GroupingPlan]:
        """Yield a plan with new groups beside others, each split as before, whole, or by rule."""
        variants: list[tuple[Part, ...]] = [()]
        for operators in groups:
            options: dict[tuple[int, int], Split] = {}
            for old in (*splits, Split(1)):
                kept = self.split(operators, old.axis, old.factor)
                if kept is not None:
                    options[kept.factor, kept.axis] = kept
            by_rule = split_of(self.chip, operators, self.rules)[0]
            if by_rule.fits:
                options[by_rule.factor, by_rule.axis] = by_rule
            pairs = product(variants, options.values())
            variants = [(*begun, (operators, split)) for begun, split in pairs]
        for variant in variants:
            yield replace(plan, parts=(*others, *variant))

    def split(self, operators: Operators, axis: int, factor: int) -> Split | None:
        """Return a group's split, None where there is no such one."""
        key = (operators, axis, factor)
        if key not in self.splits:
            self.splits[key] = split_along(self.chip, operators, axis, factor, self.rules)
        return self.splits[key]
