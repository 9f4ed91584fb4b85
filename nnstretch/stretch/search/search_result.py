"""Result of a search: scored plans, and how sure the search is of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

from nnstretch.stretch.cost.iso_mac import IsoMacBaseline
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.trial import Trial


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with its predicted numbers, beside the fair comparison."""

    trial: Trial
    error_us: float
    """Root-mean-square error of the predictor on a whole network, at this latency."""
    iso_mac: IsoMacBaseline

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").scored_plan_html(self)
        return html


@dataclass(frozen=True)
class SearchResult:
    """Plans of a search, and how sure it is of them."""

    plans: tuple[ScoredPlan, ...]
    original: Trial
    original_us: dict[str, float]
    """The original on each processor alone."""
    original_error_us: dict[str, float]
    refused: dict[str, int]
    """Segments and processor sets that each rule leaves no branches for."""
    log10_size: float
    optimal: bool
    lower_bound_us: float
    """No plan of the space is faster; 0 where nothing is proven."""
    search_s: float
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Kernels that were never measured, and the kind they were estimated as."""
    interrupted: bool = False
    out_of_time: bool = False
    original_compute_us: Mapping[str, float] = field(default_factory=dict)
    """The original on each processor alone, its copies left out, as limits of segments see it."""
    searched: bool = True
    """False where the search ended before it met a plan: the original stands in for one."""

    @property
    def fastest(self) -> str:
        """Return the processor on which the original network is fastest."""
        return min(self.original_us, key=lambda name: self.original_us[name])

    @property
    def unused_faster(self) -> tuple[str, ...]:
        """Return processors that compute the original faster than all that the best plan uses.

        The plan does without them, and limits of its segments compare with the fastest of them.
        """
        compute_us = self.original_compute_us
        used = self.plans[0].trial.plan.processors
        fastest_us = min((compute_us[name] for name in used if name in compute_us), default=0.0)
        return tuple(name for name in compute_us if compute_us[name] < fastest_us)

    @property
    def gap(self) -> float:
        """Return how much faster than the best plan any other can be at most, as a share."""
        latency_us = self.plans[0].trial.latency_us
        return 1 - self.lower_bound_us / latency_us if latency_us else 0.0

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").search_html(self)
        return html


def plan_error_us(trial: Trial) -> float:
    """Return the error of a plan, us: that of the slowest branch, summed over segments.

    Errors of one predictor lean one way, so they do not cancel.
    """
    slowest = [max(s.branches, key=lambda branch: branch.latency_us) for s in trial.segments]
    return sum(branch.error_us for branch in slowest)
