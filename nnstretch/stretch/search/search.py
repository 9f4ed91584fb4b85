"""The proven best plan of the whole space.

Segments touch only through the merged width, so dynamic programming over (cut, merged width) is
exact. Where MACs or parameters of the whole network are bounded, labels carry them along. Lower
bounds from a Lagrangian relaxation say which of the millions of combinations need not be looked at,
and in the end what no plan can beat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.errors import BadInput, NoPlan, UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan, uncovered_kernels
from nnstretch.stretch.cost.failover_costs import with_alternatives
from nnstretch.stretch.cost.iso_mac import IsoMacBaseline, equal_macs
from nnstretch.stretch.lowering.lower import lower, single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import (
    MemoryLimit,
    NetworkLimits,
    SegmentLimits,
    constraints_of,
)
from nnstretch.stretch.search.label_setting import PlanPath
from nnstretch.stretch.search.search_space import SearchSpace
from nnstretch.stretch.search.segment_options import SegmentOption, segment_options
from nnstretch.stretch.search.statistics import least_macs, log10_size, refusals
from nnstretch.trial import Trial

Progress = Callable[[str, int, int], None]
AGREES = 1e-6
"""Relative: what tables say of a plan and what the plan, lowered and priced, costs."""


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with its predicted numbers, beside the fair comparison."""

    trial: Trial
    error_us: float
    """Root-mean-square error of the predictor on a whole network, at this latency."""
    iso_mac: IsoMacBaseline


