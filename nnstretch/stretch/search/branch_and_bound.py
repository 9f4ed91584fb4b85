"""The exact search of one space: bounds, pruned options and label searches until optimal.

An incumbent comes from greedy plans along the bounds and from local search; options through which
no plan can beat it are pruned; label searches of rising effort close what is left of the gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.cutting_planes import CuttingPlanes, largest_multipliers
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.bounds.reduced_costs import promising_options, usable_widths
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.greedy_plans import GreedyPlans
from nnstretch.stretch.search.label_setting.label_search import LabelSearch
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.search_schedule import BeamLimits, LabelRun, SearchSchedule
from nnstretch.stretch.search.space.cost_tables import CostTables

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
    usable: dict[int, Array] = field(default_factory=dict)
    """By number: merged widths from which such plans may use the option."""
    used: set[int] = field(default_factory=set)
    """Numbers of the options that greedy plans used."""
    first_multipliers: Multipliers | None = None
    """Multipliers to begin with, from a search that was like this one."""
    before: CostToGo | None = None
    """Bounds at these multipliers over these options, or more."""
    bounds: list[CostToGo] = field(default_factory=list)
    """At the best multipliers, by falling bound."""
    exhausted: set[BeamLimits] = field(default_factory=set)
    """Beams whose label searches were limited by nothing but the incumbent."""

    def __post_init__(self) -> None:
        self.space = self.tables.space
        self.bins = self.schedule.bins(self.limits, len(self.space.processors))
        self.alive = list(range(len(self.options)))
        self.planes = CuttingPlanes(self.limits, largest_multipliers(self.tables), self.schedule)

    @property
    def lower_bound_us(self) -> float:
        """Return the proven lower bound on the latency, us."""
        return self.bound_us if self.best is None else min(self.bound_us, self.best.latency_us)

    def is_proven(self, gap: float) -> bool:
        """Return whether nothing can beat the incumbent by more than a share."""
        if self.best is None:
            return False
        return self.lower_bound_us >= self.best.latency_us * (1 - max(gap, 1e-9))

    @property
    def best_multipliers(self) -> Multipliers | None:
        """Return the multipliers of the highest bound so far."""
        return self.planes.best if self.planes.bounds_us else self.first_multipliers

    @property
    def is_over(self) -> bool:
        """Return whether the incumbent is good enough."""
        return self.is_proven(self.gap)

    def run(self) -> ExactSearch:
        """Search the space; without a plan within the limits, `best` stays None."""
        bounds = self.bounds = self.optimize_multipliers()
        if self.limits_seem_slack():
            self.evaluate(Multipliers(), 1.0, partial(self.report_progress, "pricing", 1, 1))
        phases = self.schedule.label_runs(self.limits)
        for factor, runs in zip(self.bins.phases, phases, strict=False):
            if self.is_over or (factor is not None and not self.tighten(bounds, factor)):
                return self
            bounds.sort(key=lambda values: -values.total(self.limits))
            self.polish(bounds)
            for run in runs:
                if run.beam in self.exhausted and run.margin < math.inf:
                    continue
                if run.beam.labels >= self.schedule.surrounded_labels:
                    self.surround(bounds)
                if self.is_over or self.bound_us == math.inf:
                    return self
                self.search_labels(bounds, run)
            self.prune_options(bounds[0])
        return self

    def report_progress(self, what: str, done: int, of: int) -> None:
        """Report progress, with the incumbent and what is proven, where somebody listens."""
        if self.progress:
            if self.best is not None:
                best_us, least_us = self.best.latency_us, max(0.0, self.lower_bound_us)
                what += f": best {best_us / 1000:.2f} ms, none below {least_us / 1000:.2f} ms"
                what += f" ({1 - least_us / best_us if best_us else 0.0:.2%})"
            self.progress(what, done, of)

    # Bounds

    def optimize_multipliers(self) -> list[CostToGo]:
        """Return the bounds at the best multipliers, by falling bound."""
        known: list[CostToGo] = []
        usual_macs = self.space.limits.segment_macs * self.space.macs
        multipliers = self.first_multipliers or self.planes.first(usual_macs)
        rounds = self.planes.rounds()
        for n in range(rounds):
            report = partial(self.report_progress, "pricing", n + 1, rounds)
            factor = self.bins.trials if known else self.bins.first
            values = self.evaluate(multipliers, factor, report, None if known else self.before)
            known.append(values)
            self.planes.bounds_us[multipliers] = values.total(self.limits)
            multipliers, ceiling_us = self.planes.propose()
            if self.is_over:
                break
            is_close = ceiling_us <= self.bound_us * (1 + self.schedule.bound_tolerance)
            if is_close or self.is_past_best(values) or multipliers in self.planes.bounds_us:
                break
        known.sort(key=lambda values: -values.total(self.limits))
        return known[: self.schedule.kept_bounds]

    def is_past_best(self, values: CostToGo) -> bool:
        """Return whether others bounded more, in a search that began where one like it ended.

        It began with nearly the best multipliers; what follows rarely pays for its evaluation.
        """
        return self.first_multipliers is not None and self.planes.best != values.multipliers

    def limits_seem_slack(self) -> bool:
        """Return whether no plan so far is faster than the incumbent, within the limits or not."""
        if self.best is None or self.is_over or not self.limits.any:
            return False
        return self.planes.fastest_us >= self.best.latency_us * (1 - max(self.gap, 1e-9))

    def tighten(self, bounds: list[CostToGo], bin_factor: float) -> bool:
        """Evaluate the best multipliers over finer bins; return False where optimal before."""
        kept = bounds[: self.schedule.kept_bounds]
        for n, values in enumerate(kept):
            if self.is_over:
                return False
            report = partial(self.report_progress, "tightening bounds", n + 1, len(kept))
            asked = values.multipliers, bin_factor, report, values
            bounds[n] = self.evaluate(*asked, follow=n == 0)
        return True

    def surround(self, bounds: list[CostToGo]) -> None:
        """Evaluate multipliers around the best, too.

        They bound all plans less well, but better those of more or less work: a label has done
        some, and needs the multipliers of what is left. No greedy plan follows such bounds.
        """
        nearby = self.planes.around(self.planes.best)
        for n, multipliers in enumerate(nearby):
            if self.is_over:
                return
            if multipliers not in self.planes.bounds_us:
                report = partial(self.report_progress, "surrounding bounds", n + 1, len(nearby))
                factor = bounds[0].bin_factor
                values = self.evaluate(multipliers, factor, report, follow=False)
                self.planes.bounds_us[multipliers] = values.total(self.limits)
                bounds.append(values)

    def evaluate(
        self,
        multipliers: Multipliers,
        bin_factor: float,
        report: Callable[[], None],
        before: CostToGo | None = None,
        follow: bool = True,
    ) -> CostToGo:
        """Return bounds at these multipliers; prune by them, and follow them to a plan."""
        known = self.space, self.options, multipliers, self.alive
        values = cost_to_go(*known, bin_factor, self.usable, report, before)
        self.bound_us = max(self.bound_us, values.total(self.limits))
        if follow:
            self.follow_bounds(values)
        self.prune_options(values)
        return values

    def prune_options(self, values: CostToGo) -> None:
        """Fix by reduced costs: drop options, and widths before them, that no better plan uses."""
        if self.best is None:
            return
        room_us = self.best.latency_us - values.total(self.limits)
        self.usable = usable_widths(self.options, values, self.alive, self.usable, room_us)
        self.alive = list(self.usable)

    def search_labels(self, bounds: list[CostToGo], run: LabelRun) -> None:
        """Search labels; what they drop without proof bounds what may have been missed.

        A beam that looked for every plan better than the incumbent is exhausted: it would find as
        little again.
        """
        ceiling_us = self.above_bound(run.margin)
        if self.best is not None and self.best.latency_us <= ceiling_us:
            self.exhausted.add(run.beam)
        search = LabelSearch(
            self.space,
            self.options,
            bounds,
            self.limits,
            run.beam,
            self.gap,
            self.best,
            ceiling_us=ceiling_us,
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
        greedy = GreedyPlans(self.space, self.options, self.limits, self.schedule, self.alive)
        plan = greedy.plan(values)
        if plan is None:
            return
        self.planes.planes.append(plan.plane)
        latency_us = plan.path.latency_us
        if plan.keeps(self.limits) and (self.best is None or latency_us < self.best.latency_us):
            self.best = plan.path
        numbers = set(plan.path.option_numbers)
        if self.best is not None and numbers <= self.used:
            return
        self.used |= numbers
        margins = self.schedule.margins
        if self.best is not None:
            margins = margins[: self.schedule.greedy_margins]
        self.local_search([values], self.schedule.greedy_beam, self.used, margins)

    def polish(self, bounds: list[CostToGo]) -> None:
        """Search around the greedy plans so far, and over options of the least bounds."""
        only = set(self.used)
        if len(bounds) > 1:
            most = self.schedule.polished_options
            only |= promising_options(self.options, bounds, self.limits, most)
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
        known = sorted(n for n in only if n in self.usable or not self.usable)
        if not self.limits.any or not known:
            return
        values = [
            cost_to_go(self.space, self.options, around, known, self.bins.trials, self.usable)
            for around in self.planes.around(bounds[0].multipliers)
        ]
        least_us = max(bound.total(self.limits) for bound in values)
        for n, margin in enumerate(margins):
            self.report_progress("polishing", n + 1, len(margins))
            ceiling_us = least_us + margin * abs(least_us)
            question = self.space, self.options, values, self.limits, beam, self.gap, self.best
            search = LabelSearch(*question, known, ceiling_us).run()
            if search.best is not self.best:
                self.best = search.best
                return
            if self.best is not None and ceiling_us >= self.best.latency_us:
                return
