"""The executor whose processors take exactly the predicted time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from math import inf

from nnstretch.errors import ProcessorFailed, Stuck, UnknownName
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.timetable import Timetable
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes, quick_maker
from nnstretch.trace import Failure, Span, TimerEvent

Work = Callable[[Task], object]
Event = Span | Failure | TimerEvent
DurationOf = Callable[[Task, str], float | None]
"""How long a task takes on a processor, us; None where nobody predicted it."""
NOBODY: frozenset[str] = frozenset()
make_span, make_timer_event = quick_maker(Span), quick_maker(TimerEvent)


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
        durations_us: TaskTimes | DurationOf,
        work: Work = no_work,
        disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
        handovers_us: TaskTimes | None = None,
    ) -> None:
        """Create the clock. `durations_us`: by what is computed and where, or told of each task.

        `handovers_us`: how long the host enqueues a task, 0 where absent.
        """
        self.now_us = 0.0
        self.processors = processors
        if callable(durations_us):
            self._duration_us: DurationOf = durations_us
        else:
            self._duration_us = duration_from(durations_us)
        self._enqueue_us = handovers_us or {}
        self._timetable = Timetable(disturbances, processors)
        self._work = work
        self._disturbances = disturbances
        self._quiet = disturbances == Disturbances()
        self._in_flight = dict.fromkeys((processor.name for processor in processors), 0)
        self._lost: dict[str, float] = {}
        """By processor whose work raised ProcessorFailed: when it did."""
        self._pushed = 0
        self._ahead: list[tuple[float, int, Event]] = []

    def failed(self) -> frozenset[str]:
        """Return the names of processors that have failed."""
        if self._quiet and not self._lost:
            return NOBODY
        return frozenset(p.name for p in self.processors if self._has_failed(p.name))

    def submit(self, task: Task, processor: Processor, ready_us: float = 0.0, /) -> None:
        """Book a task on a processor; one without a predicted time there fails at once.

        Raises Stuck when the queue is full.
        """
        name, now_us = processor.name, self.now_us
        in_flight = self._in_flight[name]
        if in_flight >= processor.queue_depth:
            raise queue_full(task, processor)
        self._in_flight[name] = in_flight + 1
        duration_us = self._duration_us(task, name)
        if duration_us is None:
            unknown = UnknownName(
                f"unknown time of {task.subgraph} on {name}, virtual clock, nobody predicted it"
            )
            self._push_event(now_us, Failure(now_us, task, name, unknown))
            return
        enqueue_us = self._enqueue_us.get((task.work, name), 0.0) if self._enqueue_us else 0.0
        enqueued_us, start_us, end_us = self._timetable.times_us(
            processor, now_us, enqueue_us, duration_us, ready_us
        )
        if self._lost or not self._quiet:
            lost_us = self._lost_us(name)
            if end_us > lost_us:
                self._timetable.cut(processor, lost_us)
                failure = Failure(lost_us, task, name, processor_failed(name, lost_us))
                self._push_event(max(now_us, lost_us), failure)
                return
        error = None if self._work is no_work else self._compute(task, name, end_us)
        if error is None:
            self._pushed += 1
            span = make_span(start_us, end_us, task, name, enqueued_us)
            heappush(self._ahead, (end_us, self._pushed, span))
        else:
            self._push_event(end_us, Failure(end_us, task, name, error))

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            now_us = self.now_us
            self._pushed += 1
            due_us = at_us if at_us > now_us else now_us
            heappush(self._ahead, (due_us, self._pushed, make_timer_event(at_us, what)))

    def wait(self) -> Event | None:
        """Move the clock to the next event and return that; None when nothing is in flight."""
        if not self._ahead:
            return None
        self.now_us, _, event = heappop(self._ahead)
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
        return event

    def more(self) -> bool:
        """Return whether something more happens at this instant."""
        ahead = self._ahead
        return bool(ahead) and ahead[0][0] <= self.now_us

    def _compute(self, task: Task, processor: str, end_us: float) -> Exception | None:
        """Return what the work of a task raises."""
        try:
            self._work(task)
        except Exception as error:
            if isinstance(error, ProcessorFailed):
                self._lost[processor] = end_us
            return error
        return None

    def _lost_us(self, processor: str) -> float:
        lost_us = self._disturbances.lost_us(processor, self.now_us)
        return min(lost_us, self._lost.get(processor, inf))

    def _has_failed(self, processor: str) -> bool:
        if self.now_us >= self._lost.get(processor, inf):
            return True
        return self._disturbances.is_away(processor, self.now_us)

    def _push_event(self, at_us: float, event: Event) -> None:
        self._pushed += 1
        heappush(self._ahead, (at_us, self._pushed, event))


def duration_from(durations_us: TaskTimes) -> DurationOf:
    """Return the durations of a table, which may still grow."""
    known_us: dict[tuple[str, str, str], float] = {}

    def duration_us(task: Task, processor: str) -> float | None:
        # A flat key: that of the table is a tuple in a tuple, built and hashed at every look.
        key = task.plan, task.subgraph, processor
        known = known_us.get(key)
        if known is None and (task.work, processor) in durations_us:
            known = known_us[key] = durations_us[task.work, processor]
        return known

    return duration_us


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
