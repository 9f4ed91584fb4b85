"""Many searches of one network.

What latency costs in MACs or parameters, and what the rules' settings change.

A front is found by the epsilon-constraint method (Haimes et al., 1971): one search for every lower
bound on the work, so every point is the proven fastest plan of at least that much work, also where
the front is not convex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from nnstretch.errors import NoPlan
from nnstretch.soc import Soc
from nnstretch.stretch.search.search import ScoredPlan, SearchResult
from nnstretch.trial import Trial

MEASURES = ("macs", "params")
"""What a search can bound from below."""
STEPS, LOWEST, HIGHEST = 8, 0.5, 1.2
"""Searches behind a front, and the least and most work asked for, as shares of the original's."""
ALPHAS, BETAS = (0.1, 0.25, 0.5, 1.0), (0.6, 0.8, 1.0)
"""Settings of a sensitivity table."""
Progress = Callable[[str, int, int], None]


class SearchFunction(Protocol):
    """One search with everything settled but these. Raises NoPlan."""

    def __call__(self, settings: Mapping[str, float], progress: Progress | None) -> SearchResult:
        """Search under these settings."""


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """The fastest plan with at least so much work."""

    asked: float
    """Lower bound on the measure, as a share of the original's."""
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
        return 1 - self.lower_bound_us / self.trial.latency_us

    def measured(self, measure: str) -> int:
        """Return MACs or parameters of the plan."""
        return int(getattr(self.trial, measure))


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Latency against one measure; every point is the fastest of its work."""

    measure: str
    points: tuple[ParetoPoint, ...]
    """By rising latency."""
    without: tuple[float, ...] = ()
    """Lower bounds, as shares of the original's, for which no plan was found."""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """What one pair of limits leaves; `found` is None where no plan is left."""

    alpha: float
    beta: float
    found: SearchResult | None


def limit_ratios(steps: int) -> tuple[float, ...]:
    """Lower bounds to ask for, evenly spread: 0.5, 0.6, ... 1.2 for eight."""
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
    """Trace a front, one search a step, from little work to much. An interrupt ends it with the
    points so far.
    """
    points: list[ParetoPoint] = []
    without: list[float] = []
    for number, share in enumerate(limit_ratios(steps), 1):
        label = f"{measure} from {share:.2f}x ({number} of {steps})"
        try:
            result = ask({f"min_{measure}": share * original}, label_point(label, progress))
        except NoPlan:
            without.append(share)
            continue
        except KeyboardInterrupt:
            return ParetoFront(measure, undominated_points(points, measure), tuple(without), True)
        points.append(ParetoPoint(share, result.plans[0], result.lower_bound_us, result.optimal))
        if result.interrupted:
            return ParetoFront(measure, undominated_points(points, measure), tuple(without), True)
    return ParetoFront(measure, undominated_points(points, measure), tuple(without))


def undominated_points(points: Sequence[ParetoPoint], measure: str) -> tuple[ParetoPoint, ...]:
    """Return points than which no other is at least as fast with at least as much work.

    Of equals, the first.
    """
    best: list[ParetoPoint] = []
    for point in sorted(points, key=lambda p: (p.trial.latency_us, -p.measured(measure))):
        if not best or point.measured(measure) > best[-1].measured(measure):
            best.append(point)
    return tuple(best)


def energy_mj(trial: Trial, soc: Soc) -> float | None:
    """Estimate the energy that computing takes above the idle chip, mJ.

    None where the power of a processor in use is not known.
    """
    total = 0.0
    for segment in trial.segments:
        for branch in segment.branches:
            power_w = soc.processor(branch.processor).power_w
            if power_w is None:
                return None
            total += power_w * branch.compute_us / 1000
    return total


def sensitivity(
    ask: SearchFunction, progress: Progress | None = None
) -> tuple[tuple[SensitivityRow, ...], bool]:
    """Return the best plan under every pair of limits, and whether somebody interrupted it."""
    rows: list[SensitivityRow] = []
    pairs = list(product(ALPHAS, BETAS))
    for number, (alpha, beta) in enumerate(pairs, 1):
        label = f"alpha {alpha:g}, beta {beta:g} ({number} of {len(pairs)})"
        try:
            result = ask({"alpha": alpha, "beta": beta}, label_point(label, progress))
        except NoPlan:
            rows.append(SensitivityRow(alpha, beta, None))
            continue
        except KeyboardInterrupt:
            return tuple(rows), True
        rows.append(SensitivityRow(alpha, beta, result))
        if result.interrupted:
            return tuple(rows), True
    return tuple(rows), False


def label_point(label: str, progress: Progress | None) -> Progress | None:
    """Return a progress report that names the point."""
    if progress is None:
        return None
    return lambda what, done, of: progress(f"{label}: {what}", done, of)
