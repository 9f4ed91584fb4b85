"""Many searches of one network: Pareto fronts, and the sensitivity to the rules' settings.

A front comes from the epsilon-constraint method (Haimes et al., 1971): one search for every lower
limit on the work, so every point is the proven fastest plan of at least that much work, also where
the front is not convex.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from nnstretch.errors import NoPlan
from nnstretch.soc import Soc
from nnstretch.stretch.search.constraints import branched_segments
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult
from nnstretch.trial import Trial

if TYPE_CHECKING:
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.constraints import SegmentLimits

MEASURES = ("macs", "params", "meetings")
"""Measures that a search can limit from below."""
STEPS = 8
"""Searches behind a front."""
LOWEST = 0.5
HIGHEST = 1.2
"""Least and most work asked for, as shares of the original's."""
ALPHAS = (0.1, 0.25, 0.5, 1.0)
BETAS = (0.6, 0.8, 1.0)
"""Settings of a sensitivity table."""
Progress = Callable[[str, int, int], None]


class SearchFunction(Protocol):
    """A search with everything settled but a few settings."""

    def __call__(self, settings: Mapping[str, float], progress: Progress | None) -> SearchResult:
        """Search under these settings.

        Raises NoPlan where no plan keeps them, or the search ends before it meets one.
        """


@dataclass(frozen=True)
class SearchRequest:
    """Network, chip, limits and bounds of a search."""

    analysis: NetworkAnalysis
    soc: Soc
    processors: tuple[str, ...]
    limits: SegmentLimits
    bounds: Mapping[str, float]
    """By argument of `search`; `min_meetings` is a whole number."""
    width_steps: int | None
    merges: tuple[str, ...]
    fallback: str | None
    max_params: float | None = None
    """None for the search's default."""
    time_limit_s: float = math.inf
    """Of each single search."""
    gap: float = 0.0
    """At which each single search may end."""

    def __call__(self, settings: Mapping[str, float], progress: Any, top: int = 1) -> SearchResult:
        """Search with settings that replace limits and tighten bounds.

        Raises NoPlan when the tightened bounds contradict each other, and as `search` does.
        """
        from nnstretch.stretch.search.search import search

        changes = {name: value for name, value in settings.items() if name not in self.bounds}
        limits = replace(self.limits, **changes)
        bounds = {name: max(low, settings.get(name, low)) for name, low in self.bounds.items()}
        most_params = math.inf if self.max_params is None else self.max_params
        pairs = (
            ("MACs", bounds["min_macs"], bounds["max_macs"]),
            ("parameters", bounds["min_params"], most_params),
        )
        for name, least, most in pairs:
            if settings and least > most:
                raise NoPlan(
                    f"{name} cannot be at least {least:.4g} and at most {most:.4g}, search bounds"
                )
        return search(
            self.analysis,
            self.soc,
            self.processors,
            limits,
            top=top,
            width_steps=self.width_steps,
            progress=progress,
            fallback=self.fallback,
            merges=self.merges,
            max_params=self.max_params,
            time_limit_s=self.time_limit_s,
            gap=self.gap,
            min_macs=bounds["min_macs"],
            max_macs=bounds["max_macs"],
            min_params=bounds["min_params"],
            min_meetings=int(bounds["min_meetings"]),
        )


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """The fastest plan with at least so much work."""

    asked: float
    """Lower limit on the measure, as a share of the original's; a count of meeting points."""
    found: ScoredPlan
    lower_bound_us: float
    optimal: bool

    @property
    def trial(self) -> Trial:
        """Return the plan with its predicted cost."""
        return self.found.trial

    @property
    def gap(self) -> float:
        """Return the relative distance from the proven lower bound."""
        latency_us = self.trial.latency_us
        return 1 - self.lower_bound_us / latency_us if latency_us else 0.0

    def measured(self, measure: str) -> int:
        """Return MACs, parameters or meeting points of the plan."""
        if measure == "meetings":
            return len(branched_segments(self.trial))
        return int(getattr(self.trial, measure))


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Latency against one measure; every point is the fastest of its work."""

    measure: str
    points: tuple[ParetoPoint, ...]
    """By rising latency."""
    without: tuple[float, ...] = ()
    """Lower limits, as those that points were asked for, for which there is no plan."""
    interrupted: bool = False
    unanswered: tuple[float, ...] = ()
    """Lower limits at which the time of a search was over before it met a plan."""


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """The best plan under one pair of limits; `found` is None where none was met."""

    alpha: float
    beta: float
    found: SearchResult | None
    out_of_time: bool = False
    """The search's time was over before it was proven."""


