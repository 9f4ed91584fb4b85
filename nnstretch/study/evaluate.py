"""Predicted cost of a plan, and its distance from every limit, as samplers want it.

A positive distance is a broken limit, as a share of it; at or below zero the limit is kept. The
rules are those of stretch/search/constraints.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nnstretch.errors import BadPlan
from nnstretch.files.plan_prediction import PlanPrediction, predicted_section
from nnstretch.plan import Plan
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.cost.failover_costs import with_alternatives
from nnstretch.stretch.lowering.lower import LoweredNetwork, lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import (
    SEGMENT_RULES,
    NetworkLimits,
    SegmentLimits,
    branched_segments,
    original_macs,
    segment_demand,
)
from nnstretch.stretch.search.search import usual_max_params
from nnstretch.trial import Trial

BUILDABLE_CONSTRAINT = "buildable"
"""Name of the limit that a plan breaks of which no network can be built."""
NO_BRANCH_VIOLATION = -1.0
"""Distance of a plan that the limit does not concern."""


@dataclass(frozen=True)
class Evaluation:
    """A plan with its predicted cost, or the reason why it has none."""

    plan: Plan
    limits: Mapping[str, float]
    """Distance from each limit; at or below zero it is kept."""
    trial: Trial | None = None
    lowered: LoweredNetwork | None = None
    reason: str = ""

    @property
    def feasible(self) -> bool:
        """Return whether a plan exists and keeps every limit."""
        return self.trial is not None and all(value <= 0 for value in self.limits.values())


@dataclass
class PlanEvaluator:
    """Cost of plans of one network on one chip; original segments are estimated once."""

    analysis: NetworkAnalysis
    cost_model: CostModel
    processors: tuple[str, ...]
    limits: SegmentLimits
    bounds: NetworkLimits
    originals_us: dict[tuple[str, str], float] = field(default_factory=dict)
    soc_sha256: str | None = None
    """Of the chip's files; None for one that was made in Python."""

    @property
    def soc(self) -> Soc:
        """Return the chip."""
        return self.cost_model.soc

    def evaluate(self, plan: Plan) -> Evaluation:
        """Evaluate a plan; one that cannot be built breaks the limit `buildable`."""
        try:
            lowered = lower(self.analysis, plan)
        except BadPlan as refusal:
            return Evaluation(plan, {BUILDABLE_CONSTRAINT: 1.0}, reason=str(refusal))
        for part in lowered.segments:
            segment = part.segment
            if segment.branched and not part.original.macs:
                where = f"segment {segment.start} -> {segment.end}"
                reason = f"nothing to share out, {where}, it has no MACs"
                return Evaluation(plan, {BUILDABLE_CONSTRAINT: 1.0}, reason=reason)
        # Compared, as in the exact search, with the fastest of the study's processors, used or not.
        trial = estimate_plan(
            lowered, self.soc, self.cost_model, self.processors, self.originals_us
        )
        violations = constraint_violations(trial, self.limits, self.bounds, self.soc)
        # Searches have this limit unasked: the proven optimum is of the space of the trials.
        most_params = usual_max_params(self.analysis.graph, self.bounds.min_params)
        if most_params < math.inf:
            violations["max_params"] = relative_excess(trial.params, most_params)
        return Evaluation(plan, violations, trial, lowered)

    def prediction(self, evaluation: Evaluation) -> PlanPrediction | None:
        """Return what a plan's file remembers of an evaluation; None where it was refused.

        None, too, where kernels may be priced that were never measured, which other verbs refuse,
        and for a chip that was made in Python.
        """
        trial, lowered, sha256 = evaluation.trial, evaluation.lowered, self.soc_sha256
        if trial is None or lowered is None or sha256 is None or self.cost_model.fallback:
            return None
        trial = with_alternatives(trial, lowered, self.soc)
        return predicted_section(trial, self.analysis.graph, sha256)


def constraint_violations(
    trial: Trial, limits: SegmentLimits, bounds: NetworkLimits, soc: Soc
) -> dict[str, float]:
    """Return how far a plan is beyond each limit that it can break, as a share of the limit."""
    shares: dict[str, list[float]] = {rule.name: [] for rule in SEGMENT_RULES}
    network_macs = original_macs(trial)
    for segment in branched_segments(trial):
        of_segment = limits.bounds(segment.original_us, segment.original_macs, network_macs)
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
    if bounds.min_meetings > 0:
        meetings = len(branched_segments(trial))
        violations["min_meetings"] = relative_shortfall(meetings, bounds.min_meetings)
    return violations


def relative_excess(demand: float, limit: float) -> float:
    """Return the excess of a demand as a share of its limit, negative below it."""
    return (demand - limit) / limit if limit > 0 else float(demand > limit)


def relative_shortfall(demand: float, limit: float) -> float:
    """Return the shortfall of a demand as a share of its limit, negative above it."""
    return (limit - demand) / limit if limit > 0 else NO_BRANCH_VIOLATION


def aggregate_violations(shares: Iterable[float]) -> float:
    """Return the sum of violations, so that every segment counts, or the closest to one."""
    known = list(shares)
    broken = [share for share in known if share > 0]
    return sum(broken) if broken else max(known, default=NO_BRANCH_VIOLATION)


def memory_violations(trial: Trial, soc: Soc) -> Iterable[float]:
    """Yield the relative excess of each processor's memory."""
    for name, size_bytes in trial.weight_bytes(soc.element_bytes).items():
        limit = soc.processor(name).memory_bytes
        if limit is not None:
            yield relative_excess(size_bytes, limit)
