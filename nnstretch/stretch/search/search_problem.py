"""One space to search: priced, searched, and its plans scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nnstretch.errors import NoPlan
from nnstretch.plan import Plan, Segment
from nnstretch.stretch.cost.cost_model import estimate_plan
from nnstretch.stretch.cost.failover_costs import with_alternatives
from nnstretch.stretch.cost.iso_mac import equal_macs
from nnstretch.stretch.lowering.lower import lower, single_processor_plan
from nnstretch.stretch.search.alternatives import k_best
from nnstretch.stretch.search.branch_and_bound import ExactSearch, Progress
from nnstretch.stretch.search.constraints import MemoryLimit, NetworkLimits
from nnstretch.stretch.search.early_stop import STOPS, OutOfTime
from nnstretch.stretch.search.feasibility import check_reachable, max_params_held, no_plan
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import price_options
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult, plan_error_us
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.statistics import log10_size, refusals
from nnstretch.stretch.search.warm_start import warm_up
from nnstretch.trial import Trial

AGREES = 1e-6
"""Relative difference up to which tables and the lowered plan agree on a latency."""


@dataclass
class SearchProblem:
    """One space to search, within limits of the whole network."""

    tables: CostTables
    limits: NetworkLimits
    progress: Progress
    max_params: float = math.inf
    gap: float = 0.0
    """The search is over when nothing can be faster by more than this share."""
    options: tuple[SegmentOption, ...] = ()
    """Priced by `solve`."""
    stopped_by: type[BaseException] | None = None
    """What ended the search early."""

    def __post_init__(self) -> None:
        self.space = self.tables.space

    @cached_property
    def originals(self) -> dict[str, Trial]:
        """Return the original network on each processor; no plan and no bound waits for it."""
        return {p: self.estimate_original(p) for p in self.space.processors}

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
            check_reachable(self.tables, self.options, self.limits, self.progress)
            search = self.search_within_memory()
        except STOPS as stop:
            self.stopped_by = type(stop)
        if search is None or (self.stopped_by and search.best is None):
            plans = self.original_as_fallback()
        else:
            plans = [] if search.best is None else [self.plan_from_path(search.best)]
        if not plans:
            raise self.no_plan(search)
        if search is None:
            return self.unsearched_result(self.score(plans[0]))
        if self.stopped_by is None:
            plans += self.other_plans(search, top)
        scored = [self.score(plan) for plan in plans]
        best = scored[0]
        if search.is_proven(0.0) and agrees(search, best):
            scored[1:] = sorted(scored[1:], key=latency_us)
        else:  # the original, or another plan, may be faster
            originals = [self.score(plan) for plan in self.original_as_fallback()]
            known = [each.trial.plan.segments for each in scored]
            scored += [each for each in originals if each.trial.plan.segments not in known]
            scored.sort(key=latency_us)
        # Where tables overstate the work of a plan, it may have too little.
        scored = [each for each in scored if self.limits.allow(each.trial)]
        if not scored:
            raise self.no_plan(search)
        return self.result(scored[:top], search, best)

    def other_plans(self, search: ExactSearch, top: int) -> list[Plan]:
        """Return up to `top` - 1 other plans, the fastest; fewer where time ends."""
        plans: list[Plan] = []
        try:
            asked = search, top - 1, self.max_params
            for path in k_best(*asked, lambda path: self.fits(self.plan_from_path(path))):
                plans.append(self.plan_from_path(path))
        except STOPS as stop:
            self.stopped_by = type(stop)
        return plans

    def unsearched_result(self, scored: ScoredPlan) -> SearchResult:
        """Return the original as the plan of a search that ended before all was priced."""
        return replace(self.describe((scored,), {}, 0.0, False, 0.0), searched=False)

    def result(
        self, scored: Sequence[ScoredPlan], search: ExactSearch, best: ScoredPlan
    ) -> SearchResult:
        """Return the result; `best` is the incumbent, whose price the tables may overstate."""
        optimal = search.is_proven(0.0) and agrees(search, best)
        best_us = scored[0].trial.latency_us
        lower_bound_us = best_us if optimal else 0.0
        if not optimal and search.best is not None:
            bounds = search.best.latency_us < best.trial.latency_us * (1 + AGREES)
            lower_bound_us = min(best_us, max(0.0, search.lower_bound_us)) if bounds else 0.0
        refused = refusals(self.tables, self.options) if search.bounds else {}  # all is priced
        size = log10_size(self.tables)
        described = self.describe(scored, refused, size, optimal, lower_bound_us)
        return replace(described, searched=search.best is not None)

    def describe(
        self,
        scored: Sequence[ScoredPlan],
        refused: dict[str, int],
        size: float,
        optimal: bool,
        lower_bound_us: float,
    ) -> SearchResult:
        """Return plans with what the search knows of them; `size` is a decimal logarithm."""
        return SearchResult(
            plans=tuple(scored),
            original=self.originals[self.space.processors[0]],
            original_us={p: trial.latency_us for p, trial in self.originals.items()},
            original_error_us={p: plan_error_us(trial) for p, trial in self.originals.items()},
            refused=refused,
            log10_size=size,
            optimal=optimal,
            lower_bound_us=lower_bound_us,
            search_s=0.0,
            limits=self.space.limits,
            fallbacks=dict(self.space.cost_model.fallbacks),
            interrupted=self.stopped_by is KeyboardInterrupt,
            out_of_time=self.stopped_by is OutOfTime,
            original_compute_us={p: trial.compute_us for p, trial in self.originals.items()},
        )

    def search_within(self, limits: NetworkLimits) -> ExactSearch:
        """Search until done or stopped; return how far it came."""
        search = ExactSearch(self.tables, self.options, limits, self.gap, self.progress)
        try:
            warm_up(search)
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
                return ExactSearch(self.tables, self.options, within, self.gap)
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
        spec = graph.inputs[0].spec
        soc = space.cost_model.soc.name
        return Plan(graph.name, spec.shape, tuple(segments), soc, spec.unusual_dtype)

    def original_as_fallback(self) -> list[Plan]:
        """Return the fastest original that keeps the limits, for an early interrupt."""
        for trial in sorted(self.originals.values(), key=lambda trial: trial.latency_us):
            if self.limits.allow(trial) and self.fits(trial.plan):
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

    def no_plan(self, search: ExactSearch | None) -> NoPlan:
        """Return why the search has no plan, as an error to raise."""
        limits = self.limits if search is None else search.limits
        stopped_by, progress = self.stopped_by, self.progress
        return no_plan(self.tables, self.options, limits, self.max_params, stopped_by, progress)


def latency_us(scored: ScoredPlan) -> float:
    """Return what a plan is estimated to take, us."""
    return scored.trial.latency_us


def agrees(search: ExactSearch, scored: ScoredPlan) -> bool:
    """Return whether tables say of the best plan what the lowered plan is estimated to take.

    They say less where a branch's first unit leaves either layout of maps, by what it reads. Nor
    do they agree where it breaks limits that it keeps by the tables.
    """
    if search.best is None or not search.limits.allow(scored.trial):
        return False
    apart_us = abs(scored.trial.latency_us - search.best.latency_us)
    return apart_us <= AGREES * search.best.latency_us
