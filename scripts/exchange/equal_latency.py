"""Plans of one network that differ in how often branches meet, at one predicted latency.

What meeting points cost is paid in MACs: of all plans with the same forks, the one with the most
MACs that still keeps the latency is taken, by bisection of the search's lower limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from nnstretch.capture import load_model, trace
from nnstretch.errors import NoPlan
from nnstretch.plan import Plan
from nnstretch.predict.load_soc import load_soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.lowering.lower import lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.options.segment_options import price_options
from nnstretch.stretch.search.search import MAX_PARAMS
from nnstretch.stretch.search.search_problem import SearchProblem
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.trial import Trial

CHIP, TEAM = "mi9", ("cpu", "dsp")
SIDE_PX = 112
MACS_TO_CHOOSE = 0.9
"""Share of the original's MACs at which the cuts of the forks are chosen."""
MACS_AT_MOST_FORKS = 0.85
"""Share of the original's MACs of the plan with the most forks, whose latency all others keep."""
BISECTIONS = 7
Ends = tuple[tuple[int, int], ...]
"""First and last cut of each fork."""


def forks(plan: Plan) -> int:
    """Return how often branches meet."""
    return sum(segment.branched for segment in plan.segments)


class ForkSearch:
    """Searches of one network for plans with given forks; segments are priced once."""

    def __init__(self, model: str) -> None:
        self.graph = trace(load_model(model), torch.zeros(1, 3, SIDE_PX, SIDE_PX), model).graph
        analysis = NetworkAnalysis(self.graph)
        self.space = SearchSpace(analysis, CostModel(load_soc(CHIP)), TEAM, SegmentLimits())
        self.tables = CostTables(self.space)
        self.options = price_options(self.tables, lambda what, done, of: None)
        self.may_fork = {(option.i, option.j) for option in self.options if option.branched}

    def fastest(self, share: float, count: int, ends: Ends | None = None) -> Trial | None:
        """Return the fastest plan of such a share of the MACs and `count` forks at least.

        With `ends` branches run apart there alone. None where there is no plan.
        """
        self.space.whole_limited = False
        limits = NetworkLimits(min_macs=share * self.graph.macs, min_meetings=count)
        most_params = MAX_PARAMS * self.graph.params
        problem = SearchProblem(self.tables, limits, lambda what, done, of: None, most_params)
        problem.options = tuple(
            option
            for option in self.options
            if ends is None or not option.branched or (option.i, option.j) in ends
        )
        path = problem.search_within_memory().best
        return None if path is None else problem.estimate(problem.plan_from_path(path), TEAM)

    def estimate(self, plan: Plan) -> Trial:
        """Predict a plan."""
        lowered = lower(self.space.analysis, plan)
        return estimate_plan(lowered, self.space.cost_model.soc, self.space.cost_model, TEAM)

    def original_us(self) -> float:
        """Return what the original takes on its fastest processor."""
        us, _ = self.tables.original(0, self.space.last)
        return min(us.values())

    def choose_ends(self, count: int) -> Ends:
        """Return where the fastest plan of exactly so many forks has them.

        Where the fastest of so many at least has more, forks in a row from the input are tried.
        """
        trial = self.fastest(MACS_TO_CHOOSE, count)
        if trial is not None and forks(trial.plan) == count:
            return self.ends_of(trial.plan)
        return min(self.chains(count))[1]

    def ends_of(self, plan: Plan) -> Ends:
        """Return where a plan has its forks."""
        number = {cut.name: k for k, cut in enumerate(self.space.cuts)}
        branched = [segment for segment in plan.segments if segment.branched]
        return tuple((number[segment.start], number[segment.end]) for segment in branched)

    def chains(self, count: int) -> Iterator[tuple[float, Ends]]:
        """Yield latency and ends of every chain of so many forks from the input."""
        for cuts in combinations(range(1, self.space.last), count):
            ends = tuple(zip((0, *cuts[:-1]), cuts, strict=True))
            if self.may_fork.issuperset(ends):
                trial = self.fastest(MACS_TO_CHOOSE, count, ends)
                if trial is not None:
                    yield trial.latency_us, ends

    def with_most_macs(self, count: int, ends: Ends, latency_us: float) -> Trial:
        """Return the plan of most MACs with these forks that keeps a latency. Raises NoPlan."""
        low, high, best = 0.5, 1.5, None
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            trial = self.fastest(middle, count, ends)
            if trial is None or trial.latency_us > latency_us:
                high = middle
            else:
                best, low = trial, max(middle, trial.macs / self.graph.macs)
        if best is None:
            raise NoPlan(f"no plan of {count} forks within {latency_us:.0f} us, {self.graph.name}")
        return best

    def at_equal_latency(self, counts: Sequence[int]) -> dict[int, Trial]:
        """Return a plan for each number of forks, all within the latency that the most need.

        Raises NoPlan where one of them has none.
        """
        ends = {count: self.choose_ends(count) for count in counts}
        most = max(counts)
        slowest = self.fastest(MACS_AT_MOST_FORKS, most, ends[most])
        if slowest is None:
            raise NoPlan(f"no plan of {most} forks, {self.graph.name}")
        others = [count for count in counts if count != most]
        trials = {n: self.with_most_macs(n, ends[n], slowest.latency_us) for n in others}
        return trials | {most: slowest}
