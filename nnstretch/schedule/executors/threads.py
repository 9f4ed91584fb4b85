"""The executor with real threads: one pinned thread and one bounded queue per processor."""

from __future__ import annotations

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Self

from nnstretch.errors import ProcessorFailed, Stuck, contained
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin, sleep_until
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.inbox import Inbox, Message, QueuedTask
from nnstretch.schedule.executors.timetable import MADE_UP_S, ChipClock, Timetable
from nnstretch.schedule.executors.virtual import Event, Work, processor_failed, queue_full
from nnstretch.soc import Processor, require_distinct
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent


class ThreadExecutor:
    """Threads of this host, with times in microseconds of the emulated chip.

    Every processor has a thread and a bounded queue; the processor `caller` may be the calling
    thread's, which then works inside `wait()`: as in NN-Stretch's Algorithm 1 the CPU branch and
    the merge behind it need no hand-over.

    A task with a time in `durations_us` ends when its slot of the timetable does, `dilation` times
    slower, so that a slow host keeps up; `now_us` and spans are divided by `dilation` again. The
    calling thread is the chip's host thread, which takes `handovers_us` to enqueue. A task without
    a predicted time lasts as long as its work.

    A task that raises ends as a Failure and its thread goes on; ProcessorFailed also loses its
    processor and all that is queued there. `disturbances` act as on the virtual clock.

    Threads serve one run after another: `restart` begins the next, `unpin` gives the calling thread
    its cores back in between. Raises BadInput where two processors have one name.
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
        require_distinct(processors, "threads")  # two threads of one queue never end
        self.processors = processors
        self._work = work
        self._durations_us = durations_us or {}
        self._enqueue_us = handovers_us or {}
        self._dilation = dilation
        self._caller = caller
        self._disturbances = disturbances
        self._in_flight: Counter[str] = Counter()
        self._lost: set[str] = set()
        self._done: Inbox[tuple[Event, bool] | Message] = queue.SimpleQueue()
        self._inbox: dict[str, Inbox[QueuedTask | None]] = {
            p.name: queue.SimpleQueue() for p in processors
        }
        self._timers: list[tuple[float, int, TimerEvent]] = []
        self._timers_set = 0
        self._listens = False
        self._stopping = False
        self.late = 0
        """Tasks whose own work took longer than their time, so that the timetable slipped."""
        self._unpin: tuple[int, set[int]] | None = None
        names = [processor.name for processor in processors]
        self._cores = dict(zip(names, core_per_thread(len(names)), strict=True))
        self._processor_of = {self._thread(name): name for name in names if name != caller}
        self.threads = list(self._processor_of)
        """Those of the processors, which begin with the first task."""
        self._is_started = False
        self.restart()

    def _thread(self, processor: str) -> threading.Thread:
        name, args = f"nnstretch-{processor}", (processor,)
        return threading.Thread(target=self._serve, args=args, name=name, daemon=True)

    def _start(self) -> None:
        for thread in self.threads:
            if thread.ident is None:
                thread.start()
        self._is_started = True

    def restart(
        self,
        work: Work | None = None,
        durations_us: TaskTimes | None = None,
        dilation: float | None = None,
        handovers_us: TaskTimes | None = None,
    ) -> None:
        """Set the clock to 0 for a new run of the calling thread; nothing may be in flight.

        What is None stays as it was.
        """
        self._work = self._work if work is None else work
        self._durations_us = self._durations_us if durations_us is None else durations_us
        self._dilation = self._dilation if dilation is None else dilation
        self._enqueue_us = self._enqueue_us if handovers_us is None else handovers_us
        self._timetable = Timetable(self._disturbances, self.processors)
        self._ends_us: dict[str, float] = {}
        """When the slot of each task ends.

        Its successors count from there, so that lateness of the host does not add up.
        """
        self._moment_us = 0.0
        self._clock = ChipClock(perf_counter(), self._dilation)
        core = None if self._caller is None else self._cores[self._caller]
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
        return self._clock.us(perf_counter())

    def failed(self) -> frozenset[str]:
        """Return the names of processors that have failed."""
        if not (self._lost or self._disturbances.fails):
            return frozenset()
        now_us, names = self.now_us, [p.name for p in self.processors]
        away = [name for name in names if self._disturbances.is_away(name, now_us)]
        return frozenset((*away, *self._lost))

    def set_timer(self, at_us: float, what: Hashable, /) -> None:
        """Ask for a TimerEvent at a time of this clock."""
        if at_us < inf:
            self._timers_set += 1
            heapq.heappush(self._timers, (at_us, self._timers_set, TimerEvent(at_us, what)))

    def submit(self, task: Task, processor: Processor, ready_us: float = 0.0, /) -> None:
        """Put a task into a processor's queue; `ready_us` counts only where its time is predicted.

        Raises Stuck when the threads are closed or the queue is full.
        """
        if self._stopping:
            raise Stuck(f"{task.name} cannot start, the threads have been closed, make new ones")
        if self._in_flight[processor.name] >= processor.queue_depth:
            raise queue_full(task, processor)
        if not self._is_started:
            self._start()
        self._in_flight[processor.name] += 1
        now_us, slot, host_us, key = self.now_us, None, 0.0, (task.work, processor.name)
        if key in self._durations_us:
            begin_us, enqueue_us = min(self._moment_us, now_us), self._enqueue_us.get(key, 0.0)
            duration_us = self._durations_us[key]
            slot = self._timetable.enqueue(processor, begin_us, enqueue_us, duration_us, ready_us)
            host_us, lost_us = slot.host_us, self._lost_us(processor.name, now_us)
            if slot.end_us > lost_us:
                host_us = self._timetable.cut(processor, lost_us)
        self._inbox[processor.name].put(QueuedTask(task, now_us, slot))
        if slot is not None:
            sleep_until(self._clock.at_s(host_us))

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
        if not (self._timers or self._listens or any(self._in_flight.values())):
            return None
        try:
            event, late = self._next_event()
        except BaseException:
            self.close()
            raise
        self.late += late
        moment_us = self.now_us
        if not isinstance(event, TimerEvent):
            self._in_flight[event.processor] -= 1
            moment_us = self._ends_us.pop(event.task.name, moment_us)
        self._moment_us = max(self._moment_us, moment_us)  # events may come out of order
        return event

    def more(self) -> bool:
        """Return whether another thread has sent something already."""
        return not self._done.empty()

    def _next_event(self) -> tuple[Event, bool]:
        """Return what has ended, else run the caller's next task, else wait; and whether late."""
        inbox = self._inbox.get(self._caller or "")
        if self._done.empty() and inbox is not None and not inbox.empty():
            queued = inbox.get()
            if queued is not None:
                return self._span_or_failure(queued, self._caller or "")
        ended = self._await_done()
        if isinstance(ended, Message):
            return TimerEvent(self.now_us, ended.content), False
        return ended

    def _await_done(self) -> tuple[Event, bool] | Message:
        """Wait for what another thread puts into `_done`, or for the next timer."""
        if not self._timers:
            return self._done.get()
        try:
            left_s = (self._timers[0][0] - self.now_us) * self._dilation / 1e6
            left_s = min(left_s, threading.TIMEOUT_MAX)
            return self._done.get(timeout=left_s) if left_s > 0 else self._done.get_nowait()
        except queue.Empty:
            return heapq.heappop(self._timers)[2], False

    def current_processor(self) -> str:
        """Return the processor of the calling thread, where that is one of theirs."""
        return self._processor_of[threading.current_thread()]

    def is_worker(self) -> bool:
        """Return whether the calling thread is one of the processors'."""
        return threading.current_thread() in self.threads

    def close(self) -> None:
        """Drop what is queued, let what runs end, and join every thread; harmless when repeated."""
        self._stopping = True
        for inbox in self._inbox.values():
            with suppress(queue.Empty):
                while True:
                    inbox.get_nowait()
            inbox.put(None)
        for thread in self.threads:  # the current one may be of them and collect garbage
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        self.unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _serve(self, processor: str) -> None:
        """Serve a processor's queue on a thread of its own."""
        pin(self._cores[processor])
        inbox = self._inbox[processor]
        while (queued := inbox.get()) is not None and not self._stopping:
            self._done.put(self._span_or_failure(queued, processor, BaseException))

    def _span_or_failure(
        self, queued: QueuedTask, processor: str, caught: type[BaseException] = Exception
    ) -> tuple[Event, bool]:
        """Run a task; return its span and whether it was late, or its failure.

        `caught`: on a processor's thread sys.exit(), too, ends the task and not the thread.
        """
        lost_us = self._lost_us(processor, queued.submitted_us)
        try:
            if lost_us < inf and lost_us <= self.now_us:
                raise processor_failed(processor, lost_us)
            return self._run_timed(queued, processor, lost_us)
        except caught as error:
            if isinstance(error, ProcessorFailed) and self.now_us < lost_us:
                self._lost.add(processor)  # its backend said so: its queue must not start
            where = f"{queued.task.name} failed, processor {processor}"
            return Failure(self.now_us, queued.task, processor, contained(error, where)), False

    def _lost_us(self, processor: str, submitted_us: float) -> float:
        """Return when a processor loses what it was given at a time; infinity for never."""
        is_lost = processor in self._lost
        return submitted_us if is_lost else self._disturbances.lost_us(processor, submitted_us)

    def _run_timed(self, queued: QueuedTask, processor: str, lost_us: float) -> tuple[Span, bool]:
        """Do the work, wait for the end of its slot, and return whether it was late."""
        task, slot, clock = queued.task, queued.slot, self._clock
        if slot is not None:
            sleep_until(clock.at_s(min(slot.start_us, lost_us)))
        start_s, late = perf_counter(), False
        self._work(task)
        if slot is not None:
            begin_us = max(slot.start_us, clock.us(start_s - MADE_UP_S))
            duration_us = self._durations_us[task.work, processor]
            end_us = self._disturbances.end_us(processor, begin_us, duration_us)
            late = self.now_us > end_us
            self._ends_us[task.name] = min(end_us, lost_us)
            sleep_until(clock.at_s(min(end_us, lost_us)))
        if (end_s := perf_counter()) > clock.at_s(lost_us):
            raise processor_failed(processor, lost_us)
        enqueued_us = queued.submitted_us if slot is None else slot.enqueued_us
        return Span(clock.us(start_s), clock.us(end_s), task, processor, enqueued_us), late
