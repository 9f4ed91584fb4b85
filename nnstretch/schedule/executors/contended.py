"""The virtual clock of a host whose processors slow each other, and whose scheduler takes time."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

from nnstretch.errors import UnknownName
from nnstretch.schedule.executors.virtual import NOBODY, DurationOf, Event, queue_full
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span, TimerEvent


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What a host takes beside its tasks, us."""

    decision_us: float = 0.0
    """From when the scheduler hears of something until a task is handed over."""
    handover_us: float = 0.0
    """From there until the task starts on an idle processor."""
    answer_us: float = 0.0
    """From the end of a task until the scheduler hears of it."""
    wake_us: float = 0.0
    """What a hand-over takes at least where none of the processor's tasks ended just now."""


def unhindered(_task: Task, _processor: str) -> float:
    """Return 1: nothing slows a task."""
    return 1.0


def steady(_now_us: float) -> float:
    """Return 1: the host is as fast as ever."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Slowing:
    """What makes tasks take longer than alone, told of a task and its processor, or of the time."""

    beside: Callable[[Task, str], float] = unhindered
    """How many times as long while all other processors work."""
    switched: Callable[[Task, str], float] = unhindered
    """How many times as long where the processor's task before was none that it needs."""
    pace: Callable[[float], float] = steady
    """How many times as long tasks take that start at a time of this clock, us."""


@dataclass(slots=True, eq=False)
class QueuedWork:
    """A task in the queue of its processor."""

    task: Task
    handed_us: float
    there_us: float
    """When it and its data lie at the processor."""
    duration_us: float
    """On a host that is at rest otherwise."""


@dataclass(slots=True, eq=False)
class RunningWork:
    """A task that runs."""

    queued: QueuedWork
    start_us: float
    remaining_us: float
    """On a host that is at rest otherwise."""
    beside: float
    """How many times as long it takes while all other processors work."""


