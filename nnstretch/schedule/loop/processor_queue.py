"""What one processor has been given, and when it is expected to be free."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.loop.open_task import OpenTask
from nnstretch.soc import Processor


class Queueing(Enum):
    """How much a processor may be given at a time."""

    UNBOUNDED = "unbounded"
    """Whatever the policy wants: what its own queue does not take is reserved behind it."""
    BOUNDED = "bounded"
    """What its own queue takes."""
    IDLE = "idle"
    """One task: only idle processors get work."""

    def limit(self, processor: Processor) -> float:
        """Return how many tasks a processor may have at a time."""
        if self is Queueing.UNBOUNDED:
            return inf
        return processor.queue_depth if self is Queueing.BOUNDED else 1


@dataclass(slots=True, eq=False)
class ProcessorQueue:
    """Tasks of one processor, first in, first out: the executor has the first, others wait.

    When it is free is what the loop expects: every end shifts what is behind it by how much earlier
    or later it came than expected, so that errors of costs never add up.
    """

    state: ProcessorState
    depth: int
    """Tasks that the executor takes."""
    limit: float
    count: int = 0
    """Tasks that have been given and have not ended."""
    handed: int = 0
    """Tasks of `count` that the executor has."""
    reserved: deque[OpenTask] = field(default_factory=deque)
    """Tasks before the executor's queue; those that are over stay until they come to its head."""
    head_due_us: float = inf
    """When the first is expected to end."""
    _order: deque[OpenTask] = field(default_factory=deque)
    _shift_us: float = 0.0

    def give(self, given: OpenTask, cost_us: float, ready_us: float, now_us: float) -> None:
        """Reserve a task behind everything that was given before."""
        state = self.state
        start_us = state.free_us
        if now_us > start_us:
            start_us = now_us
        if ready_us > start_us:
            start_us = ready_us
        state.free_us = end_us = start_us + cost_us
        given.place, given.cost_us, given.ready_us = state.index, cost_us, ready_us
        given.due_us = end_us - self._shift_us
        if not self.count:
            self.head_due_us = end_us
        self.count += 1
        state.open = self.count < self.limit
        self.reserved.append(given)
        self._order.append(given)

    def end(self, given: OpenTask, at_us: float) -> None:
        """Hear that a task has ended or failed."""
        self.handed -= 1
        late_us = at_us - (given.due_us + self._shift_us)
        if late_us:
            self._shift_us += late_us
            self.state.free_us += late_us
        self._remove(given, at_us)

    def take_back(self, given: OpenTask, now_us: float) -> None:
        """Take back a task that was not handed over: all behind it come that much earlier."""
        self.state.free_us -= given.cost_us
        for behind in reversed(self._order):
            if behind is given:
                break
            behind.due_us -= given.cost_us
        self._remove(given, now_us)

    def take_back_reserved(self, now_us: float) -> list[OpenTask]:
        """Take back what was not handed over; return it in the order in which it was given."""
        lost = [open_task for open_task in self.reserved if not open_task.over]
        self.reserved.clear()
        for open_task in lost:
            self.state.free_us -= open_task.cost_us
        for open_task in reversed(lost):  # so that none is behind another that is taken back
            self._remove(open_task, now_us)
        return lost

    def be_late(self, now_us: float) -> None:
        """Hear that the first task should have ended and has not: all behind it are late too."""
        late_us = now_us - self.head_due_us
        self._shift_us += late_us
        self.state.free_us += late_us
        self.head_due_us = now_us

    def _remove(self, given: OpenTask, at_us: float) -> None:
        given.over = True
        self.count -= 1
        state, order = self.state, self._order
        state.open = state.alive and self.count < self.limit
        while order and order[0].over:
            order.popleft()
        if order:
            self.head_due_us = order[0].due_us + self._shift_us
        else:
            self.head_due_us = inf
            state.free_us = at_us
            self._shift_us = 0.0
