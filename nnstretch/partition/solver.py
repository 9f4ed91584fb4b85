"""The split and the processors that make the slowest stage fastest, and among those one item's
latency shortest; exact.

Dynamic programming over (frontier reached, processors used): first the smallest bottleneck that can
be had, then the shortest latency with no stage above it. One after the other, because the latency
of a prefix may not be judged before the bottleneck is known. All processors of a pipeline compute
at once, so the chip's contention factor of the whole set is on every stage's compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nnstretch.errors import NoPlan
from nnstretch.partition.stage_costs import StageCostTable

EPSILON = 1e-9
"""Share by which sums of the same numbers may differ."""


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
    """Costs once it is decided which processors compute at once."""

    groups: dict[int, tuple[np.ndarray, np.ndarray]]
    """By bit mask of processors: period and latency of every stage."""
    full: int
    last: int


def best_assignments(
    table: StageCostTable, stages: int | None, replicas: bool = False, top: int = 1
) -> tuple[Assignment, ...]:
    """Return the best choice, and behind it the `top` - 1 next by bottleneck.

    `stages` None tries every number of them.

    Raises NoPlan where no processors can hold the stages.
    """
    assignments: list[Assignment] = []
    counts = range(1, len(table.processors) + 1) if stages is None else (stages,)
    for count in counts:
        for used in processor_sets(table, count, replicas):
            assignments += k_best_labels(table, used, count, top)
    if not assignments:
        raise NoPlan(explain_infeasible(table, stages))
    limit_us = min(choice.bottleneck_us for choice in assignments)
    exact = [
        shortest_latency(table, used, count, limit_us)
        for count in counts
        for used in processor_sets(table, count, replicas)
    ]
    first = min((choice for choice in exact if choice is not None), key=lambda choice: choice.key)
    others = {
        (c.borders, c.groups): c
        for c in sorted(assignments, key=lambda c: c.key)
        if (c.borders, c.groups) != (first.borders, first.groups)
    }
    return (first, *list(others.values())[: top - 1])


def processor_sets(table: StageCostTable, count: int, replicas: bool) -> Iterator[ProcessorSet]:
    """Yield every set of processors that `count` stages can keep busy."""
    everyone = range(len(table.processors))
    for size in range(count, len(table.processors) + 1) if replicas else (count,):
        for members in combinations(everyone, size):
            slowdown = (
                table.slowdown(frozenset(table.processors[p] for p in members)) if size > 1 else 1.0
            )
            times_us = {p: slowdown * table.compute_us[p] + table.transfer_us[p] for p in members}
            turns_us = {
                p: np.maximum(slowdown * table.compute_us[p], table.transfer_us[p])
                for p in members
                if table.processors[p] in table.beside
            }
            turns_us = times_us | turns_us
            groups = {}
            for many in range(1, size - count + 2):
                for group in combinations(members, many):
                    period, latency = (
                        np.maximum.reduce([costs[p] for p in group])
                        for costs in (turns_us, times_us)
                    )
                    groups[sum(1 << p for p in group)] = (period / many, latency)
            yield ProcessorSet(groups, sum(1 << p for p in members), table.last)


def k_best_labels(
    table: StageCostTable, used: ProcessorSet, count: int, top: int
) -> list[Assignment]:
    """Return the `top` smallest bottlenecks with exactly these processors and this many stages."""
    start = np.full((top, used.last + 1), np.inf)
    start[0, 0] = 0.0
    levels: list[dict[int, tuple[np.ndarray, np.ndarray]]] = [
        {0: (start, np.zeros((top, used.last + 1, 3), int))}
    ]
    for _ in range(count):
        levels.append(extend_labels(levels[-1], used, top))
    if used.full not in levels[-1]:
        return []
    ends = levels[-1][used.full][0][:, used.last]
    return [
        trace_assignment(table, used, levels, rank)
        for rank in range(top)
        if np.isfinite(ends[rank])
    ]


def extend_labels(
    before: dict[int, tuple[np.ndarray, np.ndarray]], used: ProcessorSet, top: int
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Extend by one more stage: by processors used so far, the smallest bottlenecks up to each
    frontier and where they come from.
    """
    after: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    width = used.last + 1
    for mask, (values, _) in before.items():
        for group, (period_us, _) in used.groups.items():
            if mask & group:
                continue
            candidates = np.maximum(values[:, :, None], period_us[None, :, :]).reshape(-1, width)
            rows = np.argsort(candidates, axis=0, kind="stable")[:top]
            ranks, starts = np.divmod(rows, width)
            backpointer = np.stack([np.full_like(rows, group), ranks, starts], axis=2)
            mine = (np.take_along_axis(candidates, rows, axis=0), backpointer)
            after[mask | group] = (
                merge_labels(after[mask | group], mine, top) if mask | group in after else mine
            )
    return after


