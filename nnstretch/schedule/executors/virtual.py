"""The executor whose processors take exactly the predicted time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable
from math import inf

from nnstretch.errors import ProcessorFailed, Stuck, UnknownName
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.timetable import TimeSlot, Timetable
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

Work = Callable[[Task], object]
Event = Span | Failure | TimerEvent


def no_work(_task: Task) -> None:
    """Do nothing, for schedules of which only the times matter."""


class VirtualExecutor:
    """Exact and deterministic executor: equal tasks give equal traces, and nothing sleeps.

    Each processor serves its queue in order (`Timetable`). `work` computes a task's numbers when it
    is submitted; all that it needs has been computed by then.
    """

    def __init__(
        self,
        processors: tuple[Processor, ...],
        durations_us: TaskTimes,
        work: Work = no_work,
        disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
        handovers_us: TaskTimes | None = None,
    ) -> None:
        """Create the clock. `handovers_us`: how long the host enqueues a task, 0 where absent."""
        self.now_us = 0.0
        self._processors = processors
        self._durations_us = durations_us
        self._enqueue_us = handovers_us or {}
        self._timetable = Timetable(disturbances, processors)
        self._work = work
        self._disturbances = disturbances
        self._in_flight: Counter[str] = Counter()
        self._lost_us = dict.fromkeys((p.name for p in processors), inf)
        self._pushed = 0
        self._ahead: list[tuple[float, int, Event]] = []

    def free(self) -> tuple[Processor, ...]:
        """Return processors whose queue has room."""
        failed = self.failed()
        with_room = [p for p in self._processors if self._in_flight[p.name] < p.queue_depth]
        return tuple(p for p in with_room if p.name not in failed)

    def failed(self) -> frozenset[str]:
        """Return the names of processors that have failed."""
        return frozenset(p.name for p in self._processors if self._has_failed(p.name))

    def submit(self, task: Task, processor: Processor, /) -> None:
        """Book a task on a processor; one without a predicted time there fails at once.

        Raises Stuck when the queue is full.
        """
        name, key = processor.name, (task.work, processor.name)
        if self._in_flight[name] >= processor.queue_depth:
            raise queue_full(task, processor)
        self._in_flight[name] += 1
        if key not in self._durations_us:
            unknown = UnknownName(
                f"unknown time of {task.subgraph} on {name}, virtual clock, nobody predicted it"
            )
            self._push_event(self.now_us, Failure(self.now_us, task, name, unknown))
            return
        enqueue_us, duration_us = self._enqueue_us.get(key, 0.0), self._durations_us[key]
        slot = self._timetable.enqueue(processor, self.now_us, enqueue_us, duration_us)
        lost_us = min(self._disturbances.lost_us(name, self.now_us), self._lost_us[name])
        if slot.end_us > lost_us:
            self._timetable.cut(processor, lost_us)
            failure = Failure(lost_us, task, name, processor_failed(name, lost_us))
            self._push_event(max(self.now_us, lost_us), failure)
        else:
            self._push_event(slot.end_us, self._compute(task, name, slot))

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            self._push_event(max(at_us, self.now_us), TimerEvent(at_us, what))

    def wait(self) -> Event | None:
        """Move the clock to the next event and return that; None when nothing is in flight."""
        if not self._ahead:
            return None
        self.now_us, _, event = heapq.heappop(self._ahead)
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
        return event

    def _compute(self, task: Task, processor: str, slot: TimeSlot) -> Span | Failure:
        try:
            self._work(task)
        except Exception as error:
            if isinstance(error, ProcessorFailed):
                self._lost_us[processor] = slot.end_us
            return Failure(slot.end_us, task, processor, error)
        return Span(slot.start_us, slot.end_us, task, processor, slot.enqueued_us)

    def _has_failed(self, processor: str) -> bool:
        if self.now_us >= self._lost_us[processor]:
            return True
        return self._disturbances.is_away(processor, self.now_us)

    def _push_event(self, at_us: float, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._ahead, (at_us, self._pushed, event))


def processor_failed(processor: str, at_us: float) -> ProcessorFailed:
    """Return the error of a processor that failed."""
    return ProcessorFailed(
        f"processor {processor} failed at {at_us / 1000:.3f} ms, what was in its queue is lost"
    )


def queue_full(task: Task, processor: Processor) -> Stuck:
    """Return the error of a task for which a processor's queue has no room."""
    return Stuck(
        f"{task.name} does not fit the queue of {processor.name}, {processor.queue_depth} tasks are"
        " in it"
    )
