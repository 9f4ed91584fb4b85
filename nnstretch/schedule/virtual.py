"""The executor whose processors take exactly the predicted time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping

from nnstretch.errors import Stuck, UnknownName
from nnstretch.soc import Processor
from nnstretch.trace import Span, Task

Work = Callable[[Task], object]


def no_work(_task: Task) -> None:
    """For schedules of which only the times matter."""


class VirtualClock:
    """Exact and deterministic: equal tasks give equal traces, and nothing sleeps.

    Each processor serves its queue in order. `work` computes a task's numbers when the task
    starts to count; by then everything it needs has been computed.
    """

    def __init__(self, processors: tuple[Processor, ...], durations_us: Mapping[tuple[str, str], float], work: Work = no_work) -> None:
        self.now_us = 0.0
        self._processors = processors
        self._durations_us = durations_us
        self._work = work
        self._busy_until_us = dict.fromkeys((p.name for p in processors), 0.0)
        self._in_flight: Counter[str] = Counter()
        self._submitted = 0
        self._ending: list[tuple[float, int, Span]] = []

    def free(self) -> tuple[Processor, ...]:
        return tuple(p for p in self._processors if self._in_flight[p.name] < p.queue_depth)

    def submit(self, task: Task, processor: Processor, /) -> None:
        if (task.subgraph, processor.name) not in self._durations_us:
            raise UnknownName(f"unknown time of {task.subgraph} on {processor.name}, virtual clock, nobody predicted it")
        if self._in_flight[processor.name] >= processor.queue_depth:
            raise Stuck(f"{task.name} does not fit the queue of {processor.name}, {processor.queue_depth} tasks are in it")
        self._work(task)
        start_us = max(self.now_us, self._busy_until_us[processor.name])
        end_us = start_us + self._durations_us[task.subgraph, processor.name]
        self._busy_until_us[processor.name] = end_us
        self._in_flight[processor.name] += 1
        self._submitted += 1
        heapq.heappush(self._ending, (end_us, self._submitted, Span(start_us, end_us, task.name, processor.name)))

    def wait(self) -> Span | None:
        if not self._ending:
            return None
        self.now_us, _, span = heapq.heappop(self._ending)
        self._in_flight[span.processor] -= 1
        return span