def limit_ratios(steps: int) -> tuple[float, ...]:
    """Return lower limits to ask for, evenly spread: 0.5, 0.6, ... 1.2 for eight."""
    if steps == 1:
        return (1.0,)
    return tuple(round(LOWEST + (HIGHEST - LOWEST) * k / (steps - 1), 9) for k in range(steps))


def trace_front(
    ask: SearchFunction,
    measure: str,
    original: int,
    steps: int = STEPS,
    progress: Progress | None = None,
) -> ParetoFront:
    """Trace a front from little to much; an interrupt ends it with the points so far.

    `original` is the original's amount of the measure; of meeting points, as many as there can be.
    """
    points: list[ParetoPoint] = []
    without: list[float] = []
    unanswered: list[float] = []

    def front(interrupted: bool) -> ParetoFront:
        best = undominated_points(points, measure)
        return ParetoFront(measure, best, tuple(without), interrupted, tuple(unanswered))

    asked: Sequence[float] = limit_ratios(steps)
    unit = original
    if measure == "meetings":
        asked, unit = range(1, min(steps, original) + 1), 1
    for number, limit in enumerate(asked, 1):
        label = f"{measure} from {limit:g} ({number} of {len(asked)})"
        try:
            result = ask({f"min_{measure}": limit * unit}, label_point(label, progress))
        except NoPlan as refusal:
            if refusal.interrupted:
                return front(interrupted=True)
            (unanswered if refusal.out_of_time else without).append(limit)
            continue
        except KeyboardInterrupt:
            return front(interrupted=True)
        points.append(ParetoPoint(limit, result.plans[0], result.lower_bound_us, result.optimal))
        if result.interrupted:
            return front(interrupted=True)
    return front(interrupted=False)


def undominated_points(points: Sequence[ParetoPoint], measure: str) -> tuple[ParetoPoint, ...]:
    """Return points that no other dominates in latency and work; of equals, the first."""
    best: list[ParetoPoint] = []
    for point in sorted(points, key=lambda p: (p.trial.latency_us, -p.measured(measure))):
        if not best or point.measured(measure) > best[-1].measured(measure):
            best.append(point)
    return tuple(best)


def sensitivity(
    ask: SearchFunction, progress: Progress | None = None
) -> tuple[tuple[SensitivityRow, ...], bool]:
    """Return the best plan under every pair of limits, and whether an interrupt ended it."""
    rows: list[SensitivityRow] = []
    pairs = list(product(ALPHAS, BETAS))
    for number, (alpha, beta) in enumerate(pairs, 1):
        label = f"alpha {alpha:g}, beta {beta:g} ({number} of {len(pairs)})"
        try:
            result = ask({"alpha": alpha, "beta": beta}, label_point(label, progress))
        except NoPlan as refusal:
            if refusal.interrupted:
                return tuple(rows), True
            rows.append(SensitivityRow(alpha, beta, None, refusal.out_of_time))
            continue
        except KeyboardInterrupt:
            return tuple(rows), True
        rows.append(SensitivityRow(alpha, beta, result, result.out_of_time))
        if result.interrupted:
            return tuple(rows), True
    return tuple(rows), False


def label_point(label: str, progress: Progress | None) -> Progress | None:
    """Return a progress report that names the point."""
    if progress is None:
        return None
    return lambda what, done, of: progress(f"{label}: {what}", done, of)