class ContendedExecutor:
    """Exact and deterministic; a task goes the slower, the more other processors work.

    While a share s of the other processors works, a task takes 1 + s (beside - 1) times as long.
    One that needs others, and follows none of them on its processor, takes `switched` times as
    long: the caches there hold nothing of its own. Those that start in a slow moment of the host
    are slow together.
    """

    def __init__(
        self,
        processors: tuple[Processor, ...],
        duration_us: DurationOf,
        slowing: Slowing = Slowing(),
        host: HostCosts = HostCosts(),
        is_wanted: Callable[[Task], bool] | None = None,
    ) -> None:
        """Create the clock. `duration_us` is told of a task and its processor.

        A task that is not wanted when it comes to start takes no time.
        """
        self.now_us = 0.0
        self.processors = processors
        self._duration_us = duration_us
        self._slowing = slowing
        self._host = host
        self._is_wanted = is_wanted
        self._host_free_us = 0.0
        self._in_flight: Counter[str] = Counter()
        self._queues: dict[str, deque[QueuedWork]] = {p.name: deque() for p in processors}
        self._running: dict[str, RunningWork] = {}
        self._ended_us: dict[str, float] = {}
        """When the last task of a processor ended."""
        self._before: dict[str, str] = {}
        """The name of a processor's last task."""
        self._settled_us = 0.0
        """Up to when running tasks have been worked on."""
        self._pushed = 0
        self._starts: list[tuple[float, int, str]] = []
        """When a processor may have something to start."""
        self._events: list[tuple[float, int, Event]] = []

    def failed(self) -> frozenset[str]:
        """Return no names: these processors do not fail."""
        return NOBODY

    def submit(self, task: Task, processor: Processor, ready_us: float = 0.0, /) -> None:
        """Hand a task over, which takes the scheduler a decision; one without a time fails.

        Raises Stuck when the queue is full.
        """
        name = processor.name
        if self._in_flight[name] >= processor.queue_depth:
            raise queue_full(task, processor)
        self._in_flight[name] += 1
        handed_us = max(self.now_us, self._host_free_us) + self._host.decision_us
        self._host_free_us = handed_us
        duration_us = self._duration_us(task, name)
        if duration_us is None:
            unknown = UnknownName(
                f"unknown time of {task.subgraph} on {name}, virtual clock, nobody measured it"
            )
            self._push_event(handed_us, Failure(handed_us, task, name, unknown))
            return
        there_us = max(handed_us, ready_us)
        self._queues[name].append(QueuedWork(task, handed_us, there_us, duration_us))
        start_us = self._host.wake_us if self._is_asleep(name) else 0.0
        idle_us = max(handed_us + max(start_us, self._host.handover_us), ready_us)
        self._pushed += 1
        heapq.heappush(self._starts, (idle_us, self._pushed, name))

    def _is_asleep(self, name: str) -> bool:
        """Return whether a processor runs nothing, and nothing whose end is heard just now."""
        ended_us = self._ended_us.get(name, -inf) + self._host.answer_us
        return name not in self._running and ended_us < self.now_us

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            self._push_event(max(at_us, self.now_us), TimerEvent(at_us, what))

    def wait(self) -> Event | None:
        """Move the clock to the next event and return that; None when nothing is in flight."""
        while self._next_change_us() <= self._next_event_us():
            if self._next_change_us() == inf:
                return None
            self._change()
        self.now_us, _, event = heapq.heappop(self._events)
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
        return event

    def more(self) -> bool:
        """Return whether something more happens at this instant."""
        while self._next_change_us() <= self.now_us:
            self._change()
        return self._next_event_us() <= self.now_us

    def _next_event_us(self) -> float:
        return self._events[0][0] if self._events else inf

    def _next_change_us(self) -> float:
        """Return when a task next starts or ends."""
        start_us = self._starts[0][0] if self._starts else inf
        if not self._running:
            return start_us
        return min(start_us, min(map(self._end_us, self._running.values())))

    def _end_us(self, running: RunningWork) -> float:
        """Return when a task ends if none starts or ends before."""
        return self._settled_us + running.remaining_us * self._factor(running)

    def _factor(self, running: RunningWork) -> float:
        others = len(self.processors) - 1
        busy_share = (len(self._running) - 1) / others if others else 0.0
        return 1 + busy_share * (running.beside - 1)

    def _change(self) -> None:
        """Go to the next start or end."""
        name = min(self._running, key=lambda n: self._end_us(self._running[n]), default="")
        end_us = self._end_us(self._running[name]) if name else inf
        if self._starts and self._starts[0][0] < end_us:
            at_us, _, name = heapq.heappop(self._starts)
            self._settle(at_us)
            if name not in self._running:
                self._start_next(name)
            return
        self._settle(end_us)
        ended = self._running.pop(name)
        self._ended_us[name] = end_us
        queued = ended.queued
        span = Span(ended.start_us, end_us, queued.task, name, queued.handed_us)
        self._push_event(end_us + self._host.answer_us, span)
        self._start_next(name)

    def _settle(self, at_us: float) -> None:
        """Let what runs go on until a time."""
        elapsed_us = at_us - self._settled_us
        if elapsed_us > 0:
            for running in self._running.values():
                done_us = elapsed_us / self._factor(running)
                running.remaining_us = max(0.0, running.remaining_us - done_us)
            self._settled_us = at_us

    def _start_next(self, name: str) -> None:
        """Start the first task of a queue, if it is there by now."""
        queue, now_us = self._queues[name], self._settled_us
        if not queue or queue[0].there_us > now_us:
            return
        queued = queue.popleft()
        task = queued.task
        beside = self._slowing.beside(task, name)
        is_wanted = self._is_wanted is None or self._is_wanted(task)
        duration_us = queued.duration_us * self._slowing.pace(now_us) if is_wanted else 0.0
        before = self._before.get(name)
        if task.needs and before not in task.needs:
            duration_us *= self._slowing.switched(task, name)
        self._before[name] = task.name
        self._running[name] = RunningWork(queued, now_us, duration_us, beside)

    def _push_event(self, at_us: float, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_us, self._pushed, event))
