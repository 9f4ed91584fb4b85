"""Plans along lower bounds: at every cut the option of least bound, and its best combination."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.cost_to_go import bound_through
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.bounds.relaxations import known_rows
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.combinations import candidate_combinations
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.search_schedule import SearchSchedule
from nnstretch.stretch.search.space.search_space import SearchSpace


@dataclass(frozen=True)
class GreedyPlan:
    """A plan along the bounds, within the limits of the network or not."""

    path: PlanPath
    macs: float
    params: float
    meetings: int
    params_held: Array
    """`[1, holder]`."""

    @property
    def plane(self) -> tuple[float, float, float, int]:
        """Return the plan as a cutting plane."""
        return self.path.latency_us, self.macs, self.params, self.meetings

    def keeps(self, limits: NetworkLimits) -> bool:
        """Return whether the plan is within the limits."""
        totals = np.array(self.macs), np.array(self.params), np.array(self.meetings)
        return bool(limits.keeps(*totals, self.params_held).all())


@dataclass(frozen=True)
class GreedyPlans:
    """Follows bounds to plans over the options that are still alive."""

    space: SearchSpace
    options: Sequence[SegmentOption]
    limits: NetworkLimits
    schedule: SearchSchedule
    alive: Sequence[int]

    def plan(self, values: CostToGo) -> GreedyPlan | None:
        """Take the option of least bound at every cut; None where the bounds lead nowhere."""
        i, width = 0, self.space.original_width(0)
        steps: list[tuple[int, tuple[int, ...]]] = []
        latency_us = macs = params = 0.0
        meetings = 0
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
            meetings += self.options[number].meetings
            params_held = params_held + pick.params_held
            i, width = self.options[number].j, int(pick.width[0])
        path = PlanPath(latency_us, tuple(steps))
        return GreedyPlan(path, macs, params, meetings, params_held)

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
        totals = option.branch_totals(width) if math.isfinite(bound_us) else None
        if totals is None:
            return None
        for share in self.schedule.greedy_slacks:
            slack_us = math.inf
            if share < math.inf:
                slack_us = bound_us + share * max(abs(bound_us), 1000.0)
            options, _ = candidate_combinations(
                option,
                width,
                values,
                known_rows(number, option, values, width),
                self.limits,
                slack_us,
                self.schedule.greedy_combinations,
                is_proof=False,
            )
            if options is None:
                continue
            combinations = option.admissible_combinations(width, totals, options)
            if len(combinations):
                best = int(bound_through(option, combinations, values).argmin())
                return combinations.take(np.array([best]))
        return None
