"""Static placement: every task where its plan put it, accelerators before the CPU."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from nnstretch.errors import UnknownName
from nnstretch.protocols import Choice, ProcessorState
from nnstretch.soc import Processor
from nnstretch.task import Task

LAST = 2
"""The CPU's turn."""


class StaticPlacement:
    """Algorithm 1 of NN-Stretch: every task where its plan put it, accelerators before the CPU.

    An accelerator's queue is filled before the CPU starts on its own branch, so that both work at
    once; the meeting point is a task that needs all branches, so it waits for the slowest. Of
    several requests the oldest goes first: what meets late would else wait behind whoever comes
    new.
    """

    def __init__(self, processors: Sequence[str], asynchronous_first: bool = True) -> None:
        """Create the policy for all processors of a chip, by name.

        With `asynchronous_first` a queue is filled before a thread enters a call, so that both work
        at once; without, accelerators keep the order of the tasks, as a runtime does that walks its
        graph.
        """
        self._asynchronous_first = asynchronous_first
        self._waiting: dict[str, list[tuple[int, int, Task]]] = {name: [] for name in processors}
        """By processor, the oldest request first."""
        self._numbers: dict[str, int] = {}
        """Of the tasks that wait, in the order in which they were announced."""
        self._count = count()

    def add(self, task: Task, /) -> None:
        """Let a task wait for its processor. Raises UnknownName where that is unknown."""
        waiting = self._waiting.get(task.processor or "")
        if waiting is None:
            raise UnknownName(
                f"unknown processor {task.processor!r}, task {task.name}, it is one of"
                f" {', '.join(self._waiting)}"
            )
        number = next(self._count)
        self._numbers[task.name] = number
        heapq.heappush(waiting, (task.request, number, task))

    def withdraw(self, task: Task, /) -> None:
        """Forget a task; its entry leaves when it comes to the head."""
        self._numbers.pop(task.name, None)

    def pick(self, _now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the next task on the processor of its plan, or None."""
        best, choice = (LAST + 1, 0, 0), None
        for state in processors:
            if not state.open:
                continue
            head = self._head(state.processor.name)
            if head is None:
                continue
            rank = (self._priority(state.processor), head[0], head[1])
            if rank < best:
                best, choice = rank, (head[2], state)
        if choice is not None:
            task, state = choice
            heapq.heappop(self._waiting[state.processor.name])
            del self._numbers[task.name]
        return choice

    def _head(self, processor: str) -> tuple[int, int, Task] | None:
        waiting = self._waiting[processor]
        while waiting and self._numbers.get(waiting[0][2].name) != waiting[0][1]:
            heapq.heappop(waiting)
        return waiting[0] if waiting else None

    def _priority(self, processor: Processor) -> int:
        if processor.kind == "cpu":
            return LAST
        return int(self._asynchronous_first and not processor.asynchronous)
