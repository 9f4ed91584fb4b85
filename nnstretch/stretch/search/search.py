"""The proven best plan of the whole space.

Segments touch only through the merged width, so dynamic programming over (cut, merged width) is
exact. Where MACs or parameters of the whole network are limited, labels carry them along.
Lagrangian lower bounds tell which of the millions of combinations need not be looked at, and in the
end what no plan can beat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nnstretch.errors import BadInput, NoPlan, UnsupportedOp
from nnstretch.files.checked import checked
from nnstretch.graph import Graph
from nnstretch.plan import Plan, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan, uncovered_kernels
from nnstretch.stretch.cost.failover_costs import with_alternatives
from nnstretch.stretch.cost.iso_mac import equal_macs
from nnstretch.stretch.lowering.lower import lower, single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.alternatives import k_best
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import MemoryLimit, NetworkLimits, SegmentLimits
from nnstretch.stretch.search.cost_tables import CostTables
from nnstretch.stretch.search.labels import PlanPath
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult, plan_error_us
from nnstretch.stretch.search.search_space import SearchSpace
from nnstretch.stretch.search.segment_options import SegmentOption, price_options
from nnstretch.stretch.search.statistics import least_macs, log10_size, refusals
from nnstretch.trial import Trial

Progress = Callable[[str, int, int], None]
MERGES = ("concat", "project")
MAX_PARAMS = 1.5
"""Parameters of a plan over the original's, at most, where no other limit is asked for."""
AGREES = 1e-6
"""Relative difference up to which tables and the lowered plan agree on a latency."""


@checked
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
    merges: Sequence[str] = MERGES,
    max_params: float | None = None,
    time_limit_s: float = math.inf,
) -> SearchResult:
    """Search the fastest plan of a network on a chip, proven, and `top` - 1 others.

    The others differ from it in where or on what they branch. `min_macs`, `max_macs`, `min_params`,
    `max_params` are absolute counts; None allows 1.5 times the original's parameters. An interrupt
    (KeyboardInterrupt) or `time_limit_s` ends the search with the best plan so far. Raises NoPlan
    where no plan satisfies the limits, UnknownName for a processor the chip lacks,
    UnsupportedOp where a kernel was never measured and no `fallback` (`nearest`) is allowed.
    """
    began = time.perf_counter()
    check_settings(soc, processors, top, width_steps, merges)
    check_macs(min_macs, max_macs)
    tell = until(began + time_limit_s, progress)
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
    if max_params is None:
        max_params = MAX_PARAMS * max(analysis.graph.params, min_params)
    limits_of_all = NetworkLimits(min_macs, max_macs, min_params)
    problem = SearchProblem(CostTables(space), limits_of_all, tell, max_params)
    result = problem.solve(top)
    return replace(result, search_s=time.perf_counter() - began)


class OutOfTime(Exception):
    """The time limit of a search has passed."""


STOPS = (KeyboardInterrupt, OutOfTime)
"""What ends a search early."""


def until(deadline_s: float, progress: Progress | None) -> Progress:
    """Return a progress that raises OutOfTime once `time.perf_counter` is past the deadline."""

    def tell(what: str, done: int, of: int) -> None:
        if time.perf_counter() > deadline_s:
            raise OutOfTime
        if progress is not None:
            progress(what, done, of)

    return tell


