"""Good plans beside the best: partition by options that plans have or have not (Lawler, 1972)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.feasibility import max_params_held
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.segment_option import SegmentOption


def k_best(
    search: ExactSearch, count: int, max_params: float, fits: Callable[[PlanPath], bool]
) -> Iterator[PlanPath]:
    """Yield up to `count` plans within the limits, the fastest but for the best.

    Each lacks a branched option of the best and of every one before it, and is the fastest that
    does, within the search's gap. `max_params` seldom binds: it is a limit only where the fastest
    plan of a set does not fit.
    """
    if search.best is None or not count:
        return
    every, first = range(len(search.options)), search.bins.first
    values = cost_to_go(search.space, search.options, search.planes.best, every, first)
    path, part = search.best, PlanSet()
    waiting: list[tuple[PlanPath, PlanSet]] = []
    for told in range(count):
        wanted, parts = count - told, part.others(path, search.options)
        for k, each in enumerate(parts, 1):
            search.report_progress("alternatives", told * len(parts) + k, count * len(parts))
            last_wanted = waiting[wanted - 1][0] if len(waiting) >= wanted else None
            fastest = fastest_of(each, search, search.limits, values, last_wanted)
            if fastest is not None and not fits(fastest):
                with all_limits(search, max_params) as limits:
                    fastest = fastest_of(each, search, limits, values, last_wanted)
            if fastest is not None:
                waiting.append((fastest, each))
                waiting.sort(key=lambda entry: entry[0].latency_us)
        if not waiting:
            return
        path, part = waiting.pop(0)
        yield path


@contextmanager
def all_limits(search: ExactSearch, max_params: float) -> Iterator[NetworkLimits]:
    """Yield the limits of a search with that on parameters, which its space heeds meanwhile."""
    space, was_limited = search.space, search.space.whole_limited
    space.whole_limited = True
    try:
        yield replace(search.limits, max_held=(*max_params_held(space), max_params))
    finally:
        space.whole_limited = was_limited


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
    part: PlanSet,
    search: ExactSearch,
    limits: NetworkLimits,
    values: CostToGo,
    incumbent: PlanPath | None,
) -> PlanPath | None:
    """Return the fastest plan of a set, None where none is faster than the incumbent.

    `values` are bounds over all options.
    """
    known = search.tables, search.options, limits, search.gap, search.progress
    few = ExactSearch(*known, best=incumbent, before=values)
    few.alive = part.usable(search.options)
    few.first_multipliers = values.multipliers
    path = few.run().best
    return None if path is incumbent else path
