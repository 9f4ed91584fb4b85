"""A schedule that grows task by task, each inserted into the first gap that is long enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from nnstretch.schedule.static_schedules.gaps import Gaps
from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace


class PartialSchedule:
    """Tasks placed so far, and the gaps between them."""

    def __init__(self, graph: IndexedGraph, gaps: Sequence[Gaps], release_us: float) -> None:
        """Begin with the gaps of each processor, which the tasks then take."""
        self._graph = graph
        self._release_us = release_us
        self._gaps = gaps
        self.starts_us = [0.0] * len(graph.costs_us)
        self.ends_us = [0.0] * len(graph.costs_us)
        self.places = [-1] * len(graph.costs_us)
        """Processor by task."""

    def ready_us(self, task: int) -> list[float]:
        """Return when all data of a task is there, by processor."""
        processors = self._graph.processors
        ready_us = [self._release_us] * len(processors)
        for need, transfer_us in self._graph.needs[task]:
            end_us = self.ends_us[need]
            for processor in processors:
                is_local = self.places[need] == processor
                there_us = end_us if is_local else end_us + transfer_us
                if there_us > ready_us[processor]:
                    ready_us[processor] = there_us
        return ready_us

    def start_us(self, task: int, processor: int) -> float:
        """Return when a task could start on a processor that can run it."""
        cost_us = self._graph.costs_us[task][processor]
        return self._gaps[processor].earliest_us(self.ready_us(task)[processor], cost_us)

    def starts_by_processor(self, task: int) -> Iterator[tuple[int, float, float]]:
        """Yield (processor, start, end) for each processor that can run a task."""
        ready_us = self.ready_us(task)
        for processor, cost_us in enumerate(self._graph.costs_us[task]):
            if cost_us != float("inf"):
                start_us = self._gaps[processor].earliest_us(ready_us[processor], cost_us)
                yield processor, start_us, start_us + cost_us

    def place(self, task: int, processor: int, start_us: float) -> None:
        """Put a task on a processor."""
        end_us = start_us + self._graph.costs_us[task][processor]
        self._gaps[processor].reserve(start_us, end_us)
        self.starts_us[task], self.ends_us[task] = start_us, end_us
        self.places[task] = processor

    def place_earliest_finish(self, task: int) -> None:
        """Put a task where it ends first; at equal ends on the first such processor."""
        choices = self.starts_by_processor(task)
        processor, start_us, _ = min(choices, key=lambda choice: choice[2])
        self.place(task, processor, start_us)


def list_order(graph: IndexedGraph, priority: Sequence[float]) -> Iterator[int]:
    """Yield tasks behind what they need: of those that are ready the one of highest priority.

    At equal priorities, to 12 digits, the first in the graph's order: sums of means that are equal
    on paper differ in their last digits.
    """
    unmet = [len(needs) for needs in graph.needs]
    keys = [-float(f"{value:.12g}") for value in priority]
    ready = [(keys[task], task) for task in graph.tasks if not unmet[task]]
    heapify(ready)
    while ready:
        _, task = heappop(ready)
        yield task
        for reader, _ in graph.readers[task]:
            unmet[reader] -= 1
            if not unmet[reader]:
                heappush(ready, (keys[reader], reader))


def trace_of_places(
    graph: TaskGraph, starts_us: Sequence[float], ends_us: Sequence[float], places: Sequence[int]
) -> Trace:
    """Return the spans of a whole schedule in the order in which they end."""
    spans: list[Span] = []
    for number, task in enumerate(graph.tasks):
        processor = graph.processors[places[number]].name
        spans.append(Span(starts_us[number], ends_us[number], task, processor))
    spans.sort(key=lambda span: (span.end_us, span.start_us))
    return Trace(tuple(spans))
