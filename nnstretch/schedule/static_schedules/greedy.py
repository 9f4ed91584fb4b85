"""List schedules without insertion: a task is put behind all that its processor has.

Tasks and processors are taken by lowest index where nothing else tells them apart. A step costs
O(tasks x processors) for Min-Min, Max-Min and earliest start, O(processors) for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from nnstretch.schedule.static_schedules.partial_schedule import trace_of_places
from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph, index_graph
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace

Times = NDArray[np.float64]


class AppendedSchedule:
    """Tasks placed so far, and when each ready one could start on each processor."""

    def __init__(self, graph: IndexedGraph) -> None:
        self._graph = graph
        self._unmet = [len(needs) for needs in graph.needs]
        count = len(graph.costs_us)
        self.costs_us: Times = np.array(graph.costs_us)
        self._able = np.isfinite(self.costs_us)
        self._there_us: Times = np.zeros_like(self.costs_us)
        """When the data of what is placed so far is there, by task and processor."""
        self._ready_us: Times = np.full_like(self.costs_us, inf)
        """The same for ready tasks, infinite for others and where one cannot run."""
        self.free_us: Times = np.zeros(len(graph.processors))
        self.ready = [task for task in graph.tasks if not self._unmet[task]]
        """Heap of tasks whose needs are placed."""
        heapify(self.ready)
        for task in self.ready:
            self._make_ready(task)
        self.starts_us, self.ends_us = [0.0] * count, [0.0] * count
        self.places = [-1] * count

    def all_starts_us(self) -> Times:
        """Return when each ready task could start on each processor, infinite elsewhere."""
        starts_us: Times = np.maximum(self._ready_us, self.free_us)
        return starts_us

    def starts_us_of(self, task: int) -> Times:
        """Return when a ready task could start on each processor."""
        starts_us: Times = np.maximum(self._ready_us[task], self.free_us)
        return starts_us

    def place(self, task: int, processor: int) -> None:
        """Put a ready task behind all that a processor has."""
        start_us = float(max(self._ready_us[task, processor], self.free_us[processor]))
        end_us = start_us + self._graph.costs_us[task][processor]
        self.free_us[processor] = end_us
        self._ready_us[task] = inf
        self.starts_us[task], self.ends_us[task] = start_us, end_us
        self.places[task] = processor
        for reader, transfer_us in self._graph.readers[task]:
            there_us = np.full(len(self.free_us), end_us + transfer_us)
            there_us[processor] = end_us
            np.maximum(self._there_us[reader], there_us, out=self._there_us[reader])
            self._unmet[reader] -= 1
            if not self._unmet[reader]:
                self._make_ready(reader)
                heappush(self.ready, reader)

    def _make_ready(self, task: int) -> None:
        self._ready_us[task] = np.where(self._able[task], self._there_us[task], inf)


Choice = Callable[[AppendedSchedule], tuple[int, int]]
"""The next of all ready tasks, and its processor."""
Place = Callable[[AppendedSchedule, int], int]
"""The processor of a ready task."""


def min_min(graph: TaskGraph) -> Trace:
    """Schedule the ready task that can end first, where it does (Min-Min).

    Ibarra, Kim, J. ACM 24(2), 1977; Braun et al., J. Parallel Distrib. Comput. 61(6), 2001.
    """

    def first_end(schedule: AppendedSchedule) -> tuple[int, int]:
        return _least(schedule.all_starts_us() + schedule.costs_us)

    return _schedule_best(graph, first_end)


def max_min(graph: TaskGraph) -> Trace:
    """Schedule the ready task whose earliest end is latest, where it ends first (Max-Min).

    Braun et al., J. Parallel Distrib. Comput. 61(6), 2001.
    """

    def latest_first_end(schedule: AppendedSchedule) -> tuple[int, int]:
        ends_us = schedule.all_starts_us() + schedule.costs_us
        best_us = ends_us.min(axis=1)
        best_us[np.isinf(best_us)] = -inf
        task = int(best_us.argmax())
        return task, int(ends_us[task].argmin())

    return _schedule_best(graph, latest_first_end)


def etf_start(graph: TaskGraph) -> Trace:
    """Schedule the ready task that can start first, where it does (classic ETF).

    Hwang, Chow, Anger, Lee, SIAM J. Comput. 18(2), 1989; equal starts by index, not by level.
    """
    return _schedule_best(graph, lambda schedule: _least(schedule.all_starts_us()))


def mct(graph: TaskGraph) -> Trace:
    """Schedule ready tasks by index, each where it ends first (minimum completion time).

    Braun et al., J. Parallel Distrib. Comput. 61(6), 2001.
    """

    def first_end(schedule: AppendedSchedule, task: int) -> int:
        return int((schedule.starts_us_of(task) + schedule.costs_us[task]).argmin())

    return _schedule_in_order(graph, first_end)


def met(graph: TaskGraph) -> Trace:
    """Schedule ready tasks by index, each where it takes least (minimum execution time).

    Braun et al., J. Parallel Distrib. Comput. 61(6), 2001.
    """

    def least_cost(schedule: AppendedSchedule, task: int) -> int:
        return int(schedule.costs_us[task].argmin())

    return _schedule_in_order(graph, least_cost)


def olb(graph: TaskGraph) -> Trace:
    """Schedule ready tasks by index, each on the processor that is available first, wherever its
    data is (opportunistic load balancing).

    Braun et al., J. Parallel Distrib. Comput. 61(6), 2001.
    """

    def first_free(schedule: AppendedSchedule, task: int) -> int:
        able = np.isfinite(schedule.costs_us[task])
        return int(np.where(able, schedule.free_us, inf).argmin())

    return _schedule_in_order(graph, first_free)


def _least(times_us: Times) -> tuple[int, int]:
    """Return task and processor of the least time, the first of equal ones."""
    task, processor = divmod(int(times_us.argmin()), times_us.shape[1])
    return task, processor


def _schedule_best(graph: TaskGraph, choose: Choice) -> Trace:
    schedule = AppendedSchedule(index_graph(graph))
    for _ in graph.tasks:
        schedule.place(*choose(schedule))
    return trace_of_places(graph, schedule.starts_us, schedule.ends_us, schedule.places)


def _schedule_in_order(graph: TaskGraph, place: Place) -> Trace:
    schedule = AppendedSchedule(index_graph(graph))
    while schedule.ready:
        task = heappop(schedule.ready)
        schedule.place(task, place(schedule, task))
    return trace_of_places(graph, schedule.starts_us, schedule.ends_us, schedule.places)
