"""Times before which no schedule of a task graph can end."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph, index_graph
from nnstretch.task_graph import TaskGraph

MOST_PAIRS = 10_000_000
"""Pairs of sets of processors that are compared."""


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Two reasons why a schedule is not shorter."""

    critical_path_us: float
    """Longest chain of needs, each task where it is fastest, transfers left out."""
    work_us: float
    """Least work by processors, of all tasks or of those that only some processors can run."""

    @property
    def us(self) -> float:
        """Return the greater of the two."""
        return max(self.critical_path_us, self.work_us)


def lower_bounds(graph: TaskGraph) -> LowerBounds:
    """Return the lower bounds of a task graph's makespan."""
    indexed = index_graph(graph)
    return LowerBounds(_critical_path_us(indexed), _work_us(indexed))


def _critical_path_us(graph: IndexedGraph) -> float:
    ends_us = [0.0] * len(graph.costs_us)
    for task in graph.topological:
        start_us = 0.0
        for need, _ in graph.needs[task]:
            start_us = max(start_us, ends_us[need])
        ends_us[task] = start_us + min(graph.costs_us[task])
    return max(ends_us)


def _work_us(graph: IndexedGraph) -> float:
    """Return the greatest work by processors, over the sets of processors that some task needs.

    Of many sets, those with the most work of their own are looked at.
    """
    everywhere = (1 << len(graph.processors)) - 1
    least_us: dict[int, float] = {everywhere: 0.0}
    for costs_us in graph.costs_us:
        able = sum(1 << p for p, cost_us in enumerate(costs_us) if cost_us < inf)
        least_us[able] = least_us.get(able, 0.0) + min(costs_us)
    most_first = sorted(least_us, key=lambda able: (able != everywhere, -least_us[able]))
    bounds_us: list[float] = []
    for processors in most_first[: max(1, MOST_PAIRS // len(least_us))]:
        inside_us = [us for able, us in least_us.items() if not able & ~processors]
        bounds_us.append(sum(inside_us) / processors.bit_count())
    return max(bounds_us)
