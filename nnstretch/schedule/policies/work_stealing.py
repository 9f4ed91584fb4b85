"""Work stealing: a queue for each processor, and idle ones take from the longest where that pays.

Blumofe, Leiserson, JACM 46(5), 1999; that a steal has to pay is dask/distributed's rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.task import Task


class WorkStealing:
    """Tasks wait at the processor where they would end first; only idle processors are given work.

    An idle processor with an empty queue steals the last task of the processor with the most work,
    if the task ends sooner that way. A stolen task runs at once, so it is never stolen again.
    """

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._fresh: OrderedDict[str, Task] = OrderedDict()
        self._queues: list[OrderedDict[str, Task]] = [OrderedDict() for _ in costs.processors]
        self._work_us = [0.0] * len(costs.processors)
        """Expected time of the tasks that wait at each processor."""
        self._homes: dict[str, tuple[int, float]] = {}
        """By task: the processor where it waits, and its share of that processor's `_work_us`."""

    def add(self, task: Task, /) -> None:
        """Let a task wait; it gets its processor before the next choice."""
        self._costs.row(task)
        self._fresh[task.name] = task

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        if self._fresh.pop(task.name, None) is None:
            self._leave(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the next task of an idle processor, or one that it takes from another."""
        self._place(now_us, processors)
        for state in processors:
            if not state.open or state.free_us > now_us:
                continue
            task = self._next(state, now_us, processors)
            if task is not None:
                self._leave(task)
                return task, state
        return None

    def _place(self, now_us: float, processors: Sequence[ProcessorState]) -> None:
        for state in processors:
            if not state.alive:
                for task in tuple(self._queues[state.index].values()):
                    self._leave(task)
                    self._fresh[task.name] = task
        for task in tuple(self._fresh.values()):
            row = self._costs.row(task)
            best_us, home = inf, -1
            for state in processors:
                queued_us = max(now_us, state.free_us) + self._work_us[state.index]
                if state.alive and queued_us + row[state.index] < best_us:
                    best_us, home = queued_us + row[state.index], state.index
            if home >= 0:
                del self._fresh[task.name]
                self._queues[home][task.name] = task
                self._homes[task.name] = home, row[home]
                self._work_us[home] += row[home]

    def _next(
        self, state: ProcessorState, now_us: float, processors: Sequence[ProcessorState]
    ) -> Task | None:
        """Return the first task of a processor's queue, or the one that it takes from another."""
        queue = self._queues[state.index]
        if queue:
            return next(iter(queue.values()))
        most_us, stolen = 0.0, None
        for victim in processors:
            queue, work_us = self._queues[victim.index], self._work_us[victim.index]
            if not queue or work_us <= most_us:
                continue
            task = next(reversed(queue.values()))
            there_us = max(now_us, victim.free_us) + work_us
            if now_us + self._costs.row(task)[state.index] < there_us:
                most_us, stolen = work_us, task
        return stolen

    def _leave(self, task: Task) -> None:
        home, cost_us = self._homes.pop(task.name)
        del self._queues[home][task.name]
        self._work_us[home] = self._work_us[home] - cost_us if self._queues[home] else 0.0
