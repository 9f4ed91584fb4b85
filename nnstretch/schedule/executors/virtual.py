"""The executor whose processors take exactly the predicted time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable
from math import inf

from nnstretch.errors import ProcessorFailed, Stuck, UnknownName
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.timetable import Timetable
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

Work = Callable[[Task], object]
Event = Span | Failure | TimerEvent


def no_work(_task: Task) -> None:
    """Do nothing, for schedules of which only the times matter."""


class VirtualExecutor:
    """Exact and deterministic: equal tasks give equal traces, and nothing sleeps.

    Each processor serves its queue in order, as its manner of working says (`Timetable`); a task
    whose time there nobody predicted fails at once. `work` computes a task's numbers when the task
    starts to count; by then everything it needs has been computed.
    """

    def __init__(
        self,
        processors: tuple[Processor, ...],
        durations_us: TaskTimes,
        work: Work = no_work,
        disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
        handovers_us: TaskTimes | None = None,
    ) -> None:
        """Create the clock; `handovers_us`: how long the host is held to hand a sub-graph to a
        processor.

        Nothing where absent.
        """
        self.now_us = 0.0
        self._processors = processors
        self._durations_us = durations_us
        self._timetable = Timetable(durations_us, handovers_us or {}, disturbances, processors)
        self._work = work
        self._disturbances = disturbances
        self._in_flight: Counter[str] = Counter()
        self._gone_us = dict.fromkeys((p.name for p in processors), inf)
        self._noted = 0
        self._ahead: list[tuple[float, int, Event]] = []

    def free(self) -> tuple[Processor, ...]:
        """Return processors whose queue has room."""
        gone = self.failed()
        return tuple(
            p
            for p in self._processors
            if self._in_flight[p.name] < p.queue_depth and p.name not in gone
        )

    def failed(self) -> frozenset[str]:
        """Return the names of processors that have failed."""
        return frozenset(
            p.name
            for p in self._processors
            if self.now_us >= self._gone_us[p.name]
            or self._disturbances.is_away(p.name, self.now_us)
        )

    def submit(self, task: Task, processor: Processor, /) -> None:
        """Book a task on a processor; it ends after its duration.

        Raises Stuck when the queue is full.
        """
        name = processor.name
        if self._in_flight[name] >= processor.queue_depth:
            raise Stuck(
                f"{task.name} does not fit the queue of {name}, {processor.queue_depth} tasks are"
                " in it"
            )
        if (task.work, name) not in self._durations_us:
            self._in_flight[name] += 1
            unknown = UnknownName(
                f"unknown time of {task.subgraph} on {name}, virtual clock, nobody predicted it"
            )
            self._push_event(self.now_us, Failure(self.now_us, task, name, unknown))
            return
        slot = self._timetable.book(task, processor, self.now_us)
        lost_us = min(self._disturbances.lost_us(name, self.now_us), self._gone_us[name])
        self._in_flight[name] += 1
        if slot.end_us > lost_us:
            self._timetable.cut(processor, lost_us)
            self._push_event(
                max(self.now_us, lost_us),
                Failure(lost_us, task, name, processor_failed(name, lost_us)),
            )
            return
        try:
            self._work(task)
        except Exception as error:
            if isinstance(error, ProcessorFailed):
                self._gone_us[name] = slot.end_us
            self._push_event(slot.end_us, Failure(slot.end_us, task, name, error))
        else:
            self._push_event(
                slot.end_us, Span(slot.start_us, slot.end_us, task, name, slot.handed_us)
            )

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            self._push_event(max(at_us, self.now_us), TimerEvent(at_us, what))

    def wait(self) -> Event | None:
        """Return advance the clock to what happens next and return it; None when nothing is in
        flight.
        """
        if not self._ahead:
            return None
        self.now_us, _, event = heapq.heappop(self._ahead)
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
        return event

    def _push_event(self, at_us: float, event: Event) -> None:
        self._noted += 1
        heapq.heappush(self._ahead, (at_us, self._noted, event))


def processor_failed(processor: str, at_us: float) -> ProcessorFailed:
    """Return the error of a processor that failed."""
    return ProcessorFailed(
        f"processor {processor} failed at {at_us / 1000:.3f} ms, what was in its queue is lost"
    )
