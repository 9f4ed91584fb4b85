"""HEFT, CPOP and PEFT: tasks by priority, each inserted where it seems best.

All take `occupied` intervals of earlier jobs and a release time, before which nothing starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isclose
from types import MappingProxyType

from nnstretch.schedule.static_schedules.gaps import Gaps
from nnstretch.schedule.static_schedules.partial_schedule import (
    PartialSchedule,
    list_order,
    trace_of_places,
)
from nnstretch.schedule.static_schedules.ranks import (
    downward_ranks_us,
    optimistic_costs_us,
    upward_ranks_us,
)
from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph, index_graph
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace

Occupied = Mapping[str, Sequence[tuple[float, float]]]
"""Intervals (start, end) by processor that earlier jobs have taken, us."""
NOTHING: Occupied = MappingProxyType({})
PlaceAll = Callable[[IndexedGraph, PartialSchedule], None]
"""Places all tasks of a graph."""


def heft(graph: TaskGraph, occupied: Occupied = NOTHING, release_us: float = 0.0) -> Trace:
    """Schedule by heterogeneous earliest finish time: by upward rank, each where it ends first.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002.
    """
    return _schedule(place_by_heft, graph, occupied, release_us)


def cpop(graph: TaskGraph, occupied: Occupied = NOTHING, release_us: float = 0.0) -> Trace:
    """Schedule with the critical path on one processor, and all else where it ends first.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002.
    """
    return _schedule(place_by_cpop, graph, occupied, release_us)


def peft(graph: TaskGraph, occupied: Occupied = NOTHING, release_us: float = 0.0) -> Trace:
    """Schedule by predicted earliest finish time: where end and optimistic cost are least.

    Arabnejad, Barbosa, IEEE TPDS 25(3), 2014.
    """
    return _schedule(place_by_peft, graph, occupied, release_us)


def _schedule(
    place_all: PlaceAll, graph: TaskGraph, occupied: Occupied, release_us: float
) -> Trace:
    gaps = [Gaps(occupied.get(processor.name, ())) for processor in graph.processors]
    indexed = index_graph(graph)
    partial = PartialSchedule(indexed, gaps, release_us)
    place_all(indexed, partial)
    return trace_of_places(graph, partial.starts_us, partial.ends_us, partial.places)


def place_by_heft(graph: IndexedGraph, partial: PartialSchedule) -> None:
    """Place all tasks as `heft` does."""
    for task in list_order(graph, upward_ranks_us(graph)):
        partial.place_earliest_finish(task)


def place_by_cpop(graph: IndexedGraph, partial: PartialSchedule) -> None:
    """Place all tasks as `cpop` does."""
    priority = critical_path_priorities_us(graph)
    critical = frozenset(critical_path(graph, priority))
    home = critical_path_processor(graph, critical)
    for task in list_order(graph, priority):
        if task in critical and graph.costs_us[task][home] < inf:
            partial.place(task, home, partial.start_us(task, home))
        else:
            partial.place_earliest_finish(task)


def place_by_peft(graph: IndexedGraph, partial: PartialSchedule) -> None:
    """Place all tasks as `peft` does."""
    table_us = optimistic_costs_us(graph)
    ranks_us = [sum(row_us) / len(row_us) for row_us in table_us]
    for task in list_order(graph, ranks_us):
        row_us = table_us[task]
        choices = partial.starts_by_processor(task)
        processor, start_us, _ = min(choices, key=lambda choice: choice[2] + row_us[choice[0]])
        partial.place(task, processor, start_us)


def critical_path_priorities_us(graph: IndexedGraph) -> list[float]:
    """Return the mean length of the longest way through each task."""
    upward_us, downward_us = upward_ranks_us(graph), downward_ranks_us(graph)
    return [up_us + down_us for up_us, down_us in zip(upward_us, downward_us, strict=True)]


def critical_path(graph: IndexedGraph, priority_us: list[float]) -> list[int]:
    """Return the way along the largest priorities from a beginning to an end, as CPOP walks it.

    At equal ones the first in order. Where a reader owes its priority to another way, this one is
    shorter than the longest.
    """
    entries = [task for task in graph.tasks if not graph.needs[task]]
    length_us = max(priority_us[task] for task in entries)

    def on_path(task: int) -> bool:
        return isclose(priority_us[task], length_us, rel_tol=1e-9)

    path = [next(task for task in entries if on_path(task))]
    while graph.readers[path[-1]]:
        path.append(_next_on_path(graph, path[-1], priority_us))
    return path


def _next_on_path(graph: IndexedGraph, task: int, priority_us: list[float]) -> int:
    readers = [reader for reader, _ in graph.readers[task]]
    longest_us = max(priority_us[reader] for reader in readers)
    return next(r for r in readers if isclose(priority_us[r], longest_us, rel_tol=1e-9))


def critical_path_processor(graph: IndexedGraph, path: frozenset[int]) -> int:
    """Return the processor on which a path takes least; where no processor can run all of it, the
    one that can run most tasks of it.
    """

    def missing_and_time(processor: int) -> tuple[int, float]:
        costs_us = [graph.costs_us[task][processor] for task in sorted(path)]
        missing = costs_us.count(inf)
        known_us = [cost_us for cost_us in costs_us if cost_us < inf]
        return missing, sum(known_us)

    return min(graph.processors, key=missing_and_time)