@dataclass(frozen=True)
class SearchResult:
    """What a search found and how sure it is."""

    plans: tuple[ScoredPlan, ...]
    original: Trial
    original_us: dict[str, float]
    """The original on each processor alone."""
    original_error_us: dict[str, float]
    refused: dict[str, int]
    log10_size: float
    optimal: bool
    lower_bound_us: float
    """No plan of the space is faster.

    0 where nothing is proven, because a runtime that works on blocks of channels copies between
    layouts at the ends of blocks, which tables only estimate.
    """
    search_s: float
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Kernels that were never measured, and the kind they were priced as."""
    interrupted: bool = False

    @property
    def fastest(self) -> str:
        """Return the processor on which the original network is fastest."""
        return min(self.original_us, key=lambda name: self.original_us[name])

    @property
    def gap(self) -> float:
        """Return how much faster than the best plan any other can be at most, as a share."""
        return 1 - self.lower_bound_us / self.plans[0].trial.latency_us


def search(
    graph: Graph | NetworkAnalysis,
    soc: Soc,
    processors: Sequence[str] = ("cpu", "dsp"),
    limits: SegmentLimits | None = None,
    min_macs: float = 0.0,
    max_macs: float = math.inf,
    min_params: float = 0.0,
    top: int = 1,
    width_steps: int | None = None,
    progress: Progress | None = None,
    fallback: str | None = None,
    merges: Sequence[str] = ("concat", "project"),
) -> SearchResult:
    """Search the fastest plan of a network on a chip, proven, and `top` - 1 others that differ from
    it in where or on what they branch.

    `min_macs`, `max_macs`, `min_params` are absolute counts. An interrupt (KeyboardInterrupt) ends
    the search with the best plan so far. Raises NoPlan where no plan satisfies the bounds,
    UnknownName for a processor the chip lacks, UnsupportedOp where a kernel was never measured and
    no `fallback` (`nearest`) is allowed.
    """
    began = time.perf_counter()
    check_settings(soc, processors, top, width_steps, merges)
    if min_macs > max_macs:
        raise BadInput(
            f"MACs cannot be at least {min_macs:.4g} and at most {max_macs:.4g}, search bounds"
        )
    analysis = graph if isinstance(graph, NetworkAnalysis) else NetworkAnalysis(graph)
    cost_model = CostModel(soc, fallback)
    check_covered(analysis, soc, processors, cost_model)
    space = SearchSpace(
        analysis,
        cost_model,
        tuple(processors),
        limits or SegmentLimits(),
        width_steps,
        tuple(merges),
    )
    originals = {
        p: estimate_plan(
            lower(analysis, single_processor_plan(analysis.graph, analysis.graph.name, p)),
            soc,
            cost_model,
        )
        for p in processors
    }
    bounds = NetworkLimits(min_macs, max_macs, min_params)
    every = tuple(segment_options(space))
    if max_macs < math.inf and max_macs < (least := least_macs(space, every)) * (1 - 1e-9):
        raise NoPlan(
            f"no plan for {analysis.graph.name} has at most {max_macs:.4g} MACs, the limits leave"
            f" none below {least:.4g}"
        )
    proof, interrupted = search_within_memory(space, every, bounds, progress)
    plans = [plan_from_path(space, every, path) for path in [proof.best] if path is not None]
    plans += original_as_fallback(space, originals, bounds) if interrupted and not plans else []
    if not plans:
        raise NoPlan(explain_no_plan(space, bounds, interrupted))
    try:
        plans += (
            []
            if interrupted
            else [plan_from_path(space, every, path) for path in proof.k_best(top - 1)]
        )
    except KeyboardInterrupt:
        interrupted = True
    scored = [score_plan(plan, analysis, soc, cost_model, processors) for plan in plans]
    scored = (
        [scored[0], *sorted(scored[1:], key=lambda f: f.trial.latency_us)]
        if space.exact
        else sorted(scored, key=lambda f: f.trial.latency_us)
    )
    agrees = (
        space.exact
        and proof.best is not None
        and abs(scored[0].trial.latency_us / proof.best.latency_us - 1) < AGREES
    )
    best_us = scored[0].trial.latency_us
    optimal = proof.search_whole_space and agrees
    return SearchResult(
        plans=tuple(scored),
        original=originals[processors[0]],
        original_us={p: t.latency_us for p, t in originals.items()},
        original_error_us={p: plan_error_us(t) for p, t in originals.items()},
        refused=refusals(space, every),
        log10_size=log10_size(space),
        optimal=optimal,
        lower_bound_us=(
            best_us if optimal else min(best_us, max(0.0, proof.lower_bound_us)) if agrees else 0.0
        ),
        search_s=time.perf_counter() - began,
        limits=space.limits,
        fallbacks=dict(cost_model.fallbacks),
        interrupted=interrupted,
    )


def run_search(
    space: SearchSpace,
    every: Sequence[SegmentOption],
    bounds: NetworkLimits,
    progress: Progress | None,
) -> tuple[ExactSearch, bool]:
    """Search until done or interrupted; return how far it came, and whether it was interrupted."""
    proof = ExactSearch(space, every, bounds, 0.0, progress)
    try:
        proof.run()
    except KeyboardInterrupt:
        return proof, True
    return proof, False


def search_within_memory(
    space: SearchSpace,
    every: Sequence[SegmentOption],
    bounds: NetworkLimits,
    progress: Progress | None,
) -> tuple[ExactSearch, bool]:
    """Search for proven plans with weights that fit into memory.

    Memory seldom binds, so it is looked at only where the best plan without would not fit.
    """
    within = replace(bounds, max_held=max_params_held(space))
    proof, interrupted = run_search(space, every, bounds, progress)
    if proof.best is not None and not fits_memory(space, plan_from_path(space, every, proof.best)):
        if interrupted:
            return ExactSearch(space, every, within, 0.0), True
        before_us = proof.lower_bound_us
        proof, interrupted = run_search(space, every, within, progress)
        proof.bound_us = max(proof.bound_us, before_us)
    proof.bounds = within
    return proof, interrupted


def original_as_fallback(
    space: SearchSpace, originals: Mapping[str, Trial], bounds: NetworkLimits
) -> list[Plan]:
    """Return the original on its fastest processor, where it keeps to the bounds.

    What an early interrupt leaves.
    """
    trials = sorted(originals.values(), key=lambda trial: trial.latency_us)
    kept = [
        t.plan
        for t in trials
        if bounds.min_macs <= t.macs <= bounds.max_macs
        and t.params >= bounds.min_params
        and fits_memory(space, t.plan)
    ]
    return kept[:1]


def max_params_held(space: SearchSpace) -> tuple[float, ...]:
    """Return parameters that processors with a memory limit can hold."""
    soc = space.cost_model.soc
    return tuple((soc.processor(p).memory_bytes or 0) / soc.element_bytes for p in space.limited)


def fits_memory(space: SearchSpace, plan: Plan) -> bool:
    """Return whether the weights of a plan fit the processors they are for."""
    if not space.limited:
        return True
    trial = estimate_plan(
        lower(space.analysis, plan), space.cost_model.soc, space.cost_model, space.processors
    )
    return MemoryLimit(space.cost_model.soc)(trial) is None


def check_settings(
    soc: Soc, processors: Sequence[str], top: int, width_steps: int | None, merges: Sequence[str]
) -> None:
    """Check the arguments of a search. Raises BadInput when one is out of range."""
    for name in processors:
        soc.processor(name)
    if len(set(processors)) != len(processors) or not processors:
        raise BadInput(
            f"processors are {', '.join(processors) or 'none'}, search on {soc.name}, name each"
            " once"
        )
    if top < 1 or (width_steps is not None and width_steps < 2):
        raise BadInput(
            f"top is {top} and width_steps {width_steps}, search settings, they must be at least 1"
            " and 2"
        )
    if not merges or not set(merges) <= {"concat", "project"}:
        raise BadInput(
            f"merges are {', '.join(merges) or 'none'}, search settings, they are concat and"
            " project"
        )


def check_covered(
    analysis: NetworkAnalysis, soc: Soc, processors: Sequence[str], cost_model: CostModel
) -> None:
    """Check that every kernel can be predicted. Raises Uncovered with the kernels that cannot."""
    if missing := uncovered_kernels(analysis.graph, soc, processors, cost_model):
        named = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        where = f"{analysis.graph.name} on {soc.name}"
        raise UnsupportedOp(
            f"{len(missing)} kernels were never measured ({named}), {where}, allow --fallback"
            " nearest"
        )


def plan_from_path(space: SearchSpace, every: Sequence[SegmentOption], path: PlanPath) -> Plan:
    """Return the plan behind a path; neighbouring segments alone on one processor are one
    segment.
    """
    graph = space.analysis.graph
    segments: list[Segment] = []
    for number, options in path.steps:
        option = every[number]
        branches, end = option.describe(options), space.cuts[option.j].name
        before = segments[-1] if segments else None
        if before and not before.branched and len(branches) == 1 and before.branches == branches:
            segments[-1] = Segment(before.start, end, branches)
        else:
            segments.append(Segment(space.cuts[option.i].name, end, branches, option.merge))
    return Plan(graph.name, graph.inputs[0].spec.shape, tuple(segments), space.cost_model.soc.name)


def score_plan(
    plan: Plan,
    analysis: NetworkAnalysis,
    soc: Soc,
    cost_model: CostModel,
    processors: Sequence[str],
) -> ScoredPlan:
    """Return a plan with cost, error and the baseline of equal MACs."""
    lowered = lower(analysis, plan)
    trial = with_alternatives(estimate_plan(lowered, soc, cost_model, processors), lowered, soc)
    return ScoredPlan(
        trial,
        plan_error_us(trial),
        equal_macs(analysis, soc, cost_model, tuple(processors), trial.macs),
    )


def plan_error_us(trial: Trial) -> float:
    """Return the error of a plan, us: errors of one predictor lean one way, so those of segments
    add up.

    Of branches, the slowest counts.
    """
    return sum(
        max(segment.branches, key=lambda b: b.latency_us).error_us for segment in trial.segments
    )


def explain_no_plan(space: SearchSpace, bounds: NetworkLimits, interrupted: bool) -> str:
    """Return why the search has no plan, in one line."""
    graph = space.analysis.graph
    counts = ", ".join(f"{name} {count}" for name, count in refusals(space).items()) or "none"
    wanted = (
        f"MACs {bounds.min_macs:.4g} to {bounds.max_macs:.4g}, parameters from"
        f" {bounds.min_params:.4g}"
    )
    wanted += "".join(
        f", {n / 1e6:.4g}M parameters on {p}"
        for p, n in zip(space.limited, max_params_held(space), strict=True)
    )
    ended = ", interrupted" if interrupted else ""
    return (
        f"no plan for {graph.name}, bounds {wanted} (original {graph.macs} MACs, {graph.params}"
        f" parameters), refused by constraint: {counts}{ended}"
    )


__all__ = ["Branch", "ScoredPlan", "SearchResult", "constraints_of", "search"]
