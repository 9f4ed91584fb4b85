"""Parameters -> a plan with every number predicted, and its distance from every limit.

A limit is a number: above zero it is broken, by that share; at or below zero it is kept, with that
much to spare. The rules are those of stretch/constraints.py, which answer only whether.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nnstretch.errors import BadPlan
from nnstretch.plan import Plan
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import LoweredNetwork, NetworkAnalysis, lower
from nnstretch.stretch.search.constraints import SegmentLimits, branched_segments
from nnstretch.structure.segment_cost import residencies, segment_cost
from nnstretch.trial import SegmentCost, Trial

BUILDABLE_CONSTRAINT = "buildable"
"""The limit that a plan breaks which no network can be made of."""
NO_BRANCH_VIOLATION = -1.0


@dataclass(frozen=True, slots=True)
class MacAndParamBounds:
    """What the whole network must keep to, in absolute counts."""

    min_macs: float = 0.0
    max_macs: float = math.inf
    min_params: float = 0.0


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
    bounds: MacAndParamBounds
    original_latencies_us: dict[tuple[str, str], float] = field(default_factory=dict)

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
        placements = [
            [branch.branch.processor for branch in segment.branches] for segment in lowered.segments
        ]
        costs: list[SegmentCost] = []
        for segment, stay in zip(lowered.segments, residencies(placements), strict=True):
            start, end = segment.segment.start, segment.segment.end
            if (start, end) not in self.original_latencies_us:
                self.original_latencies_us[start, end] = min(
                    self.cost_model.estimate_graph(segment.original, p).latency_us
                    for p in self.processors
                )
            work = [self.cost_model.branch_demand(branch) for branch in segment.branches]
            original_us, original_macs = (
                self.original_latencies_us[start, end],
                segment.original.macs,
            )
            cost = segment_cost(
                self.soc,
                work,
                stay,
                start=start,
                end=end,
                original_us=original_us,
                original_macs=original_macs,
            )
            costs.append(cost)
        return Trial(lowered.plan, tuple(costs), lowered.macs, lowered.params)


def constraint_violations(
    trial: Trial, limits: SegmentLimits, bounds: MacAndParamBounds, soc: Soc
) -> dict[str, float]:
    """Return how far a plan is beyond each of its limits, as a share of the limit.

    Limits that cannot be broken are left out.
    """
    segments = branched_segments(trial)
    slowest = [max(b.latency_us for b in s.branches) for s in segments]
    macs = [[b.macs for b in s.branches] for s in segments]
    violations = {
        "cost_amortised": aggregate_violations(
            relative_excess(s.communication_us, limits.alpha * s.original_us) for s in segments
        ),
        "no_stragglers": aggregate_violations(
            relative_excess(us, limits.beta * s.original_us)
            for s, us in zip(segments, slowest, strict=True)
        ),
        "main_branch": aggregate_violations(
            relative_shortfall(max(m), limits.main_macs * s.original_macs)
            for s, m in zip(segments, macs, strict=True)
        ),
        "capacity": aggregate_violations(
            relative_shortfall(sum(m), limits.segment_macs * s.original_macs)
            for s, m in zip(segments, macs, strict=True)
        ),
    }
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
    bytes_held: dict[str, float] = {}
    for segment in trial.segments:
        for branch in segment.branches:
            bytes_held[branch.processor] = (
                bytes_held.get(branch.processor, 0.0) + branch.params * soc.element_bytes
            )
    for name, size_bytes in bytes_held.items():
        limit = soc.processor(name).memory_bytes
        if limit is not None:
            yield relative_excess(size_bytes, limit)
