"""Who goes first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nnstretch.errors import UnknownName
from nnstretch.protocols import SchedulerState
from nnstretch.soc import Processor
from nnstretch.task import Task

LAST = 2
"""The CPU's turn."""


@dataclass(frozen=True, slots=True)
class StaticPlacement:
    """Algorithm 1 of NN-Stretch: every task where its plan put it, accelerators before the CPU.

    An accelerator's queue is filled before the CPU starts on its own branch, so that both work at
    once; the meeting point is a task that needs all branches, so it waits for the slowest. Of
    several requests the oldest goes first: what meets late would else wait behind whoever comes
    new.
    """

    processors: tuple[str, ...]
    """All of the chip's, so that a task placed nowhere is told from one whose processor is busy."""
    asynchronous_first: bool = True
    """A queue is filled before a thread enters a call, so that both work at once.

    False keeps the order of the tasks among accelerators, as a runtime does that walks its graph.
    """

    def pick(self, moment: SchedulerState, /) -> tuple[Task, Processor] | None:
        """Return the next task on the processor of its plan, or None.

        Raises UnknownName when a task names an unknown processor.
        """
        free = {processor.name: processor for processor in moment.free}
        best, choice = (LAST, math.inf), None
        for task in moment.ready:
            if task.processor not in self.processors:
                raise UnknownName(
                    f"unknown processor {task.processor!r}, task {task.name}, it is one of"
                    f" {', '.join(self.processors)}"
                )
            if (processor := free.get(task.processor)) is None:
                continue
            if (rank := (self._priority(processor), task.request)) < best:
                best, choice = rank, (task, processor)
        return choice

    def _priority(self, processor: Processor) -> int:
        if processor.kind == "cpu":
            return LAST
        return int(self.asynchronous_first and not processor.asynchronous)
