"""How long processors have worked up to an instant, and what worked beside each task."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from nnstretch.schedule.simulation.replay import PlacedSpan


def busy_shares(spans: Sequence[PlacedSpan], processors: int) -> list[float]:
    """Return the share of the other processors that worked while each task ran.

    Spans are in the order of their starts.
    """
    of_processor: dict[str, BusyTime] = {}
    for span in spans:
        of_processor.setdefault(span.processor, BusyTime()).add(span)
    shares: list[float] = []
    for span in spans:
        overlap_us = 0.0
        for name, busy in of_processor.items():
            if name != span.processor:
                overlap_us += max(0.0, busy.until_us(span.end_us) - busy.until_us(span.start_us))
        whole_us = (span.end_us - span.start_us) * (processors - 1)
        shares.append(min(1.0, overlap_us / whole_us) if whole_us else 0.0)
    return shares


class BusyTime:
    """How long a processor has worked up to any instant."""

    def __init__(self) -> None:
        self.starts_us: list[float] = []
        self.ends_us: list[float] = []
        self.before_us: list[float] = []
        """Before each start."""

    def add(self, span: PlacedSpan) -> None:
        """Add a task that started after all others."""
        worked_us = 0.0
        if self.starts_us:
            worked_us = self.before_us[-1] + self.ends_us[-1] - self.starts_us[-1]
        self.before_us.append(worked_us)
        self.starts_us.append(span.start_us)
        self.ends_us.append(span.end_us)

    def until_us(self, at_us: float) -> float:
        """Return how long the processor has worked."""
        place = bisect_right(self.starts_us, at_us) - 1
        if place < 0:
            return 0.0
        last_us = min(at_us, self.ends_us[place]) - self.starts_us[place]
        return self.before_us[place] + last_us
