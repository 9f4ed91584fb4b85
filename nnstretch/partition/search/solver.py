"""The split and the processors with the smallest bottleneck, then the shortest latency; exact.

Dynamic programming over (frontier reached, processors used): first the smallest bottleneck that can
be had, then the shortest latency with no stage above it. One after the other, because the latency
of a prefix may not be judged before the bottleneck is known. All processors of a pipeline compute
at once, so what the whole set costs by contention is on every stage's compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nnstretch.errors import NoPlan
from nnstretch.partition.search.stage_costs import StageCostTable

EPSILON = 1e-9
"""Share by which sums of the same numbers may differ."""
Labels = tuple[np.ndarray, np.ndarray]
"""Values `[rank, frontier]`, and their origins `[rank, frontier, (group, rank, start)]`."""
Step = tuple[int, int, int]
"""Start and stop frontier of a stage, and the bit mask of its processors."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A way to divide units among processors."""

    borders: tuple[int, ...]
    """Stage s lies between frontiers borders[s] and borders[s + 1]."""
    groups: tuple[tuple[str, ...], ...]
    """Processors of each stage; several are replicas that take items in turn."""
    bottleneck_us: float
    """Time between two results: of the slowest stage, over its replicas."""
    latency_us: float
    """Of one item through all stages, on the slowest replica of each."""

    @property
    def key(self) -> tuple[float, float, int]:
        """Return the order of assignments: bottleneck, latency, stages."""
        return self.bottleneck_us, self.latency_us, len(self.groups)


@dataclass(frozen=True)
class ProcessorSet:
    """Costs of every stage where exactly these processors compute at once."""

    groups: dict[int, tuple[np.ndarray, np.ndarray]]
    """Period and latency, us, `[start, stop]`, by bit mask of the stage's processors."""
    full: int
    """Bit mask of all of them."""
    twins: Mapping[int, int]
    """Processor -> an earlier one that costs the same and is taken first: mirror images are one."""
    last: int
    """The frontier that is the whole network."""

    def joined(self, mask: int, group: int) -> int | None:
        """Return the processors of both; None where they overlap or a twin is taken too early."""
        both = mask | group
        return None if mask & group or not in_order(both, self.twins) else both


def in_order(mask: int, twins: Mapping[int, int]) -> bool:
    """Return whether no processor of a bit mask is taken before its twin."""
    return all(mask >> twin & 1 or not mask >> p & 1 for p, twin in twins.items())


def best_assignments(
    table: StageCostTable, stages: int | None, replicas: bool = False, top: int = 1
) -> tuple[Assignment, ...]:
    """Return the best assignment and the next `top` - 1 by bottleneck.

    `stages` None tries every number of them. Raises NoPlan where no processors can hold the stages.
    """
    counts = range(1, len(table.processors) + 1) if stages is None else (stages,)
    assignments: list[Assignment] = []
    for count in counts:
        for used in processor_sets(table, count, replicas):
            assignments += k_best_assignments(table, used, count, top)
    if not assignments:
        raise NoPlan(explain_infeasible(table, stages))
    limit_us = min(assignment.bottleneck_us for assignment in assignments)
    exact = []
    for count in counts:
        for used in processor_sets(table, count, replicas):
            assignment = shortest_latency(table, used, count, limit_us)
            if assignment is not None:
                exact.append(assignment)
    first = min(exact, key=lambda assignment: assignment.key)
    distinct = {(first.borders, first.groups): first}
    for assignment in sorted(assignments, key=lambda assignment: assignment.key):
        distinct.setdefault((assignment.borders, assignment.groups), assignment)
    return tuple(distinct.values())[:top]


def processor_sets(table: StageCostTable, count: int, replicas: bool) -> Iterator[ProcessorSet]:
    """Yield every set of processors that `count` stages can keep busy."""
    processors = range(len(table.processors))
    twins = table.twins()
    for size in range(count, len(processors) + 1) if replicas else (count,):
        for members in combinations(processors, size):
            full = sum(1 << p for p in members)
            if in_order(full, twins):
                groups = group_costs(table, members, size - count + 1)
                yield ProcessorSet(groups, full, twins, table.last)


