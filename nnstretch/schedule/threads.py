"""The executor with real threads: one pinned thread and one bounded queue per processor."""

from __future__ import annotations

import os
import queue
import select
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter, sleep
from types import TracebackType
from typing import Self

from nnstretch.errors import Stuck
from nnstretch.schedule.virtual import Work
from nnstretch.soc import Processor
from nnstretch.trace import Span, Task

COARSE_S = 250e-6
"""How early the sleep before a deadline ends: the kernel wakes a thread 50 to 200 us late."""

Inbox = queue.SimpleQueue
"""Bounded by the count in `submit`: a SimpleQueue wakes its reader three times faster than a Queue."""


def sleep_until(deadline_s: float) -> None:
    """Sleep to shortly before an absolute deadline, then hand the interpreter to others until it has come."""
    if (left_s := deadline_s - perf_counter()) > COARSE_S:
        sleep(left_s - COARSE_S)
    while perf_counter() < deadline_s:
        step_aside()


def step_aside() -> None:
    """Release the interpreter lock for about a microsecond; `sleep(0)` would take 80 on Linux."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        sleep(0)


class Threads:
    """Real time on host threads, told in microseconds of the emulated chip.

    Every processor has a thread and a bounded queue of its own; one of them, `caller`, may be the
    calling thread, which then works inside `wait()`: as in NN-Stretch's Algorithm 1 the CPU branch
    and the merge behind it cost no hand-over.

    Where `durations_us` names a task's (sub-graph, processor), the task lasts at least that
    long times `dilation`, so that a host slower than the chip can still keep its timetable;
    `now_us` and every span are divided by `dilation` again. Without it a task takes what it takes.
    """

    def __init__(
        self,
        processors: tuple[Processor, ...],
        work: Work,
        durations_us: Mapping[tuple[str, str], float] | None = None,
        dilation: float = 1.0,
        caller: str | None = None,
    ) -> None:
        self._processors = processors
        self._work = work
        self._durations_us = durations_us or {}
        self._dilation = dilation
        self._caller = caller
        self._in_flight: Counter[str] = Counter()
        self._done: Inbox[tuple[Span, bool] | BaseException] = queue.SimpleQueue()
        self._inbox: dict[str, Inbox[Task | None]] = {p.name: queue.SimpleQueue() for p in processors}
        self._stopping = False
        self.late = 0
        """Tasks whose own work took longer than their time, so that the timetable slipped."""
        self._at_work = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._unpin = affinity()
        self._start()
        self.restart()

    def _start(self) -> None:
        placed = dict(zip((p.name for p in self._processors), cores(len(self._processors)), strict=True))
        for name, core in placed.items():
            if name != self._caller:
                self._threads.append(threading.Thread(target=self._serve, args=(name, core), name=f"nnstretch-{name}", daemon=True))
                self._threads[-1].start()
                self._at_work.acquire()
        if self._caller is not None:
            pin(placed[self._caller])

    def restart(self) -> None:
        """Now is zero."""
        self._origin_s = perf_counter()

    @property
    def now_us(self) -> float:
        return self._us(perf_counter())

    def free(self) -> tuple[Processor, ...]:
        return tuple(p for p in self._processors if self._in_flight[p.name] < p.queue_depth)

    def submit(self, task: Task, processor: Processor, /) -> None:
        if self._stopping:
            raise Stuck(f"{task.name} cannot start, the threads have been closed, make new ones")
        if self._in_flight[processor.name] >= processor.queue_depth:
            raise Stuck(f"{task.name} does not fit the queue of {processor.name}, {processor.queue_depth} tasks are in it")
        self._in_flight[processor.name] += 1
        self._inbox[processor.name].put(task)

    def wait(self) -> Span | None:
        if not self._in_flight.total():
            return None
        try:
            span, late = self._next()
        except BaseException:
            self.close()
            raise
        self.late += late
        self._in_flight[span.processor] -= 1
        return span

    def _next(self) -> tuple[Span, bool]:
        """What has ended; else the caller's own next task; else what ends next."""
        mine = self._inbox.get(self._caller or "")
        if self._done.empty() and mine is not None and not mine.empty() and (task := mine.get()) is not None:
            return self._time(task, self._caller or "")
        ended = self._done.get()
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def close(self) -> None:
        """Drop what is queued, let what runs end, and join every thread; harmless when repeated."""
        self._stopping = True
        for inbox in self._inbox.values():
            with suppress(queue.Empty):
                while True:
                    inbox.get_nowait()
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        pin(self._unpin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _us(self, time_s: float) -> float:
        return (time_s - self._origin_s) * 1e6 / self._dilation

    def _serve(self, processor: str, core: set[int] | None) -> None:
        pin(core)
        self._at_work.release()
        while (task := self._inbox[processor].get()) is not None and not self._stopping:
            try:
                self._done.put(self._time(task, processor))
            except BaseException as error:
                self._done.put(error)
                return

    def _time(self, task: Task, processor: str) -> tuple[Span, bool]:
        """Do the work, sit out the rest of its time, and say whether there was none left."""
        start_s, late = perf_counter(), False
        self._work(task)
        if (lasts_us := self._durations_us.get((task.subgraph, processor))) is not None:
            deadline_s = start_s + lasts_us * self._dilation / 1e6
            late = perf_counter() > deadline_s
            sleep_until(deadline_s)
        return Span(self._us(start_s), self._us(perf_counter()), task.name, processor), late


def cores(count: int) -> list[set[int] | None]:
    """A core for each thread; None where the system does not let us choose or has fewer cores than threads."""
    allowed = sorted(affinity() or ())
    return [{core} for core in allowed[:count]] if len(allowed) >= count else [None] * count


def affinity() -> set[int] | None:
    """The cores that the calling thread may use; None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def pin(allowed: set[int] | None) -> None:
    """Keep the calling thread on these cores, so that two branches never share one; a refusal is no error."""
    if allowed is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
