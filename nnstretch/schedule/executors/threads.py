"""The executor with real threads: one pinned thread and one bounded queue per processor."""

from __future__ import annotations

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import perf_counter
from types import TracebackType
from typing import Self

from nnstretch.errors import ProcessorFailed, Stuck
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin, sleep_until
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.timetable import TimeSlot, Timetable
from nnstretch.schedule.executors.virtual import Event, Work, processor_failed
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

MADE_UP_S = 1e-3
"""How much of a late start a task makes up for.

What waking a thread costs is the host's, not the chip's. More is a host too slow.
"""

Inbox = queue.SimpleQueue
"""Bounded by the count in `submit`.

A SimpleQueue wakes its reader three times faster than a Queue.
"""


class ThreadExecutor:
    """Real time on host threads, told in microseconds of the emulated chip.

    Every processor has a thread and a bounded queue of its own; one of them, `caller`, may be the
    calling thread, which then works inside `wait()`: as in NN-Stretch's Algorithm 1 the CPU branch
    and the merge behind it cost no hand-over.

    Where `durations_us` names a task's (sub-graph, processor), the task ends when its time on the
    virtual clock's timetable is over, times `dilation`, so that a host slower than the chip can
    still keep it; `now_us` and every span are divided by `dilation` again. The calling thread is
    the chip's host thread: it hands over (`handovers_us`) and waits as there. Without it a task
    takes what it takes.

    A task that raises ends as a Failure and its thread goes on; one that raises ProcessorFailed
    takes its processor with it, and everything in its queue fails likewise. `mishaps` stretch and
    fail as on the virtual clock.

    Threads serve one run after another: `restart` begins the next, `rest` gives the calling thread
    its cores back in between.
    """

    def __init__(
        self,
        processors: tuple[Processor, ...],
        work: Work,
        durations_us: TaskTimes | None = None,
        dilation: float = 1.0,
        caller: str | None = None,
        disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
        handovers_us: TaskTimes | None = None,
    ) -> None:
        self._handovers_us = handovers_us or {}
        self._processors = processors
        self._work = work
        self._durations_us = durations_us or {}
        self._dilation = dilation
        self._caller = caller
        self._in_flight: Counter[str] = Counter()
        self._disturbances, self._quiet = disturbances, not disturbances.fails
        self._gone: set[str] = set()
        self._done: Inbox[tuple[Event, bool] | BaseException | Message] = queue.SimpleQueue()
        self._alarms: list[tuple[float, int, TimerEvent]] = []
        self._set = 0
        self._listens = False
        self._inbox: dict[str, Inbox[tuple[Task, float, TimeSlot | None] | None]] = {
            p.name: queue.SimpleQueue() for p in processors
        }
        self._stopping = False
        self.late = 0
        """Tasks whose own work took longer than their time, so that the timetable slipped."""
        self._at_work = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._unpin: tuple[int, set[int]] | None = None
        self._placed = dict(
            zip((p.name for p in processors), core_per_thread(len(processors)), strict=True)
        )
        self._start()
        self.restart()

    def _start(self) -> None:
        for name, core in self._placed.items():
            if name != self._caller:
                self._threads.append(
                    threading.Thread(
                        target=self._serve, args=(name, core), name=f"nnstretch-{name}", daemon=True
                    )
                )
                self._threads[-1].start()
                self._at_work.acquire()

    def restart(
        self,
        work: Work | None = None,
        durations_us: TaskTimes | None = None,
        dilation: float | None = None,
        handovers_us: TaskTimes | None = None,
    ) -> None:
        """Make now zero, for a new run of the calling thread.

        With other work and times where they are given. Nothing may be in flight.
        """
        self._work = self._work if work is None else work
        self._durations_us = self._durations_us if durations_us is None else durations_us
        self._dilation = self._dilation if dilation is None else dilation
        self._handovers_us = self._handovers_us if handovers_us is None else handovers_us
        self._timetable = Timetable(
            self._durations_us, self._handovers_us, self._disturbances, self._processors
        )
        self._ends_us: dict[str, float] = {}
        """By task, when its time is over.

        What needs it counts from there, so that lateness of the host does not add up.
        """
        self._moment_us = 0.0
        self._origin_s = perf_counter()
        core = None if self._caller is None else self._placed[self._caller]
        if self._unpin is None and core is not None and (before := affinity()):
            self._unpin = (threading.get_ident(), before)
            pin(core)

    def unpin(self) -> None:
        """Let the calling thread use all its cores again, until the next `restart`."""
        if self._unpin is not None and self._unpin[0] == threading.get_ident():
            pin(self._unpin[1])
        self._unpin = None

    @property
    def now_us(self) -> float:
        """Return the time since the run began, on the chip's clock."""
        return self._us(perf_counter())

    def free(self) -> tuple[Processor, ...]:
        """Return processors whose queue has room."""
        in_flight = self._in_flight
        free_processors = tuple([p for p in self._processors if in_flight[p.name] < p.queue_depth])
        return (
            tuple(p for p in free_processors if p.name not in gone)
            if (gone := self.failed())
            else free_processors
        )

    def failed(self) -> frozenset[str]:
        """Return the names of processors that have failed."""
        if not (self._gone or self._disturbances.fails):
            return frozenset()
        now_us = self.now_us
        return frozenset(
            p.name
            for p in self._processors
            if p.name in self._gone or self._disturbances.is_away(p.name, now_us)
        )

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            self._set += 1
            heapq.heappush(self._alarms, (at_us, self._set, TimerEvent(at_us, what)))

    def submit(self, task: Task, processor: Processor, /) -> None:
        """Hand a task to a processor's thread.

        Raises Stuck when the threads are closed or the queue is full.
        """
        if self._stopping:
            raise Stuck(f"{task.name} cannot start, the threads have been closed, make new ones")
        if self._in_flight[processor.name] >= processor.queue_depth:
            raise Stuck(
                f"{task.name} does not fit the queue of {processor.name}, {processor.queue_depth}"
                " tasks are in it"
            )
        self._in_flight[processor.name] += 1
        now_us = self.now_us
        predicted = (task.work, processor.name) in self._durations_us
        slot = (
            self._timetable.book(task, processor, min(self._moment_us, now_us))
            if predicted
            else None
        )
        self._inbox[processor.name].put((task, now_us, slot))
        if slot is not None:
            sleep_until(self._at_s(slot.host_us))

    def call(self, what: Hashable) -> None:
        """Send a message from any thread: `wait` returns a TimerEvent of it at once.

        `listen` first, or nobody may be waiting.
        """
        self._done.put(Message(what))

    def listen(self) -> None:
        """Let `wait` wait for messages from now on, even where nothing is in flight."""
        self._listens = True

    def wait(self) -> Event | None:
        """Return what happens next; None when nothing is in flight."""
        if not (self._alarms or self._listens or any(self._in_flight.values())):
            return None
        try:
            event, late = self._next()
        except BaseException:
            self.close()
            raise
        self.late += late
        over_us = (
            self.now_us
            if isinstance(event, TimerEvent)
            else self._ends_us.pop(event.task.name, self.now_us)
        )
        self._moment_us = max(
            self._moment_us, over_us
        )  # events may come in another order than their times
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
        return event

    def _next(self) -> tuple[Event, bool]:
        """Return what has ended, else the caller's own next task.

        Else what ends, is called or is due next.
        """
        mine = self._inbox.get(self._caller or "")
        if (
            self._done.empty()
            and mine is not None
            and not mine.empty()
            and (order := mine.get()) is not None
        ):
            return self._span_or_failure(*order, self._caller or "")
        ended = self._handle_message()
        if isinstance(ended, BaseException):
            raise ended
        if isinstance(ended, Message):
            return TimerEvent(self.now_us, ended.what), False
        return ended

    def _handle_message(self) -> tuple[Event, bool] | BaseException | Message:
        if not self._alarms:
            return self._done.get()
        try:
            left_s = (self._alarms[0][0] - self.now_us) * self._dilation / 1e6
            return self._done.get(timeout=left_s) if left_s > 0 else self._done.get_nowait()
        except queue.Empty:
            return heapq.heappop(self._alarms)[2], False

    def close(self) -> None:
        """Drop what is queued, let what runs end, and join every thread; harmless when repeated."""
        self._stopping = True
        for inbox in self._inbox.values():
            with suppress(queue.Empty):
                while True:
                    inbox.get_nowait()
            inbox.put(None)
        for thread in self._threads:
            if (
                thread is not threading.current_thread()
            ):  # which may be the one that collects garbage
                thread.join()
        self.unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _us(self, time_s: float) -> float:
        return (time_s - self._origin_s) * 1e6 / self._dilation

    def _at_s(self, time_us: float) -> float:
        return self._origin_s + time_us * self._dilation / 1e6

    def _serve(self, processor: str, core: set[int] | None) -> None:
        pin(core)
        self._at_work.release()
        inbox = self._inbox[processor]
        while (order := inbox.get()) is not None and not self._stopping:
            try:
                self._done.put(self._span_or_failure(*order, processor))
            except BaseException as error:
                self._done.put(error)
                return

    def _span_or_failure(
        self, task: Task, given_us: float, slot: TimeSlot | None, processor: str
    ) -> tuple[Event, bool]:
        """Return a task's span, and whether it was late; or what went wrong, in its queue or at
        work.
        """
        lost_us = inf if self._quiet else self._disturbances.lost_us(processor, given_us)
        lost_us = given_us if processor in self._gone else lost_us
        try:
            if lost_us < inf and lost_us <= self.now_us:
                raise processor_failed(processor, lost_us)
            return self._run_timed(task, given_us, slot, processor, lost_us)
        except Exception as error:
            if isinstance(error, ProcessorFailed) and self.now_us < lost_us:
                self._gone.add(
                    processor
                )  # its backend said so: what is behind it in the queue must not start
            return Failure(self.now_us, task, processor, error), False

    def _run_timed(
        self, task: Task, given_us: float, slot: TimeSlot | None, processor: str, lost_us: float
    ) -> tuple[Span, bool]:
        """Do the work, sit out the rest of its time, and say whether there was none left."""
        if slot is not None:
            sleep_until(self._at_s(min(slot.start_us, lost_us)))
        start_s, late = perf_counter(), False
        self._work(task)
        if slot is not None:
            begun_us = max(slot.start_us, self._us(start_s - MADE_UP_S))
            end_us = self._disturbances.end_us(
                processor, begun_us, self._durations_us[task.work, processor]
            )
            late = self.now_us > end_us
            self._ends_us[task.name] = end_us
            sleep_until(self._at_s(min(end_us, lost_us)))
        if (end_s := perf_counter()) > self._at_s(lost_us):
            raise processor_failed(processor, lost_us)
        handed_us = given_us if slot is None else slot.handed_us
        return Span(self._us(start_s), self._us(end_s), task, processor, handed_us), late


@dataclass(frozen=True, slots=True)
class Message:
    """What another thread wants the loop to hear of."""

    what: Hashable
