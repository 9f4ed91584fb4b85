"""Measure under watch, repeat what was disturbed, wait for a quiet moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

from nnstretch.profile.activity.machine_activity import (
    ActivityReader,
    OtherWork,
    interference_between,
    read_activity,
)
from nnstretch.profile.activity.steady_rounds import Attempt, Times

POLL_S = 0.2
"""Long enough for the ticks of /proc/stat to tell who is busy."""
LONGEST_PAUSE_S = 2.0
PAUSES = 0.1
"""Share of a budget that may be waited away; work that does not end is not waited for."""
ROOM = 0.7
"""Part of a core that must be idle for a moment to count as quiet."""


@dataclass
class ActivityWatch:
    """Tells what others did during a measurement."""

    read: ActivityReader = read_activity
    pausable_s: float = 0.0
    """What may still be waited away."""
    pause: Callable[[float], None] = sleep
    clock: Callable[[], float] = perf_counter

    def attempt(self, measure: Callable[[], Sequence[Times]]) -> Attempt:
        """Measure, and return the times with what others did meanwhile."""
        before = self.read()
        times_us = measure()
        return Attempt(times_us, interference_between(before, self.read()))

    def beside(self, duration_s: float = POLL_S) -> OtherWork:
        """Return what others do while this process does nothing."""
        before = self.read()
        self.pause(duration_s)
        return interference_between(before, self.read())

    def wait_for_quiet(self, cores: int = 1) -> float:
        """Wait until so many cores are idle, but not for long; return the seconds it took."""
        started_s = self.clock()
        allowed_s = min(LONGEST_PAUSE_S, self.pausable_s)
        while self.clock() - started_s + POLL_S <= allowed_s:
            if others_leave(cores, self.beside()):
                break
        waited_s = self.clock() - started_s
        self.pausable_s -= waited_s
        return waited_s


def others_leave(cores: int, interference: OtherWork) -> bool:
    """Return whether others leave so many cores idle that they do not disturb."""
    return interference.beside <= (os.cpu_count() or 1) - cores + 1 - ROOM
