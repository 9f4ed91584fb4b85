"""The best plan of a space, and how sure that is.

Prices, bounds, fewer segment options, then labels, with more effort until the proof is whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.stretch.search.combinations import candidate_combinations
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.cost_to_go import cost_to_go
from nnstretch.stretch.search.label_setting import BeamLimits, LabelSearch, PlanPath
from nnstretch.stretch.search.lagrangian import CostToGo, Multipliers
from nnstretch.stretch.search.search_space import SearchSpace
from nnstretch.stretch.search.segment_options import BranchCombinations, SegmentOption

Progress = Callable[[str, int, int], None]
EFFORTS = (
    BeamLimits(60, 24),
    BeamLimits(300, 100),
    BeamLimits(3_000, 600),
    BeamLimits(30_000, 4_000),
)
"""Labels a cut and combinations a segment option that a run may keep.

The next is tried where one forgot too much.
"""
FREE, BOUNDED = (1.3, 1.15, 1.05, 1.015), (1.1, 1.03, 1.015, 1.0)
"""Factors that a range of input widths spans.

At first, while prices are sought, when they are found, where that does not do.

Where work has a price, ranges must be finer: what is least in time and most in work over a range
exists nowhere in it.
"""
REACH = 0.15
"""Share of the highest price by which prices change at most from one round to the next."""
NEXT = 0.02
"""And at least, as a share of it."""
CLOSE = 0.002
"""Prices are good enough when others could lift the bound by this share at most."""
PROMISING = 20
"""Lanes, beside those of descents, over which plans are polished."""
VALUES = 5
"""Prices at which labels are bounded."""
FIRST = ((EFFORTS[0], 0.04),)
PLAN = ((EFFORTS[0], 0.04), (EFFORTS[1], 0.04), (EFFORTS[2], 0.04), (EFFORTS[2], 0.2))
LAST = ((EFFORTS[2], 0.2), (EFFORTS[3], 0.5), (EFFORTS[3], math.inf))
"""With which effort labels are followed, and how far above the bound a plan is looked for, as a
share.
"""
ABOVE = (0.03, 0.1, 0.3, math.inf)
"""How far above the bound a first good plan is looked for, as shares."""
ROOMS = (0.002, 0.02, 0.2, math.inf)
"""Shares of the bound that a descent looks beyond it."""


@dataclass
class ExactSearch:
    """What is known so far: the best plan, and a bound that no plan can beat."""

    space: SearchSpace
    options: Sequence[SegmentOption]
    bounds: NetworkLimits
    gap: float
    """Relative: the proof is whole when nothing can be better by more."""
    progress: Progress | None = None
    best: PlanPath | None = None
    bound_us: float = -math.inf
    alive: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    """Lanes of plans so far."""
    tried: dict[Multipliers, float] = field(default_factory=dict)
    known: dict[Multipliers, CostToGo] = field(default_factory=dict)
    cutting_planes: list[tuple[float, float, float]] = field(default_factory=list)
    """Latency, MACs and parameters of plans, whether within the bounds or not."""

    def __post_init__(self) -> None:
        self.alive = list(range(len(self.options)))

    @property
    def factors(self) -> tuple[float, ...]:
        """Return the factors by which multipliers are tried."""
        if (
            self.bounds.max_macs < math.inf
        ):  # over a range, work may be overstated but not understated
            return (1.0,) * 4
        return BOUNDED if self.bounds.any else FREE

    @property
    def lower_bound_us(self) -> float:
        """Return the proven lower bound on the latency, us."""
        return self.bound_us if self.best is None else min(self.bound_us, self.best.latency_us)

    @property
    def search_whole_space(self) -> bool:
        """Search until the best plan is proven; return whether it is."""
        return self.best is not None and self.lower_bound_us >= self.best.latency_us * (
            1 - max(self.gap, 1e-9)
        )

    def run(self) -> ExactSearch:
        """Search the space; without a plan within the bounds, `best` stays None. Raises nothing:
        without a plan within the bounds, `best` stays None.
        """
        bounds_by_prices = self.optimise_multipliers()
        for finest, plan in zip((None, *self.factors[2:]), (FIRST, PLAN, LAST), strict=True):
            points = [values.prices for values in bounds_by_prices]
            for n, prices in enumerate(points if finest is not None else ()):
                if self.search_whole_space:
                    return self
                bounds_by_prices[n] = self.evaluate(prices, finest or 1.0)
                self.report_progress("tightening bounds", n + 1, len(points))
            bounds_by_prices.sort(key=lambda v: -self.relaxed_total(v))
            self.local_search(bounds_by_prices, EFFORTS[1])
            for beam_limits, near in plan if finest is not None or self.bounds.any else ():
                if self.search_whole_space or self.bound_us == math.inf:
                    return self
                self.search_labels(bounds_by_prices, beam_limits, near)
            self.prune_options(bounds_by_prices[0])
        return self

    def search_labels(self, bounds: list[CostToGo], beam_limits: BeamLimits, near: float) -> None:
        """Search labels with this much effort; what they forget bounds what may have been
        missed.
        """
        near_us = self.bound_us + near * abs(self.bound_us)
        search = LabelSearch(
            self.space,
            self.options,
            bounds,
            self.bounds,
            beam_limits,
            self.gap,
            self.best,
            ceiling_us=near_us,
        )
        search.run(lambda done, of: self.report_progress("following labels", done, of))
        if search.best is not None:
            self.best = search.best
        self.bound_us = max(self.bound_us, search.discarded_bound_us)

    def report_progress(self, what: str, done: int, of: int) -> None:
        """Report progress where somebody listens."""
        if self.progress:
            self.progress(what, done, of)

    def relaxed_total(self, values: CostToGo) -> float:
        """Return the Lagrangian bound of the whole network, us."""
        return float(values.at[0][0]) + values.prices.constant(self.bounds)

    def evaluate(self, prices: Multipliers, finest: float) -> CostToGo:
        """Return bounds at these prices.

        On the way, a plan that suggests itself, and segment options that can be forgotten.
        """
        values = cost_to_go(self.space, self.options, prices, self.alive, finest)
        self.bound_us = max(self.bound_us, self.relaxed_total(values))
        self.greedy_plan(values)
        self.prune_options(values)
        return values

    def optimise_multipliers(self) -> list[CostToGo]:
        """Return good multipliers, by cutting planes.

        Every plan says how high the bound at other prices can be at most (Kelley, 1960).
        """
        most_macs, most_params = self.scale()
        prices = Multipliers(most_macs / 3)
        if not (self.bounds.min_macs > 0 or self.bounds.max_macs < math.inf):
            prices = replace(prices, per_mac=0.0)
        if not self.bounds.any:
            prices = Multipliers()
        rounds = 1 if prices == Multipliers() else 8 if self.bounds.min_params > 0 else 5
        for n in range(rounds):
            self.report_progress("pricing", n + 1, rounds)
            self.search_promising(prices)
            proposal, hope = self.propose_multipliers(most_macs, most_params)
            if hope <= self.bound_us * (1 + CLOSE) or proposal in self.tried:
                break
            prices = proposal
        return sorted(self.known.values(), key=lambda v: -self.relaxed_total(v))[:VALUES]

    def scale(self) -> tuple[float, float]:
        """Return the highest prices considered.

        Three times what a MAC costs when all processors work, and as much for the parameters.
        """
        us, macs = self.space.original(0, len(self.space.cuts) - 1)
        each = 1 / sum(macs / times for times in us.values()) if macs else 0.0
        return 3 * each, 3 * each * macs / max(1, self.space.analysis.graph.params)

    def propose_multipliers(
        self, most_macs: float, most_params: float
    ) -> tuple[Multipliers, float]:
        """Return multipliers where the plans seen so far leave most room for the bound, and
        how much.
        """
        low = -most_macs if self.bounds.max_macs < math.inf else 0.0
        steps = np.linspace(0.0, 1.0, 121)
        per_mac = (
            low + (most_macs - low) * steps if self.bounds.min_macs > 0 or low else np.zeros(1)
        )
        per_param = most_params * steps if self.bounds.min_params > 0 else np.zeros(1)
        if self.tried:  # not far from the best so far: far away, few plans have been seen
            best = max(self.tried, key=lambda p: self.tried[p])
            per_mac = per_mac[np.abs(per_mac - best.per_mac) <= REACH * most_macs + 1e-30]
            per_param = per_param[np.abs(per_param - best.per_param) <= REACH * most_params + 1e-30]
        room = np.full((len(per_mac), len(per_param)), np.inf)
        target = np.where(per_mac >= 0, self.bounds.min_macs, min(self.bounds.max_macs, 1e30))[
            :, None
        ]
        for latency_us, macs, params in self.cutting_planes:
            room = np.minimum(
                room,
                latency_us
                + per_mac[:, None] * (target - macs)
                + per_param * (self.bounds.min_params - params),
            )
        for (
            tried,
            total,
        ) in (
            self.tried.items()
        ):  # close to where bounds are known, little more is in them, whatever plans say
            near = np.abs(per_mac - tried.per_mac)[:, None] <= NEXT * most_macs
            room = np.where(
                near & (np.abs(per_param - tried.per_param) <= NEXT * most_params + 1e-30),
                np.minimum(room, total),
                room,
            )
        row, column = np.unravel_index(int(room.argmax()), room.shape)
        return Multipliers(float(per_mac[row]), float(per_param[column])), float(room.max())

    def search_promising(self, prices: Multipliers) -> None:
        """Search at multipliers that were not tried yet."""
        if prices not in self.tried:
            self.known[prices] = self.evaluate(prices, self.factors[1 if self.tried else 0])
            self.tried[prices] = self.relaxed_total(self.known[prices])

    def greedy_plan(self, values: CostToGo) -> None:
        """Follow the bounds to a plan.

        Keep it where it meets the whole network's bounds and is the fastest yet.
        """
        i, width, last = 0, self.space.original_width(0), len(self.space.cuts) - 1
        steps: list[tuple[int, tuple[int, ...]]] = []
        latency = macs = params = 0.0
        params_held = np.zeros((1, len(self.space.limited)))
        while i < last:
            row = int(np.searchsorted(self.space.merged_widths(i), width))
            order = sorted(
                (n for n in self.alive if n in values.options and self.options[n].i == i),
                key=lambda n: float(values.options[n][row]),
            )
            taken = next(
                (
                    t
                    for n in order[:6]
                    if (t := self.best_combination(n, width, values)) is not None
                ),
                None,
            )
            if taken is None:
                return
            number, options, pick = taken
            steps.append((number, options))
            latency, macs, params = (
                latency + float(pick.latency_us[0]),
                macs + float(pick.macs[0]),
                params + float(pick.params[0]),
            )
            params_held = params_held + pick.params_held
            i, width = self.options[number].j, int(pick.width[0])
        self.cutting_planes.append((latency, macs, params))
        if self.bounds.keeps(np.array(macs), np.array(params), params_held).all() and (
            self.best is None or latency < self.best.latency_us
        ):
            self.best = PlanPath(latency, tuple(steps))
        numbers = {number for number, _ in steps}
        if self.best is None or not numbers <= self.used:
            self.used |= numbers
            self.local_search([values], EFFORTS[0], ABOVE if self.best is None else ABOVE[:2])

    def local_search(
        self, bounds: list[CostToGo], beam_limits: BeamLimits, shares: Sequence[float] = ABOVE
    ) -> None:
        """Improve the plan over the options of the descents so far: they are few."""
        near = self.promising_options(bounds) if len(bounds) > 1 else set()
        known = (self.used | near).intersection(*(v.options for v in bounds))
        if not self.bounds.any:
            return  # a descent is the best there is over its segment options
        for n, above in enumerate(shares):
            self.report_progress("polishing", n + 1, len(shares))
            ceiling_us = self.bound_us + above * abs(self.bound_us)
            search = LabelSearch(
                self.space,
                self.options,
                bounds,
                self.bounds,
                beam_limits,
                self.gap,
                self.best,
                sorted(known),
                ceiling_us,
            ).run()
            if search.best is not self.best:
                self.best = search.best
                return
            if self.best is not None and ceiling_us >= self.best.latency_us:
                return

    def promising_options(self, bounds: list[CostToGo]) -> set[int]:
        """Return segment options that lead to the least bounds when they are worst priced."""
        every = [self.reduced_costs(values) for values in bounds]
        common = set.intersection(*(set(reduced_costs) for reduced_costs in every))
        worst = {
            n: max(
                self.relaxed_total(v) + reduced_costs[n]
                for v, reduced_costs in zip(bounds, every, strict=True)
            )
            for n in common
        }
        return set(sorted(worst, key=lambda n: worst[n])[:PROMISING])

    def best_combination(
        self, number: int, width: int, values: CostToGo
    ) -> tuple[int, tuple[int, ...], BranchCombinations] | None:
        """Return the combination of one segment option that leads on best."""
        option = self.options[number]
        row = int(np.searchsorted(self.space.merged_widths(option.i), width))
        bound = float(values.options[number][row])
        if not math.isfinite(bound):
            return None
        for share in ROOMS:
            room = bound + share * max(abs(bound), 1000.0) if share < math.inf else math.inf
            options, _ = candidate_combinations(
                option, width, values, values.ways[number], self.bounds, room, 4_000
            )
            totals = option.branch_totals(width)
            if options is None or totals is None:
                continue
            combinations = option.admissible_combinations(width, totals, options)
            if len(combinations):
                after = values.prices.reduced(
                    combinations.latency_us, combinations.macs, combinations.params
                )
                if option.j < len(self.space.cuts) - 1:
                    after = (
                        after
                        + values.at[option.j][
                            np.searchsorted(self.space.merged_widths(option.j), combinations.width)
                        ]
                    )
                pick = combinations.take(np.array([int(after.argmin())]))
                return number, tuple(int(o[0]) for o in pick.options), pick
        return None

    def k_best(self, count: int) -> list[PlanPath]:
        """Return the best plans that differ from those before in where they branch, on what, or how
        they merge (Lawler, 1972).

        Found with limited effort: good alternatives, not proven second and third.
        """
        paths = [self.best] if self.best is not None else []
        if not count or not paths:
            return []
        values = cost_to_go(
            self.space,
            self.options,
            max(self.tried, key=lambda p: self.tried[p]),
            None,
            self.factors[1],
        )
        waiting: list[tuple[float, PlanPath, frozenset[int]]] = []
        without: frozenset[int] = frozenset()
        for n in range(count):
            branched = [number for number, _ in paths[-1].steps if self.options[number].branched]
            for k, number in enumerate(branched):
                self.report_progress(
                    "alternatives", n * len(branched) + k + 1, count * len(branched)
                )
                path = self.best_without(values, without | {number})
                if path is not None:
                    waiting.append((path.latency_us, path, without | {number}))
            waiting.sort(key=lambda w: w[0])
            waiting = [
                w for w in waiting if all(plan_skeleton(w[1]) != plan_skeleton(f) for f in paths)
            ]
            if not waiting:
                break
            _, path, without = waiting.pop(0)
            paths.append(path)
        return paths[1:]

    def best_without(self, values: CostToGo, without: frozenset[int]) -> PlanPath | None:
        """Return the best plan outside an excluded set, None when there is none."""
        only = [n for n in values.options if n not in without]
        for above in (*ABOVE, math.inf):
            ceiling_us = (
                self.relaxed_total(values) + above * abs(self.bound_us)
                if above < math.inf
                else math.inf
            )
            search = LabelSearch(
                self.space,
                self.options,
                [values],
                self.bounds,
                EFFORTS[0],
                0.0,
                None,
                only,
                ceiling_us,
            ).run()
            if search.best is not None:
                return search.best
        return None

    def prune_options(self, values: CostToGo) -> None:
        """Drop options through which no plan can beat the best one."""
        if self.best is not None:
            limit, reduced_costs = (
                self.best.latency_us - self.relaxed_total(values),
                self.reduced_costs(values),
            )
            self.alive = [n for n in self.alive if reduced_costs.get(n, math.inf) < limit]

    def reduced_costs(self, values: CostToGo) -> dict[int, float]:
        """Return how much more than the bound every plan through an option costs at least."""
        costs: dict[int, float] = {}
        reach = {0: 0.0}
        for n in sorted(values.options, key=lambda n: self.options[n].i):
            option = self.options[n]
            reachable = np.isfinite(values.options[n])
            if option.i in reach and reachable.any():
                costs[n] = reach[option.i] + float(
                    (values.options[n][reachable] - values.at[option.i][reachable]).min()
                )
                reach[option.j] = min(reach.get(option.j, math.inf), costs[n])
        return costs


def plan_skeleton(path: PlanPath) -> tuple[int, ...]:
    """Return segments, processors and merges of a plan, whatever its depths and widths."""
    return tuple(number for number, _ in path.steps)