def merge_labels(
    labels: tuple[np.ndarray, np.ndarray], two: tuple[np.ndarray, np.ndarray], top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `top` smallest of two sets of labels."""
    values, came = (np.concatenate(pair, axis=0) for pair in zip(labels, two, strict=True))
    rows = np.argsort(values, axis=0, kind="stable")[:top]
    return np.take_along_axis(values, rows, axis=0), np.take_along_axis(
        came, rows[:, :, None], axis=0
    )


def trace_assignment(
    table: StageCostTable,
    used: ProcessorSet,
    levels: list[dict[int, tuple[np.ndarray, np.ndarray]]],
    rank: int,
) -> Assignment:
    """Walk back from the last frontier."""
    mask, stop, steps = used.full, used.last, []
    for at in range(len(levels) - 1, 0, -1):
        group, rank, start = (int(number) for number in levels[at][mask][1][rank, stop])
        steps.append((start, stop, group))
        mask, stop = mask ^ group, start
    return make_assignment(table, used, steps[::-1])


def make_assignment(
    table: StageCostTable, used: ProcessorSet, steps: list[tuple[int, int, int]]
) -> Assignment:
    """Return the assignment behind traced steps."""
    costs = [
        (used.groups[group][0][start, stop], used.groups[group][1][start, stop])
        for start, stop, group in steps
    ]
    names = tuple(
        tuple(name for p, name in enumerate(table.processors) if group >> p & 1)
        for _, _, group in steps
    )
    borders = (0, *(stop for _, stop, _ in steps))
    return Assignment(
        borders,
        names,
        float(max(period for period, _ in costs)),
        float(sum(latency for _, latency in costs)),
    )


def shortest_latency(
    table: StageCostTable, used: ProcessorSet, count: int, limit_us: float
) -> Assignment | None:
    """Return the shortest latency of an item with no stage above the limit."""
    bound_us = limit_us * (1 + EPSILON)
    allowed = {
        group: np.where(period_us <= bound_us, latency_us, np.inf)
        for group, (period_us, latency_us) in used.groups.items()
    }
    start = np.full(used.last + 1, np.inf)
    start[0] = 0.0
    levels: list[dict[int, tuple[np.ndarray, np.ndarray]]] = [
        {0: (start, np.zeros((used.last + 1, 2), int))}
    ]
    for _ in range(count):
        after: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for mask, (values, _) in levels[-1].items():
            for group, latency_us in allowed.items():
                if mask & group:
                    continue
                totals = values[:, None] + latency_us
                starts = totals.argmin(axis=0)
                least = np.take_along_axis(totals, starts[None], axis=0)[0]
                old, came = after.get(
                    mask | group, (np.full_like(least, np.inf), np.zeros((len(least), 2), int))
                )
                better = least < old
                ways = np.stack([np.full_like(starts, group), starts], axis=1)
                after[mask | group] = (
                    np.where(better, least, old),
                    np.where(better[:, None], ways, came),
                )
        levels.append(after)
    if used.full not in levels[-1] or not np.isfinite(levels[-1][used.full][0][used.last]):
        return None
    mask, stop, steps = used.full, used.last, []
    for at in range(count, 0, -1):
        group, begin = (int(number) for number in levels[at][mask][1][stop])
        steps.append((begin, stop, group))
        mask, stop = mask ^ group, begin
    return make_assignment(table, used, steps[::-1])


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
    if table.refused:
        return (
            f"no split into {stages or 'any number of'} stages, processors {names}, kernels never"
            f" measured: {', '.join(table.refused[:3])}"
        )
    return (
        f"no split into {stages or 'any number of'} stages, processors {names}, the weights fit no"
        " split's memory"
    )
