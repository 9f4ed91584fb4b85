"""When work starts and ends if processors take exactly their predicted times.

One rule for the virtual clock, for emulated threads and for emulated pipelines. Work starts when it
is ready and its processors have ended what was booked before. Where a host thread enqueues it, it
is ready when that is done: an enqueue and its flush for an asynchronous processor (OpenCL), a push
to a helper thread for a synchronous one (a DSP). A processor that blocks the host is called without
a helper thread: the host stays in the call until it returns. The host thread is the CPU's, so where
others keep the CPU busy, to enqueue takes longer too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nnstretch.schedule.disturbances import Disturbances
from nnstretch.soc import Processor, host_of

MADE_UP_S = 1e-3
"""Lateness of a start that a task may make up for, on a real clock.

Waking a thread costs the host time that the chip does not need. A start that is later than this
shows that the host is too slow.
"""


@dataclass(frozen=True, slots=True)
class ChipClock:
    """The chip's time on a host that emulates it `dilation` times slower."""

    origin_s: float
    dilation: float = 1.0

    def us(self, time_s: float) -> float:
        """Return the chip's time at a time of this host."""
        return (time_s - self.origin_s) * 1e6 / self.dilation

    def at_s(self, time_us: float) -> float:
        """Return the host's time at a time of the chip."""
        return self.origin_s + time_us * self.dilation / 1e6


class TimeSlot(NamedTuple):
    """The booked time of one task, in microseconds of the clock."""

    enqueued_us: float
    """When it lies in its processor's queue."""
    start_us: float
    end_us: float
    host_us: float
    """When the host thread is free again."""


class Timetable:
    """Books processors in the order of the calls; threads may share it."""

    def __init__(
        self, disturbances: Disturbances | None = None, processors: Sequence[Processor] = ()
    ) -> None:
        """Create an empty timetable. The first CPU of `processors` is the host."""
        self._disturbances = disturbances or Disturbances()
        quiet = self._disturbances == Disturbances()
        self._disturbed = None if quiet else self._disturbances
        self._host = host_of(processors) or ""
        self._host_free_us = 0.0
        self._free_us: dict[str, float] = {}
        self._lock = threading.Lock()

    def book(
        self, processors: Sequence[str], ready_us: float, duration_us: float
    ) -> tuple[float, float]:
        """Book processors together, and return the start and the end."""
        with self._lock:
            start_us = max(ready_us, *(self._free_us.get(name, 0.0) for name in processors))
            ends_us = [self._disturbances.end_us(p, start_us, duration_us) for p in processors]
            self._free_us |= dict.fromkeys(processors, max(ends_us))
        return start_us, max(ends_us)

    def enqueue(
        self,
        processor: Processor,
        now_us: float,
        enqueue_us: float,
        duration_us: float,
        ready_us: float = 0.0,
    ) -> TimeSlot:
        """Book the host thread for `enqueue_us`, then the processor for `duration_us`.

        The processor waits for data that are there at `ready_us`.
        """
        with self._lock:
            times_us = self.times_us(processor, now_us, enqueue_us, duration_us, ready_us)
            return TimeSlot(*times_us, self._host_free_us)

    def times_us(
        self,
        processor: Processor,
        now_us: float,
        enqueue_us: float,
        duration_us: float,
        ready_us: float,
    ) -> tuple[float, float, float]:
        """Enqueue for a caller without threads; return when the work is enqueued, starts, ends."""
        disturbed, name = self._disturbed, processor.name
        begin_us = self._host_free_us if self._host_free_us > now_us else now_us
        enqueued_us = begin_us + enqueue_us
        if disturbed is not None:
            enqueued_us = disturbed.end_us(self._host, begin_us, enqueue_us)
        start_us = self._free_us.get(name, 0.0)
        there_us = ready_us if ready_us > enqueued_us else enqueued_us
        if there_us > start_us:
            start_us = there_us
        end_us = start_us + duration_us
        if disturbed is not None:
            end_us = disturbed.end_us(name, start_us, duration_us)
        self._free_us[name] = end_us
        self._host_free_us = end_us if processor.blocks_host else enqueued_us
        return enqueued_us, start_us, end_us

    def cut(self, processor: Processor, at_us: float) -> float:
        """End all that a lost processor had booked, and a call that holds the host, at a time.

        Return when the host thread is free.
        """
        with self._lock:
            self._free_us[processor.name] = at_us
            if processor.blocks_host:
                self._host_free_us = min(self._host_free_us, at_us)
            return self._host_free_us