@dataclass
class SearchProblem:
    """One space to search, within limits of the whole network."""

    tables: CostTables
    limits: NetworkLimits
    progress: Progress
    max_params: float = math.inf
    options: tuple[SegmentOption, ...] = ()
    """Priced by `solve`."""
    stopped_by: type[BaseException] | None = None
    """What ended the search early."""

    def __post_init__(self) -> None:
        self.space = self.tables.space
        self.originals = {p: self.estimate_original(p) for p in self.space.processors}

    def estimate_original(self, processor: str) -> Trial:
        """Estimate the original network on one processor."""
        graph = self.space.analysis.graph
        return self.estimate(single_processor_plan(graph, graph.name, processor), ())

    def estimate(self, plan: Plan, processors: Sequence[str]) -> Trial:
        """Lower and estimate a plan; originals of its segments run on the fastest processor."""
        cost_model = self.space.cost_model
        lowered = lower(self.space.analysis, plan)
        return estimate_plan(lowered, cost_model.soc, cost_model, processors)

    def solve(self, top: int) -> SearchResult:
        """Search, and score the plans. Raises NoPlan where none satisfies the limits."""
        search: ExactSearch | None = None
        try:
            self.options = price_options(self.tables, self.progress)
            self.check_max_macs()
            search = self.search_within_memory()
        except STOPS as stop:
            self.stopped_by = type(stop)
        if search is None or (self.stopped_by and search.best is None):
            plans = self.original_as_fallback()
        else:
            plans = [] if search.best is None else [self.plan_from_path(search.best)]
        if not plans:
            raise NoPlan(self.explain_no_plan())
        if search is None:
            return self.unsearched_result(self.score(plans[0]))
        if self.stopped_by is None:
            plans += self.other_plans(search, top)
        scored = [self.score(plan) for plan in plans]
        proven = 1 if self.space.exact else 0
        scored[proven:] = sorted(scored[proven:], key=lambda plan: plan.trial.latency_us)
        return self.result(scored, search)

    def other_plans(self, search: ExactSearch, top: int) -> list[Plan]:
        """Return up to `top` - 1 good plans that differ from the best; none where time ends."""
        try:
            plans = [self.plan_from_path(path) for path in k_best(search, top - 1)]
            return [plan for plan in plans if self.fits(plan)]
        except STOPS as stop:
            self.stopped_by = type(stop)
            return []

    def unsearched_result(self, scored: ScoredPlan) -> SearchResult:
        """Return the original as the plan of a search that ended before all was priced."""
        return SearchResult(
            plans=(scored,),
            original=self.originals[self.space.processors[0]],
            original_us={p: trial.latency_us for p, trial in self.originals.items()},
            original_error_us={p: plan_error_us(trial) for p, trial in self.originals.items()},
            refused={},
            log10_size=0.0,
            optimal=False,
            lower_bound_us=0.0,
            search_s=0.0,
            limits=self.space.limits,
            fallbacks=dict(self.space.cost_model.fallbacks),
            interrupted=self.stopped_by is KeyboardInterrupt,
            out_of_time=self.stopped_by is OutOfTime,
        )

    def result(self, scored: list[ScoredPlan], search: ExactSearch) -> SearchResult:
        """Return the result; nothing is proven where tables and the lowered plan disagree."""
        best_us = scored[0].trial.latency_us
        agrees = self.space.exact and search.best is not None
        if agrees and search.best is not None:
            agrees = abs(best_us / search.best.latency_us - 1) < AGREES
        optimal = search.is_optimal and agrees
        lower_bound_us = 0.0
        if optimal:
            lower_bound_us = best_us
        elif agrees:
            lower_bound_us = min(best_us, max(0.0, search.lower_bound_us))
        return SearchResult(
            plans=tuple(scored),
            original=self.originals[self.space.processors[0]],
            original_us={p: trial.latency_us for p, trial in self.originals.items()},
            original_error_us={p: plan_error_us(trial) for p, trial in self.originals.items()},
            refused=refusals(self.tables, self.options),
            log10_size=log10_size(self.tables),
            optimal=optimal,
            lower_bound_us=lower_bound_us,
            search_s=0.0,
            limits=self.space.limits,
            fallbacks=dict(self.space.cost_model.fallbacks),
            interrupted=self.stopped_by is KeyboardInterrupt,
            out_of_time=self.stopped_by is OutOfTime,
        )

    def search_within(self, limits: NetworkLimits) -> ExactSearch:
        """Search until done or stopped; return how far it came."""
        search = ExactSearch(self.tables, self.options, limits, 0.0, self.progress)
        try:
            search.run()
        except STOPS as stop:
            self.stopped_by = type(stop)
        return search

    def search_within_memory(self) -> ExactSearch:
        """Search for plans with weights that fit into memory and within `max_params`.

        Both seldom bind: they are limits only where the best plan without them breaks them.
        """
        search = self.search_within(self.limits)
        best = None if search.best is None else self.plan_from_path(search.best)
        if best is not None and not self.fits(best):
            before_us = search.lower_bound_us
            self.space.whole_limited = self.max_params < math.inf
            within = replace(self.limits, max_held=self.max_held())
            if self.stopped_by is not None:
                return ExactSearch(self.tables, self.options, within, 0.0)
            search = self.search_within(within)
            search.bound_us = max(search.bound_us, before_us)
        search.limits = replace(self.limits, max_held=self.max_held())
        return search

    def max_held(self) -> tuple[float, ...]:
        """Return the parameters that each of the space's holders may hold."""
        limits = max_params_held(self.space)
        return (*limits, self.max_params) if self.space.whole_limited else limits

    def fits(self, plan: Plan) -> bool:
        """Return whether the weights of a plan fit the processors, and are not too many."""
        if not self.space.limited and self.max_params == math.inf:
            return True
        trial = self.estimate(plan, self.space.processors)
        if trial.params > self.max_params:
            return False
        return MemoryLimit(self.space.cost_model.soc)(trial) is None

    def plan_from_path(self, path: PlanPath) -> Plan:
        """Return the plan of a path; neighbouring segments on one processor become one."""
        space, segments = self.space, list[Segment]()
        for number, options in path.steps:
            option = self.options[number]
            branches, end = option.describe(options), space.cuts[option.j].name
            before = segments[-1] if segments else None
            if len(branches) == 1 and before is not None and before.branches == branches:
                segments[-1] = Segment(before.start, end, branches)
            else:
                start = space.cuts[option.i].name
                segments.append(Segment(start, end, branches, option.merge))
        graph = space.analysis.graph
        shape = graph.inputs[0].spec.shape
        return Plan(graph.name, shape, tuple(segments), space.cost_model.soc.name)

    def original_as_fallback(self) -> list[Plan]:
        """Return the fastest original that keeps the limits, for an early interrupt."""
        limits = self.limits
        for trial in sorted(self.originals.values(), key=lambda trial: trial.latency_us):
            is_within = limits.min_macs <= trial.macs <= limits.max_macs
            is_large = trial.params >= limits.min_params
            if is_within and is_large and self.fits(trial.plan):
                return [trial.plan]
        return []

    def score(self, plan: Plan) -> ScoredPlan:
        """Return a plan with cost, error and the baseline of equal MACs."""
        space, cost_model = self.space, self.space.cost_model
        lowered = lower(space.analysis, plan)
        trial = estimate_plan(lowered, cost_model.soc, cost_model, space.processors)
        trial = with_alternatives(trial, lowered, cost_model.soc)
        iso_mac = equal_macs(
            space.analysis, cost_model.soc, cost_model, space.processors, trial.macs
        )
        return ScoredPlan(trial, plan_error_us(trial), iso_mac)

    def check_max_macs(self) -> None:
        """Check the limit on MACs. Raises NoPlan where the rules leave no plan below it."""
        if self.limits.max_macs < math.inf:
            least = least_macs(self.tables, self.options)
            if self.limits.max_macs < least * (1 - 1e-9):
                raise NoPlan(
                    f"no plan for {self.space.analysis.graph.name} has at most"
                    f" {self.limits.max_macs:.4g} MACs, the limits leave none below {least:.4g}"
                )

    def explain_no_plan(self) -> str:
        """Return why the search has no plan, in one line."""
        graph, limits = self.space.analysis.graph, self.limits
        refused = refusals(self.tables) if self.stopped_by is None else {}
        counts = ", ".join(f"{name} {count}" for name, count in refused.items()) or "none"
        wanted = f"MACs {limits.min_macs:.4g} to {limits.max_macs:.4g}"
        wanted += f", parameters from {limits.min_params:.4g} to {self.max_params:.4g}"
        for p, most in zip(self.space.limited, max_params_held(self.space), strict=True):
            wanted += f", {most / 1e6:.4g}M parameters on {p}"
        ended = ""
        if self.stopped_by is not None:
            ended = ", interrupted" if self.stopped_by is KeyboardInterrupt else ", out of time"
        return (
            f"no plan for {graph.name}, bounds {wanted} (original {graph.macs} MACs, {graph.params}"
            f" parameters), refused by constraint: {counts}{ended}"
        )


