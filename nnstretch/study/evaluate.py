"""Parameters -> a plan with every number predicted, and its distance from every limit.

A limit is a number: above zero it is broken, by that share; at or below zero it is kept, with that
much to spare. The rules are those of stretch/search/constraints.py, which answer only whether.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nnstretch.errors import BadPlan
from nnstretch.plan import Plan
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.lowering.lower import LoweredNetwork, lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import (
    SEGMENT_RULES,
    NetworkLimits,
    SegmentLimits,
    branched_segments,
    segment_demand,
)
from nnstretch.trial import Trial

BUILDABLE_CONSTRAINT = "buildable"
"""The limit that a plan breaks which no network can be made of."""
NO_BRANCH_VIOLATION = -1.0


@dataclass(frozen=True)
class Evaluation:
    """A plan with its numbers, or why there are none."""

    plan: Plan
    limits: Mapping[str, float]
    """Share by which each limit is broken; at or below zero it is kept."""
    trial: Trial | None = None
    lowered: LoweredNetwork | None = None
    reason: str = ""

    @property
    def feasible(self) -> bool:
        """Return whether a plan exists and keeps every limit."""
        return self.trial is not None and all(value <= 0 for value in self.limits.values())


@dataclass
class PlanEvaluator:
    """Prices plans of one network on one chip; what plans share is priced once."""

    analysis: NetworkAnalysis
    cost_model: CostModel
    processors: tuple[str, ...]
    limits: SegmentLimits
    bounds: NetworkLimits
    originals_us: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def soc(self) -> Soc:
        """Return the chip."""
        return self.cost_model.soc

    def evaluate(self, plan: Plan) -> Evaluation:
        """Evaluate parameters; a plan that cannot be built is a verdict, too."""
        try:
            lowered = lower(self.analysis, plan)
        except BadPlan as refusal:
            return Evaluation(plan, {BUILDABLE_CONSTRAINT: 1.0}, reason=str(refusal))
        if idle := next(
            (s.segment for s in lowered.segments if s.segment.branched and not s.original.macs),
            None,
        ):
            return Evaluation(
                plan,
                {BUILDABLE_CONSTRAINT: 1.0},
                reason=f"nothing to share out, segment {idle.start} -> {idle.end}, it has no MACs",
            )
        trial = self.estimate_trial(lowered)
        return Evaluation(
            plan, constraint_violations(trial, self.limits, self.bounds, self.soc), trial, lowered
        )

    def estimate_trial(self, lowered: LoweredNetwork) -> Trial:
        """Estimate a plan beside the fastest of the study's processors, used or not.

        So the exact search has it.
        """
        return estimate_plan(lowered, self.soc, self.cost_model, self.processors, self.originals_us)


def constraint_violations(
    trial: Trial, limits: SegmentLimits, bounds: NetworkLimits, soc: Soc
) -> dict[str, float]:
    """Return how far a plan is beyond each of its limits, as a share of the limit.

    Limits that cannot be broken are left out.
    """
    shares: dict[str, list[float]] = {rule.name: [] for rule in SEGMENT_RULES}
    for segment in branched_segments(trial):
        of_segment = limits.bounds(segment.original_us, segment.original_macs)
        for rule, demand, limit in of_segment.checks(segment_demand(segment)):
            measure = relative_excess if rule.sense == "at most" else relative_shortfall
            shares[rule.name].append(measure(demand, limit))
    violations = {name: aggregate_violations(known) for name, known in shares.items()}
    if any(processor.memory_bytes is not None for processor in soc.processors):
        violations["memory"] = aggregate_violations(memory_violations(trial, soc))
    if bounds.min_macs > 0:
        violations["min_macs"] = relative_shortfall(trial.macs, bounds.min_macs)
    if bounds.max_macs < math.inf:
        violations["max_macs"] = relative_excess(trial.macs, bounds.max_macs)
    if bounds.min_params > 0:
        violations["min_params"] = relative_shortfall(trial.params, bounds.min_params)
    return violations


def relative_excess(demand: float, limit: float) -> float:
    """Return by which share a demand exceeds its limit, negative below it."""
    return (demand - limit) / limit if limit > 0 else float(demand > limit)


def relative_shortfall(demand: float, limit: float) -> float:
    """Return by which share a demand falls short of its limit, negative above it."""
    return (limit - demand) / limit if limit > 0 else NO_BRANCH_VIOLATION


def aggregate_violations(shares: Iterable[float]) -> float:
    """Add up all violations, so that a sampler feels every segment it mends.

    Else what is closest to breaking.
    """
    known = list(shares)
    broken = [share for share in known if share > 0]
    return sum(broken) if broken else max(known, default=NO_BRANCH_VIOLATION)


def memory_violations(trial: Trial, soc: Soc) -> Iterable[float]:
    """Yield the relative excess of each processor's memory."""
    for name, size_bytes in trial.weight_bytes(soc.element_bytes).items():
        limit = soc.processor(name).memory_bytes
        if limit is not None:
            yield relative_excess(size_bytes, limit)
