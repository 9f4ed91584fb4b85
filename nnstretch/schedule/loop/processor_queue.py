"""What one processor has been given, and when it is expected to be free."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from nnstretch.protocols import ProcessorState, ReservedTasks
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
class ReservedQueue(ReservedTasks):
    """Reserved tasks of one priority, first in, first out."""

    tasks: deque[OpenTask] = field(default_factory=deque)
    """Those that are over stay until they come to its head."""


@dataclass(slots=True, eq=False)
class ProcessorQueue:
    """Tasks of one processor: the executor has some, first in, first out; others are reserved.

    Of reserved tasks those of the greatest priority are handed over first, equal ones in the order
    in which they were given. When the processor is free is what the loop expects: every end shifts
    what is behind it by how much earlier or later it came than expected, so that errors of costs
    never add up.
    """

    state: ProcessorState
    depth: int
    """Tasks that the executor takes."""
    limit: float
    count: int = 0
    """Tasks that have been given and have not ended."""
    handed: int = 0
    """Tasks of `count` that the executor has."""
    head_due_us: float = inf
    """When the first of those that the executor has is expected to end."""
    _in_executor: deque[OpenTask] = field(default_factory=deque)
    _reserved: dict[int, ReservedQueue] = field(default_factory=dict)
    """By priority, the greatest first."""
    _overtaken: bool = False
    """Whether a task went before reserved ones, so that `due_us` of these is no longer right."""
    _heard_us: float = 0.0
    """When something was given or ended last."""
    _shift_us: float = 0.0

    def give(self, given: OpenTask, cost_us: float, ready_us: float, now_us: float) -> None:
        """Reserve a task behind everything of no lesser priority that was given before."""
        state, priority = self.state, given.task.priority
        reserved = self._reserved.get(priority)
        if reserved is None:
            reserved = self._reserve_for(priority)
        start_us, lesser_us = state.free_us, 0.0
        if len(self._reserved) > 1 and state.has_lesser(priority):
            self._overtaken = True
            start_us = state.free_us_for(priority)
            lesser_us = state.free_us - start_us
        if now_us > start_us:
            start_us = now_us
        if ready_us > start_us:
            start_us = ready_us
        end_us = start_us + cost_us
        state.free_us = end_us + lesser_us
        given.place, given.cost_us, given.ready_us = state.index, cost_us, ready_us
        given.due_us = end_us - self._shift_us
        self._heard_us = now_us
        self.count += 1
        state.open = self.count < self.limit
        reserved.count += 1
        reserved.total_us += cost_us
        reserved.tasks.append(given)

    def hand_over(self) -> OpenTask | None:
        """Return the next reserved task, which the executor has from now on; None without any."""
        for reserved in self._reserved.values():
            while reserved.tasks:
                given = reserved.tasks.popleft()
                if given.over:
                    continue
                if self._overtaken:
                    self._expect(given)
                self._leave(reserved, given)
                given.handed = True
                self.handed += 1
                if not self._in_executor:
                    self.head_due_us = given.due_us + self._shift_us
                self._in_executor.append(given)
                return given
        return None

    def end(self, given: OpenTask, at_us: float) -> None:
        """Hear that a task has ended or failed."""
        self.handed -= 1
        self._heard_us = at_us
        late_us = at_us - (given.due_us + self._shift_us)
        if late_us:
            self._shift_us += late_us
            self.state.free_us += late_us
        self._remove(given, at_us)

    def take_back(self, given: OpenTask, now_us: float) -> None:
        """Take back a task that was not handed over: all behind it come that much earlier."""
        self.state.free_us -= given.cost_us
        priority = given.task.priority
        for level, reserved in self._reserved.items():
            if level <= priority:
                for behind in reversed(reserved.tasks):
                    if behind is given:
                        break
                    behind.due_us -= given.cost_us
        self._leave(self._reserved[priority], given)
        self._remove(given, now_us)

    def take_back_reserved(self, now_us: float) -> list[OpenTask]:
        """Take back what was not handed over; return it in the order in which it would start."""
        lost: list[OpenTask] = []
        for reserved in self._reserved.values():
            lost += [open_task for open_task in reserved.tasks if not open_task.over]
            reserved.tasks.clear()
        for open_task in lost:
            self.state.free_us -= open_task.cost_us
            self._leave(self._reserved[open_task.task.priority], open_task)
            self._remove(open_task, now_us)
        return lost

    def be_late(self, now_us: float) -> None:
        """Hear that the first task should have ended and has not: all behind it are late too."""
        late_us = now_us - self.head_due_us
        self._shift_us += late_us
        self.state.free_us += late_us
        self.head_due_us = now_us

    def _expect(self, given: OpenTask) -> None:
        """Say anew when a task is expected to end that the executor gets next."""
        start_us = max(self._heard_us, given.ready_us)
        for before in self._in_executor:
            if not before.over:
                start_us = max(start_us, before.due_us + self._shift_us)
        given.due_us = start_us + given.cost_us - self._shift_us

    def _reserve_for(self, priority: int) -> ReservedQueue:
        """Return a queue for a priority of which nothing is reserved; drop those like it."""
        used = {level: queue for level, queue in self._reserved.items() if queue.count}
        used[priority] = ReservedQueue()
        self.state.reserved = self._reserved = dict(sorted(used.items(), reverse=True))
        return used[priority]

    def _leave(self, reserved: ReservedQueue, given: OpenTask) -> None:
        """Count a task no longer among those that are reserved."""
        if self.count - self.handed == 1:  # it was the last
            self._overtaken = False
        reserved.count -= 1
        reserved.total_us = reserved.total_us - given.cost_us if reserved.count else 0.0

    def _remove(self, given: OpenTask, at_us: float) -> None:
        given.over = True
        self.count -= 1
        state, executing = self.state, self._in_executor
        state.open = state.alive and self.count < self.limit
        while executing and executing[0].over:
            executing.popleft()
        self.head_due_us = executing[0].due_us + self._shift_us if executing else inf
        if not self.count:
            state.free_us = at_us
            self._shift_us = 0.0
