"""Policies that take tasks in an order of their own, each to the processor that suits it best.

CEDR's EFT and HEFT_RT, the classics MCT and OLB (Braun et al., JPDC 61(6), 2001), least slack
(mrsnu/band).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows, Kind, Row, is_late
from nnstretch.schedule.policies.finish import earliest_finish
from nnstretch.schedule.policies.waiting import FirstInFirstOut, LeastKeyFirst
from nnstretch.task import Task


class EarliestFinish(FirstInFirstOut):
    """First in, first out, where it ends first; `last_wins`: of equals the last processor."""

    def __init__(self, costs: CostRows, last_wins: bool = False) -> None:
        super().__init__(costs.mask)
        self._costs = costs
        self._last_wins = last_wins

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the first task, and where it ends first."""
        taken = self.take(processors)
        if taken is None:
            return None
        task = taken[0]
        scanned = reversed(processors) if self._last_wins else processors
        return task, earliest_finish(task, self._costs, now_us, scanned)[1]


class FirstAvailable(FirstInFirstOut):
    """First in, first out, on the processor that is available first, whatever it costs there."""

    def __init__(self, costs: CostRows) -> None:
        super().__init__(costs.mask)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the first task, and the processor that is available first."""
        taken = self.take(processors)
        if taken is None:
            return None
        task, mask = taken
        best_us, best = inf, None
        for state in processors:
            if state.open and mask >> state.index & 1:
                available_us = max(now_us, state.free_us)
                if available_us < best_us:
                    best_us, best = available_us, state
        return task, best


class LargestMeanFirst:
    """HEFT_RT: the task of largest mean cost over types of processors, where it ends first.

    Mack, Arda, Ogras, Akoglu, TPDS 33(9), 2022: waiting tasks need nothing of each other, so that
    HEFT's upward rank is the mean cost.
    """

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._waiting = LeastKeyFirst()
        self._keys: dict[Kind, tuple[float, int]] = {}
        """Mean cost, below 0, and the mask of the processors that can run it."""
        costs.watch(self._cost_changed)
        first: dict[str, int] = {}
        for number, processor in enumerate(costs.processors):
            first.setdefault(processor.kind, number)
        self._of_type = list(first)

    def add(self, task: Task, /) -> None:
        """Let a task wait among those of its mean cost."""
        kind = task.plan, task.subgraph, task.processor
        known = self._keys.get(kind)
        if known is None:
            costs = self._costs.of(task)
            known = self._keys[kind] = -self._mean(costs.row), costs.mask
        self._waiting.add(task, known[0], known[1])

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._waiting.withdraw(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the task of largest mean cost, and where it ends first."""
        task = self._waiting.take(processors)
        if task is None:
            return None
        return task, earliest_finish(task, self._costs, now_us, processors)[1]

    def _cost_changed(self, kind: Kind) -> None:
        self._keys.pop(kind, None)

    def _mean(self, row: Row) -> float:
        """Return the mean over the types that can run it, each at its cheapest processor."""
        by_type = dict.fromkeys(self._of_type, inf)
        for cost_us, processor in zip(row, self._costs.processors, strict=True):
            by_type[processor.kind] = min(by_type[processor.kind], cost_us)
        # A loop: `sum` rounds otherwise from Python 3.12 on, and the same in C++ would differ.
        total_us, types = 0.0, 0
        for cost_us in by_type.values():
            if isfinite(cost_us):
                total_us += cost_us
                types += 1
        return total_us / types


class LeastSlack:
    """The task with the least time to spare until its deadline, where it ends first.

    Slack is deadline - now - what it costs at least. With `drop`, a task that can end in time on no
    processor is given up. What a busy processor was given stays in its order: where the most urgent
    of all is to go first, only idle processors may be given work.
    """

    def __init__(self, costs: CostRows, drop: bool = False) -> None:
        self._costs = costs
        self._drop = drop
        self._waiting = LeastKeyFirst()

    def add(self, task: Task, /) -> None:
        """Let a task wait among those of its slack."""
        costs = self._costs.of(task)
        self._waiting.add(task, task.deadline_us - min(costs.row), costs.mask)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._waiting.withdraw(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the task of least slack, and where it ends first; None for one given up."""
        task = self._waiting.take(processors)
        if task is None:
            return None
        if self._drop and self._is_late(task, now_us, processors):
            return task, None
        return task, earliest_finish(task, self._costs, now_us, processors)[1]

    def _is_late(self, task: Task, now_us: float, processors: Sequence[ProcessorState]) -> bool:
        """Return whether no processor, busy ones among them, can end a task in time."""
        row = self._costs.row(task)
        for state in processors:
            end_us = max(now_us, state.free_us) + row[state.index]
            if state.alive and not is_late(end_us, task.deadline_us):
                return False
        return True
