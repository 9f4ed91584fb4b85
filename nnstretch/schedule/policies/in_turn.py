"""Policies that look at no load: processors in turn, and the cheapest type of processor.

CEDR's SIMPLE, RANDOM and MET (UA-RCL/CEDR, `src-api/scheduler.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows, Kind, Row
from nnstretch.schedule.policies.waiting import FirstInFirstOut, open_mask
from nnstretch.task import Task


class InTurn(FirstInFirstOut):
    """First in, first out, and processors in turn: one pointer, which moves on with every try.

    `mask_of` says which processors a task may take. One pointer serves all tasks, even where their
    processors differ: each task moves it for the next.
    """

    def __init__(self, mask_of: Callable[[Task], int]) -> None:
        super().__init__(mask_of)
        self._pointer = 0

    def pick(self, _now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the first task and the next open processor that may have it."""
        taken = self.take(processors)
        if taken is None:
            return None
        task, mask = taken
        pointer, count = self._pointer, len(processors)
        while True:
            state = processors[pointer]
            pointer += 1
            if pointer == count:
                pointer = 0
            if state.open and mask >> state.index & 1:
                self._pointer = pointer
                return task, state


class RandomOrder:
    """Round robin over a queue that is shuffled at every round, from one seed."""

    def __init__(self, costs: CostRows, seed: int) -> None:
        self._turns = InTurn(costs.mask)
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


class CheapestTypeInTurn(InTurn):
    """First in, first out, to processors in turn of the type that costs a task least.

    While all of that type that can run it have failed, of the cheapest type that is left.
    """

    def __init__(self, costs: CostRows) -> None:
        super().__init__(CheapestType(costs).mask)
        costs.watch_failed(self.sort_anew)


class CheapestType:
    """Which processors are of the type that costs a task least, whatever their load.

    Of types that cost the same the last one; those that have failed count where nothing is left.
    """

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._types = [processor.kind for processor in costs.processors]
        self._masks: dict[Kind, int] = {}
        costs.watch(self._cost_changed)
        costs.watch_failed(self._masks.clear)

    def mask(self, task: Task) -> int:
        """Return the mask of these processors."""
        kind = task.plan, task.subgraph, task.processor
        mask = self._masks.get(kind)
        if mask is None:
            mask = self._masks[kind] = self._mask(self._costs.row(task))
        return mask

    def _cost_changed(self, kind: Kind) -> None:
        self._masks.pop(kind, None)

    def _mask(self, row: Row) -> int:
        if self._costs.failed:
            alive = self._costs.alive_row(row)
            row = row if min(alive) == inf else alive
        best_us, best = inf, ""
        for kind in reversed(list(dict.fromkeys(self._types))):
            cost_us = min(us for us, name in zip(row, self._types, strict=True) if name == kind)
            if cost_us < best_us:
                best_us, best = cost_us, kind
        mask = 0
        for index, kind in enumerate(self._types):
            if kind == best and row[index] < inf:
                mask |= 1 << index
        return mask