def group_costs(
    table: StageCostTable, members: Sequence[int], most: int
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return period and latency of stages on each group of at most `most` replicas, by bit mask."""
    names = frozenset(table.processors[p] for p in members)
    latencies_us = {}
    periods_us = {}
    for p in members:
        compute_us = table.compute_among(p, names)
        transfer_us = table.transfer_us[p]
        overlaps = table.processors[p] in table.overlapping
        latencies_us[p] = compute_us + transfer_us
        periods_us[p] = np.maximum(compute_us, transfer_us) if overlaps else latencies_us[p]
    costs = {}
    for size in range(1, most + 1):
        for group in combinations(members, size):
            period_us = np.maximum.reduce([periods_us[p] for p in group]) / size
            latency_us = np.maximum.reduce([latencies_us[p] for p in group])
            costs[sum(1 << p for p in group)] = (period_us, latency_us)
    return costs


def k_best_assignments(
    table: StageCostTable, used: ProcessorSet, count: int, top: int
) -> list[Assignment]:
    """Return the `top` smallest bottlenecks with exactly these processors and `count` stages."""
    start = np.full((top, used.last + 1), np.inf)
    start[0, 0] = 0.0
    levels: list[dict[int, Labels]] = [{0: (start, np.zeros((top, used.last + 1, 3), int))}]
    for _ in range(count):
        levels.append(extend_labels(levels[-1], used, top))
    if used.full not in levels[-1]:
        return []
    final_us = levels[-1][used.full][0][:, used.last]
    ranks = [rank for rank in range(top) if np.isfinite(final_us[rank])]
    return [trace_assignment(table, used, levels, rank) for rank in ranks]


def extend_labels(before: dict[int, Labels], used: ProcessorSet, top: int) -> dict[int, Labels]:
    """Extend labels by one stage: the `top` smallest bottlenecks up to each frontier.

    Labels are by the bit mask of the processors used so far.
    """
    after: dict[int, Labels] = {}
    width = used.last + 1
    for mask, (values, _) in before.items():
        for group, (period_us, _) in used.groups.items():
            both = used.joined(mask, group)
            if both is None:
                continue
            candidates = np.maximum(values[:, :, None], period_us[None, :, :]).reshape(-1, width)
            rows = np.argsort(candidates, axis=0, kind="stable")[:top]
            ranks, starts = np.divmod(rows, width)
            origins = np.stack([np.full_like(rows, group), ranks, starts], axis=2)
            labels = (np.take_along_axis(candidates, rows, axis=0), origins)
            if both in after:
                labels = merge_labels(after[both], labels, top)
            after[both] = labels
    return after


def merge_labels(labels: Labels, more: Labels, top: int) -> Labels:
    """Return the `top` smallest of two sets of labels."""
    values, origins = (np.concatenate(pair, axis=0) for pair in zip(labels, more, strict=True))
    rows = np.argsort(values, axis=0, kind="stable")[:top]
    smallest = np.take_along_axis(values, rows, axis=0)
    return smallest, np.take_along_axis(origins, rows[:, :, None], axis=0)


def trace_assignment(
    table: StageCostTable, used: ProcessorSet, levels: Sequence[dict[int, Labels]], rank: int
) -> Assignment:
    """Trace labels back from the last frontier to the assignment behind them."""
    mask = used.full
    stop = used.last
    steps: list[Step] = []
    for level in reversed(levels[1:]):
        group, rank, start = (int(number) for number in level[mask][1][rank, stop])
        steps.append((start, stop, group))
        mask ^= group
        stop = start
    return make_assignment(table, used, steps[::-1])


def make_assignment(table: StageCostTable, used: ProcessorSet, steps: Sequence[Step]) -> Assignment:
    """Return the assignment of traced steps."""
    periods_us = []
    latencies_us = []
    names = []
    for start, stop, group in steps:
        period_us, latency_us = used.groups[group]
        periods_us.append(period_us[start, stop])
        latencies_us.append(latency_us[start, stop])
        names.append(tuple(name for p, name in enumerate(table.processors) if group >> p & 1))
    borders = (0, *(stop for _, stop, _ in steps))
    return Assignment(borders, tuple(names), float(max(periods_us)), float(sum(latencies_us)))


def shortest_latency(
    table: StageCostTable, used: ProcessorSet, count: int, limit_us: float
) -> Assignment | None:
    """Return the assignment of shortest latency with no stage above the limit, None for none."""
    bound_us = limit_us * (1 + EPSILON)
    allowed_us = {}
    for group, (period_us, latency_us) in used.groups.items():
        allowed_us[group] = np.where(period_us <= bound_us, latency_us, np.inf)
    start = np.full((1, used.last + 1), np.inf)
    start[0, 0] = 0.0
    levels: list[dict[int, Labels]] = [{0: (start, np.zeros((1, used.last + 1, 3), int))}]
    for _ in range(count):
        levels.append(extend_latencies(levels[-1], used, allowed_us))
    if used.full not in levels[-1] or not np.isfinite(levels[-1][used.full][0][0, used.last]):
        return None
    return trace_assignment(table, used, levels, 0)


def extend_latencies(
    before: dict[int, Labels], used: ProcessorSet, allowed_us: dict[int, np.ndarray]
) -> dict[int, Labels]:
    """Extend labels of one rank by one stage: the shortest latency up to each frontier."""
    after: dict[int, Labels] = {}
    for mask, (values, _) in before.items():
        for group, latency_us in allowed_us.items():
            both = used.joined(mask, group)
            if both is None:
                continue
            totals = values[0][:, None] + latency_us
            starts = totals.argmin(axis=0)
            least = totals.min(axis=0)
            origins = np.stack([np.full_like(starts, group), np.zeros_like(starts), starts], axis=1)
            if both in after:
                known, known_origins = (labels[0] for labels in after[both])
                shorter = least < known
                least = np.where(shorter, least, known)
                origins = np.where(shorter[:, None], origins, known_origins)
            after[both] = (least[None], origins[None])
    return after


def explain_infeasible(table: StageCostTable, stages: int | None) -> str:
    """Return why there is no partition."""
    names = ", ".join(table.processors)
    if stages is not None and stages > len(table.processors):
        return (
            f"{stages} stages on {len(table.processors)} processors ({names}), pipeline, each stage"
            " needs one of its own"
        )
    if stages is not None and stages > table.units:
        return f"{stages} stages of {table.units} compute layers, pipeline, each stage needs one"
    what = f"no split into {stages or 'any number of'} stages, processors {names}"
    if table.refused:
        return f"{what}, kernels never measured: {', '.join(table.refused[:3])}"
    return f"{what}, the weights fit no split's memory"
