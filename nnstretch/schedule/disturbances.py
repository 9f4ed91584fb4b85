"""Injected disturbances: processors that other work keeps busy, and processors that fail.

The virtual clock and emulated threads apply the same ones, so an experiment is the same on both.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from nnstretch.errors import BadInput
from nnstretch.files.checked import check_settings


@dataclass(frozen=True, slots=True)
class Interference:
    """Other work on a processor from `start_us` to `end_us`."""

    processor: str
    start_us: float
    end_us: float
    share: float = 0.5
    """Share of the processor's speed that remains for the bundle's tasks."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not (0 <= self.start_us < self.end_us and 0 < self.share <= 1):
            raise BadInput(
                f"busy from {self.start_us:g} to {self.end_us:g} us at share {self.share:g},"
                f" processor {self.processor}, needed are a start before an end and a share above"
                " 0, up to 1"
            )


@dataclass(frozen=True, slots=True)
class Outage:
    """Failure of a processor at `at_us`, which loses its queue; at `until_us` it is back, empty."""

    processor: str
    at_us: float
    until_us: float = inf

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.at_us <= self.until_us:
            raise BadInput(
                f"lost from {self.at_us:g} to {self.until_us:g} us, processor {self.processor},"
                " needed is a start before an end"
            )


@dataclass(frozen=True)
class Disturbances:
    """All disturbances of one experiment; sorted once, then looked up for every task."""

    busy: tuple[Interference, ...] = ()
    fails: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)

    def lost_us(self, processor: str, from_us: float) -> float:
        """Return when a processor is next lost: `from_us` where it is away, infinity for never."""
        if processor not in self._absences:
            return inf
        starts, ends = self._absences[processor]
        after = bisect_right(ends, from_us)  # the first outage that ends later
        return max(starts[after], from_us) if after < len(starts) else inf

    def is_away(self, processor: str, at_us: float) -> bool:
        """Return whether a processor is lost at a time."""
        return self.lost_us(processor, at_us) <= at_us

    def end_us(self, processor: str, start_us: float, work_us: float) -> float:
        """Return when work that takes `work_us` on a quiet processor ends, begun at `start_us`."""
        if processor not in self._shares:
            return start_us + work_us
        edges, shares = self._shares[processor]
        piece, now_us, left_us = bisect_right(edges, start_us), start_us, work_us
        while piece < len(edges) and now_us + left_us / shares[piece] > edges[piece]:
            left_us -= (edges[piece] - now_us) * shares[piece]
            now_us = edges[piece]
            piece += 1
        return now_us + left_us / shares[piece]

    @cached_property
    def _absences(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return the starts and ends of outages by processor, in order and apart."""
        absences: dict[str, tuple[list[float], list[float]]] = {}
        for fail in sorted(self.fails, key=lambda fail: fail.at_us):
            starts, ends = absences.setdefault(fail.processor, ([], []))
            if ends and fail.at_us <= ends[-1]:
                ends[-1] = max(ends[-1], fail.until_us)
            elif fail.at_us < fail.until_us:
                starts.append(fail.at_us)
                ends.append(fail.until_us)
        return absences

    @cached_property
    def _shares(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return by processor when its share changes, and the shares before, between and after.

        Overlapping interferences multiply.
        """
        changes: dict[str, tuple[list[float], list[float]]] = {}
        for processor in {spell.processor for spell in self.busy}:
            mine = [spell for spell in self.busy if spell.processor == processor]
            edges = sorted({spell.start_us for spell in mine} | {spell.end_us for spell in mine})
            shares = [
                prod(spell.share for spell in mine if spell.start_us <= edge < spell.end_us)
                for edge in edges
            ]
            changes[processor] = (edges, [1.0, *shares])
        return changes
