"""The exact search of one space: bounds, pruned options and label searches until optimal.

An incumbent comes from greedy plans along the bounds and from local search; options through which
no plan can beat it are pruned; label searches of rising effort close what is left of the gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.stretch.search.bounds.cost_to_go import bound_through, cost_to_go, reduced_costs
from nnstretch.stretch.search.bounds.cutting_planes import CuttingPlanes
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.combinations import candidate_combinations
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.cost_tables import CostTables
from nnstretch.stretch.search.label_setting import LabelSearch
from nnstretch.stretch.search.labels import PlanPath
from nnstretch.stretch.search.search_schedule import BeamLimits, LabelRun, SearchSchedule
from nnstretch.stretch.search.segment_options import BranchCombinations, SegmentOption

Progress = Callable[[str, int, int], None]


@dataclass
class ExactSearch:
    """State of the exact search: the incumbent, and a bound that no plan can beat."""

    tables: CostTables
    options: Sequence[SegmentOption]
    limits: NetworkLimits
    gap: float
    """Relative: the search is over when nothing can be better by more."""
    progress: Progress | None = None
    schedule: SearchSchedule = field(default_factory=SearchSchedule)
    best: PlanPath | None = None
    """The incumbent."""
    bound_us: float = -math.inf
    alive: list[int] = field(default_factory=list)
    """Numbers of the options that plans better than the incumbent may use."""
    used: set[int] = field(default_factory=set)
    """Numbers of the options that greedy plans used."""

    def __post_init__(self) -> None:
        self.space = self.tables.space
        self.bins = self.schedule.bins(self.limits)
        self.alive = list(range(len(self.options)))
        self.planes = CuttingPlanes(self.limits, self.largest_multipliers(), self.schedule)

    @property
    def lower_bound_us(self) -> float:
        """Return the proven lower bound on the latency, us."""
        return self.bound_us if self.best is None else min(self.bound_us, self.best.latency_us)

    @property
    def is_optimal(self) -> bool:
        """Return whether the incumbent is proven optimal, up to the gap."""
        if self.best is None:
            return False
        return self.lower_bound_us >= self.best.latency_us * (1 - max(self.gap, 1e-9))

    def run(self) -> ExactSearch:
        """Search the space; without a plan within the limits, `best` stays None."""
        bounds = self.optimize_multipliers()
        for factor, runs in zip(self.bins.phases, self.schedule.phases, strict=True):
            if factor is not None and not self.tighten(bounds, factor):
                return self
            bounds.sort(key=lambda values: -values.total(self.limits))
            self.polish(bounds)
            if factor is not None or self.limits.any:
                for run in runs:
                    if self.is_optimal or self.bound_us == math.inf:
                        return self
                    self.search_labels(bounds, run)
            self.prune_options(bounds[0])
        return self

    def report_progress(self, what: str, done: int, of: int) -> None:
        """Report progress where somebody listens."""
        if self.progress:
            self.progress(what, done, of)

    # Bounds

    def largest_multipliers(self) -> Multipliers:
        """Return three times what a MAC, and a parameter, costs when all processors work."""
        us, macs = self.tables.original(0, self.space.last)
        per_mac = 1 / sum(macs / times_us for times_us in us.values()) if macs else 0.0
        params = max(1, self.space.analysis.graph.params)
        return Multipliers(3 * per_mac, 3 * per_mac * macs / params)

    def optimize_multipliers(self) -> list[CostToGo]:
        """Return the bounds at the best multipliers, by falling bound."""
        known: list[CostToGo] = []
        multipliers, rounds = self.planes.first(), self.planes.rounds()
        for n in range(rounds):
            self.report_progress("pricing", n + 1, rounds)
            values = self.evaluate(multipliers, self.bins.trials if known else self.bins.first)
            known.append(values)
            self.planes.bounds_us[multipliers] = values.total(self.limits)
            multipliers, ceiling_us = self.planes.propose()
            is_close = ceiling_us <= self.bound_us * (1 + self.schedule.bound_tolerance)
            if is_close or multipliers in self.planes.bounds_us:
                break
        known.sort(key=lambda values: -values.total(self.limits))
        return known[: self.schedule.kept_bounds]

    def tighten(self, bounds: list[CostToGo], bin_factor: float) -> bool:
        """Evaluate the same multipliers over finer bins; return False where optimal before."""
        for n, values in enumerate(list(bounds)):
            if self.is_optimal:
                return False
            bounds[n] = self.evaluate(values.multipliers, bin_factor)
            self.report_progress("tightening bounds", n + 1, len(bounds))
        return True

    def evaluate(self, multipliers: Multipliers, bin_factor: float) -> CostToGo:
        """Return bounds at these multipliers; improve the incumbent and prune by them."""
        values = cost_to_go(self.space, self.options, multipliers, self.alive, bin_factor)
        self.bound_us = max(self.bound_us, values.total(self.limits))
        self.follow_bounds(values)
        self.prune_options(values)
        return values

    def prune_options(self, values: CostToGo) -> None:
        """Drop options through which no plan can beat the incumbent (reduced cost fixing)."""
        if self.best is not None:
            room_us = self.best.latency_us - values.total(self.limits)
            costs = reduced_costs(self.options, values)
            self.alive = [n for n in self.alive if costs.get(n, math.inf) < room_us]

    def search_labels(self, bounds: list[CostToGo], run: LabelRun) -> None:
        """Search labels; what they drop without proof bounds what may have been missed."""
        search = LabelSearch(
            self.space,
            self.options,
            bounds,
            self.limits,
            run.beam,
            self.gap,
            self.best,
            ceiling_us=self.above_bound(run.margin),
        )
        search.run(lambda done, of: self.report_progress("following labels", done, of))
        if search.best is not None:
            self.best = search.best
        self.bound_us = max(self.bound_us, search.discarded_bound_us)

    def above_bound(self, margin: float) -> float:
        """Return the latency that lies a share above the bound, us."""
        return self.bound_us + margin * abs(self.bound_us)

    # Incumbents

    def follow_bounds(self, values: CostToGo) -> None:
        """Follow the bounds to a plan, and search around it where it uses new options."""
        plan = self.greedy_plan(values)
        if plan is None:
            return
        numbers = {number for number, _ in plan.steps}
        if self.best is not None and numbers <= self.used:
            return
        self.used |= numbers
        margins = self.schedule.margins
        if self.best is not None:
            margins = margins[: self.schedule.greedy_margins]
        self.local_search([values], self.schedule.greedy_beam, self.used, margins)

    def greedy_plan(self, values: CostToGo) -> PlanPath | None:
        """Take the option of least bound at every cut; keep the plan where it is an incumbent."""
        i, width = 0, self.space.original_width(0)
        steps: list[tuple[int, tuple[int, ...]]] = []
        latency_us = macs = params = 0.0
        params_held = np.zeros((1, len(self.space.holders)))
        while i < self.space.last:
            step = self.greedy_step(i, width, values)
            if step is None:
                return None
            number, pick = step
            steps.append((number, tuple(int(option[0]) for option in pick.options)))
            latency_us += float(pick.latency_us[0])
            macs += float(pick.macs[0])
            params += float(pick.params[0])
            params_held = params_held + pick.params_held
            i, width = self.options[number].j, int(pick.width[0])
        self.planes.planes.append((latency_us, macs, params))
        plan = PlanPath(latency_us, tuple(steps))
        is_within = self.limits.keeps(np.array(macs), np.array(params), params_held).all()
        if is_within and (self.best is None or latency_us < self.best.latency_us):
            self.best = plan
        return plan

    def greedy_step(
        self, i: int, width: int, values: CostToGo
    ) -> tuple[int, BranchCombinations] | None:
        """Return the number of the best option from a cut and width, and its best combination."""
        row = self.space.merged_row(i, width)
        starting = [n for n in self.alive if n in values.options and self.options[n].i == i]
        starting.sort(key=lambda n: float(values.options[n][row]))
        for number in starting[: self.schedule.greedy_options]:
            pick = self.best_combination(number, width, values)
            if pick is not None:
                return number, pick
        return None

    def best_combination(
        self, number: int, width: int, values: CostToGo
    ) -> BranchCombinations | None:
        """Return the combination of one option that leads on best, as a single row."""
        option = self.options[number]
        bound_us = float(values.options[number][self.space.merged_row(option.i, width)])
        if not math.isfinite(bound_us):
            return None
        for share in self.schedule.greedy_slacks:
            slack_us = math.inf
            if share < math.inf:
                slack_us = bound_us + share * max(abs(bound_us), 1000.0)
            options, _ = candidate_combinations(
                option,
                width,
                values,
                values.relaxations[number],
                self.limits,
                slack_us,
                self.schedule.greedy_combinations,
            )
            totals = option.branch_totals(width)
            if options is None or totals is None:
                continue
            combinations = option.admissible_combinations(width, totals, options)
            if len(combinations):
                best = int(bound_through(option, combinations, values).argmin())
                return combinations.take(np.array([best]))
        return None

    def polish(self, bounds: list[CostToGo]) -> None:
        """Search around the greedy plans so far, and over options of the least bounds."""
        only = set(self.used)
        if len(bounds) > 1:
            only |= self.promising_options(bounds)
        self.local_search(bounds, self.schedule.polishing_beam, only, self.schedule.margins)

    def local_search(
        self,
        bounds: list[CostToGo],
        beam: BeamLimits,
        only: set[int],
        margins: Sequence[float],
    ) -> None:
        """Search labels over a few options until the incumbent improves.

        Without limits of the whole network, a greedy plan is the best over its options.
        """
        if not self.limits.any:
            return
        known = sorted(only.intersection(*(values.options for values in bounds)))
        for n, margin in enumerate(margins):
            self.report_progress("polishing", n + 1, len(margins))
            ceiling_us = self.above_bound(margin)
            search = LabelSearch(
                self.space,
                self.options,
                bounds,
                self.limits,
                beam,
                self.gap,
                self.best,
                known,
                ceiling_us,
            ).run()
            if search.best is not self.best:
                self.best = search.best
                return
            if self.best is not None and ceiling_us >= self.best.latency_us:
                return

    def promising_options(self, bounds: list[CostToGo]) -> set[int]:
        """Return options whose highest bound, over all multipliers, is least."""
        costs = [reduced_costs(self.options, values) for values in bounds]
        totals_us = [values.total(self.limits) for values in bounds]
        highest_us: dict[int, float] = {}
        for number in set.intersection(*map(set, costs)):
            pairs = zip(totals_us, costs, strict=True)
            highest_us[number] = max(total_us + excess[number] for total_us, excess in pairs)
        by_bound = sorted(highest_us, key=lambda number: highest_us[number])
        return set(by_bound[: self.schedule.polished_options])
