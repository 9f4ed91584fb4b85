"""Policies that look at no load: processors in turn, and the cheapest type of processor.

CEDR's SIMPLE, RANDOM and MET (UA-RCL/CEDR, `src-api/scheduler.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows, Row
from nnstretch.schedule.policies.waiting import FirstInFirstOut, open_mask
from nnstretch.task import Task


class RoundRobin:
    """Processors in turn: one pointer, which moves on with every try."""

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._waiting = FirstInFirstOut(costs)
        self._pointer = 0

    def add(self, task: Task, /) -> None:
        """Let a task wait behind all others."""
        self._waiting.add(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._waiting.remove(task)

    def pick(self, _now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the first task and the next open processor that can run it."""
        task = self._waiting.head(processors)
        if task is None:
            return None
        self._waiting.remove(task)
        return task, self._next(task, processors)

    def _next(self, task: Task, processors: Sequence[ProcessorState]) -> ProcessorState:
        mask = self._costs.mask(task)
        while True:
            state = processors[self._pointer]
            self._pointer = (self._pointer + 1) % len(processors)
            if state.open and mask >> state.index & 1:
                return state


class RandomOrder:
    """Round robin over a queue that is shuffled at every round, from one seed."""

    def __init__(self, costs: CostRows, seed: int) -> None:
        self._turns = RoundRobin(costs)
        self._costs = costs
        self._seed = seed
        self._random = Random(seed)
        self._waiting: dict[str, Task] = {}
        self._order: list[Task] = []
        """Of the round, the next at the end."""
        self._round_us = -1.0
        self._changed = False

    def add(self, task: Task, /) -> None:
        """Let a task wait for the next round."""
        self._waiting[task.name] = task
        self._changed = True

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        del self._waiting[task.name]

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the next task of the shuffled queue that an open processor can run."""
        if self._changed or now_us != self._round_us:
            self._changed, self._round_us = False, now_us
            self._order = list(self._waiting.values())
            self._random.seed(self._seed)
            self._random.shuffle(self._order)
            self._order.reverse()
        mask = open_mask(processors)
        for position in range(len(self._order) - 1, -1, -1):
            task = self._order[position]
            waits = self._waiting.get(task.name) is task
            if not waits or self._costs.mask(task) & mask:
                del self._order[position]
            if waits and self._costs.mask(task) & mask:
                del self._waiting[task.name]
                self._turns.add(task)
                return self._turns.pick(now_us, processors)
        return None


class CheapestType:
    """The type of processor that costs least, whatever its load; of that type in turn.

    Of types that cost the same the last one. One pointer over all processors serves all types, so
    that a task of another type between two of one may move these to one processor.
    """

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._types = [processor.kind for processor in costs.processors]
        self._waiting: dict[str, FirstInFirstOut] = {}
        """By type."""
        self._numbers: dict[str, tuple[int, str]] = {}
        """When a task came, and its type."""
        self._chosen: dict[Row, str] = {}
        self._added = 0
        self._pointer = 0

    def add(self, task: Task, /) -> None:
        """Let a task wait for its cheapest type of processor."""
        row = self._costs.row(task)
        kind = self._chosen.get(row)
        if kind is None:
            kind = self._chosen[row] = self._cheapest(row)
        queue = self._waiting.get(kind)
        if queue is None:
            queue = self._waiting[kind] = FirstInFirstOut(self._costs)
        self._added += 1
        self._numbers[task.name] = (self._added, kind)
        queue.add(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._waiting[self._numbers.pop(task.name)[1]].remove(task)

    def pick(self, _now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the first task of which a processor of its type is open, and the next of these."""
        first, chosen, of_type = self._added + 1, None, ""
        for kind, queue in self._waiting.items():
            states = [state for state in processors if state.processor.kind == kind]
            task = queue.head(states)
            if task is not None and self._numbers[task.name][0] < first:
                first, chosen, of_type = self._numbers[task.name][0], task, kind
        if chosen is None:
            return None
        self.withdraw(chosen)
        return chosen, self._next(chosen, of_type, processors)

    def _cheapest(self, row: Row) -> str:
        best_us, best = float("inf"), ""
        for kind in reversed(list(dict.fromkeys(self._types))):
            cost_us = min(us for us, name in zip(row, self._types, strict=True) if name == kind)
            if cost_us < best_us:
                best_us, best = cost_us, kind
        return best

    def _next(self, task: Task, kind: str, processors: Sequence[ProcessorState]) -> ProcessorState:
        mask = self._costs.mask(task)
        while True:
            state = processors[self._pointer]
            self._pointer = (self._pointer + 1) % len(processors)
            if state.open and state.processor.kind == kind and mask >> state.index & 1:
                return state