def max_params_held(space: SearchSpace) -> tuple[float, ...]:
    """Return the parameters that each processor with a memory limit can hold."""
    soc = space.cost_model.soc
    return tuple((soc.processor(p).memory_bytes or 0) / soc.element_bytes for p in space.limited)


def check_settings(
    soc: Soc, processors: Sequence[str], top: int, width_steps: int | None, merges: Sequence[str]
) -> None:
    """Check the arguments of a search. Raises BadInput when one is out of range."""
    for name in processors:
        soc.processor(name)
    if len(set(processors)) != len(processors) or not processors:
        names = ", ".join(processors) or "none"
        raise BadInput(f"processors are {names}, search on {soc.name}, name each once")
    if top < 1 or (width_steps is not None and width_steps < 2):
        raise BadInput(
            f"top is {top} and width_steps {width_steps}, search settings, they must be at least 1"
            " and 2"
        )
    if not merges or not set(merges) <= set(MERGES):
        names = ", ".join(merges) or "none"
        raise BadInput(f"merges are {names}, search settings, they are concat and project")


def check_macs(min_macs: float, max_macs: float) -> None:
    """Check the limits on MACs. Raises BadInput where nothing lies between them."""
    if min_macs > max_macs:
        raise BadInput(
            f"MACs cannot be at least {min_macs:.4g} and at most {max_macs:.4g}, search bounds"
        )


def check_covered(
    analysis: NetworkAnalysis, soc: Soc, processors: Sequence[str], cost_model: CostModel
) -> None:
    """Check that every kernel can be predicted. Raises UnsupportedOp naming those that cannot."""
    if missing := uncovered_kernels(analysis.graph, soc, processors, cost_model):
        named = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        where = f"{analysis.graph.name} on {soc.name}"
        raise UnsupportedOp(
            f"{len(missing)} kernels were never measured ({named}), {where}, allow --fallback"
            " nearest"
        )
