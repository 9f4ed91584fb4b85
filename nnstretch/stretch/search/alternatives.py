"""Good plans beside the best: partition by options that plans have or have not (Lawler, 1972)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.segment_option import SegmentOption


@dataclass(frozen=True)
class Candidate:
    """The fastest plan of a set, and whether it may be told."""

    path: PlanPath
    part: PlanSet
    fits: bool


def k_best(search: ExactSearch, count: int, fits: Callable[[PlanPath], bool]) -> Iterator[PlanPath]:
    """Yield up to `count` plans that fit, the fastest but for the best.

    Each lacks a branched option of the best, and of every one before it. Proven as far as the
    search's gap allows.
    """
    if search.best is None or not count:
        return
    every, first = range(len(search.options)), search.bins.first
    values = cost_to_go(search.space, search.options, search.planes.best, every, first)
    path, part, told = search.best, PlanSet(), 0
    waiting: list[Candidate] = []
    while told < count:
        parts = part.others(path, search.options)
        for k, each in enumerate(parts, 1):
            search.report_progress("alternatives", told * len(parts) + k, count * len(parts))
            fastest = fastest_of(each, search, values, last_wanted(waiting, count - told))
            if fastest is not None:
                waiting.append(Candidate(fastest, each, fits(fastest)))
                waiting.sort(key=lambda candidate: candidate.path.latency_us)
        if not waiting:
            return
        candidate = waiting.pop(0)
        path, part = candidate.path, candidate.part
        if candidate.fits:
            told += 1
            yield path


def last_wanted(waiting: Sequence[Candidate], count: int) -> PlanPath | None:
    """Return the slowest of the `count` fastest candidates that fit, None where there are fewer."""
    fitting = [candidate.path for candidate in waiting if candidate.fits]
    return fitting[count - 1] if len(fitting) >= count else None


@dataclass(frozen=True)
class PlanSet:
    """Plans that have some options, by number, and have not some others."""

    included: frozenset[int] = frozenset()
    excluded: frozenset[int] = frozenset()

    def others(self, path: PlanPath, options: Sequence[SegmentOption]) -> list[PlanSet]:
        """Divide the plans that lack a branched option of a path by the first that they lack."""
        parts: list[PlanSet] = []
        included = self.included
        for number in path.option_numbers:
            if options[number].branched and number not in included:
                parts.append(PlanSet(included, self.excluded | {number}))
                included |= {number}
        return parts

    def usable(self, options: Sequence[SegmentOption]) -> list[int]:
        """Return the numbers of options that its plans may have."""
        fixed = [options[number] for number in self.included]
        return [
            number
            for number, option in enumerate(options)
            if number in self.included
            or (number not in self.excluded and not any(overlap(option, each) for each in fixed))
        ]


def overlap(option: SegmentOption, other: SegmentOption) -> bool:
    """Return whether no plan has both options."""
    return option.i < other.j and other.i < option.j


def fastest_of(
    part: PlanSet, search: ExactSearch, values: CostToGo, incumbent: PlanPath | None
) -> PlanPath | None:
    """Return the fastest plan of a set, None where none is faster than the incumbent.

    `values` are bounds over all options.
    """
    known = search.tables, search.options, search.limits, search.gap
    few = ExactSearch(*known, best=incumbent, before=values)
    few.alive = part.usable(search.options)
    few.first_multipliers = values.multipliers
    path = few.run().best
    return None if path is incumbent else path
