"""Free time of one processor, in which tasks are inserted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf


class Gaps:
    """Gaps of a processor in order of time; the last has no end.

    Between intervals that touch is none, also for a task that takes no time.

    A search takes O(log gaps) and a step for every gap that is too short.
    """

    def __init__(self, occupied: Sequence[tuple[float, float]] = ()) -> None:
        """Begin with all time but `occupied`, intervals (start, end) in any order."""
        self._starts_us = [0.0]
        self._ends_us = [inf]
        for start_us, end_us in sorted(occupied):
            self.reserve(start_us, end_us)

    def earliest_us(self, ready_us: float, duration_us: float) -> float:
        """Return when a task that is ready then can start in the first gap that is long enough."""
        number = bisect_left(self._ends_us, ready_us)
        while True:
            start_us = max(ready_us, self._starts_us[number])
            if start_us + duration_us <= self._ends_us[number]:
                return start_us
            number += 1

    def forget(self, before_us: float) -> None:
        """Forget gaps that ended by then: nothing will be placed in them any more."""
        number = min(bisect_right(self._ends_us, before_us), len(self._ends_us) - 1)
        if number:
            del self._starts_us[:number], self._ends_us[:number]

    def reserve(self, start_us: float, end_us: float) -> None:
        """Take an interval, which must lie in one gap."""
        number = bisect_right(self._starts_us, start_us) - 1
        before_us, after_us = self._starts_us[number], self._ends_us[number]
        assert before_us <= start_us <= end_us <= after_us, "the interval is not free"
        starts_us: list[float] = []
        ends_us: list[float] = []
        if before_us < start_us:
            starts_us.append(before_us)
            ends_us.append(start_us)
        if end_us < after_us:
            starts_us.append(end_us)
            ends_us.append(after_us)
        self._starts_us[number : number + 1] = starts_us
        self._ends_us[number : number + 1] = ends_us
