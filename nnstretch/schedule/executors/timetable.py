"""When every task starts and ends if processors take exactly their times.

The one rule behind both clocks.

Tasks pass through the host thread's hands. Handing one over holds the host for a while: an enqueue
with its flush where the processor works off a queue of its own (like OpenCL's), a push to a helper
thread where it is called (like the DSP's). Then the host goes on, unless the processor is called
without a helper thread: the host stays in the call until it returns. The host thread is the CPU's:
where others keep that busy, handing over takes longer, too. The work starts when it has been handed
over and what is before it has ended. What the host pays at a meeting point belongs to the task that
meets there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.schedule.disturbances import Disturbances
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes


@dataclass(frozen=True, slots=True)
class TimeSlot:
    """The time of one task, in microseconds of the clock."""

    handed_us: float
    """The host has handed it over: it lies in its processor's queue."""
    start_us: float
    end_us: float
    host_us: float
    """From here on the host thread is free again."""


class Timetable:
    """Books tasks in the order in which they are submitted."""

    def __init__(
        self,
        durations_us: TaskTimes,
        handovers_us: TaskTimes,
        disturbances: Disturbances,
        processors: Sequence[Processor] = (),
    ) -> None:
        self._durations_us, self._handovers_us, self._disturbances = (
            durations_us,
            handovers_us,
            disturbances,
        )
        self._host = next(
            (processor.name for processor in processors if processor.kind == "cpu"), ""
        )
        self._busy_until_us: dict[str, float] = {}
        self._host_us = 0.0

    def book(self, task: Task, processor: Processor, now_us: float) -> TimeSlot:
        """Book the next free time at or after `now_us`."""
        name = processor.name
        lasts_us = self._durations_us[task.work, name]
        handed_us = self._disturbances.end_us(
            self._host,
            max(now_us, self._host_us),
            self._handovers_us.get((task.work, name), 0.0),
        )
        start_us = max(handed_us, self._busy_until_us.get(name, 0.0))
        end_us = self._disturbances.end_us(name, start_us, lasts_us)
        self._busy_until_us[name] = end_us
        self._host_us = end_us if processor.blocks_host else handed_us
        return TimeSlot(handed_us, start_us, end_us, self._host_us)

    def cut(self, processor: Processor, at_us: float) -> None:
        """Cut what a lost processor had booked.

        What it was to do next ends there, and so does a call that held the host.
        """
        self._busy_until_us[processor.name] = at_us
        if processor.blocks_host:
            self._host_us = min(self._host_us, at_us)
