"""What goes wrong on a chip and when: processors that others keep busy, and processors that fail.

The virtual clock and emulated threads ask the same questions, so an experiment is the same on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from nnstretch.errors import BadInput


@dataclass(frozen=True, slots=True)
class Busy:
    """From `start_us` to `end_us` somebody else works on a processor, too."""

    processor: str
    start_us: float
    end_us: float
    share: float = 0.5
    """Of the processor's speed that is left for us."""

    def __post_init__(self) -> None:
        if not (0 <= self.start_us < self.end_us and 0 < self.share <= 1):
            raise BadInput(
                f"busy from {self.start_us:g} to {self.end_us:g} us at share {self.share:g}, processor {self.processor}, "
                "needed are a start before an end and a share above 0, up to 1"
            )


@dataclass(frozen=True, slots=True)
class Fails:
    """At `at_us` a processor stops answering and loses what is in its queue; at `until_us` it is there again, empty."""

    processor: str
    at_us: float
    until_us: float = inf


@dataclass(frozen=True, slots=True)
class Mishaps:
    """All that goes wrong in one experiment."""

    busy: tuple[Busy, ...] = ()
    fails: tuple[Fails, ...] = ()

    def lost_us(self, processor: str, from_us: float) -> float:
        """When a processor is lost, from a time on: that time itself where it is away then, infinity where it never is any more."""
        return min((max(one.at_us, from_us) for one in self.fails if one.processor == processor and from_us < one.until_us), default=inf)

    def away(self, processor: str, at_us: float) -> bool:
        return self.lost_us(processor, at_us) <= at_us

    def end_us(self, processor: str, start_us: float, work_us: float) -> float:
        """When work that takes `work_us` on a quiet processor ends, begun at `start_us`."""
        edges = sorted({edge for one in self.busy if one.processor == processor for edge in (one.start_us, one.end_us) if edge > start_us})
        now_us, left_us = start_us, work_us
        for edge in edges:
            share = self.share(processor, now_us)
            if now_us + left_us / share <= edge:
                break
            left_us -= (edge - now_us) * share
            now_us = edge
        return now_us + left_us / self.share(processor, now_us)

    def share(self, processor: str, at_us: float) -> float:
        """Of its speed that is left at a time: several who keep it busy take their part of what the others leave."""
        left = 1.0
        for one in self.busy:
            if one.processor == processor and one.start_us <= at_us < one.end_us:
                left *= one.share
        return left
