"""The answer to a question to the search by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product

import numpy as np
from support.search_instances import Instance

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import equal_slices, lower_branch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, constraints_of
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.structure.cuts import section
from nnstretch.structure.segment_cost import BranchDemand, segment_cost
from nnstretch.trial import SegmentCost, Trial


def all_combinations(option: SegmentOption, width_in: int) -> BranchCombinations | None:
    """Return every admissible combination of a segment option."""
    totals = option.branch_totals(width_in)
    if totals is None:
        return None
    finite = [np.flatnonzero(np.isfinite(branch.us)) for branch in totals]
    grids = np.meshgrid(*finite, indexing="ij")
    return option.admissible_combinations(width_in, totals, tuple(g.ravel() for g in grids))


@dataclass(frozen=True)
class Way:
    """One way to cross one segment."""

    segment: Segment
    cost: SegmentCost
    width: int


@dataclass
class BruteForce:
    """Every plan of an instance, each segment lowered and priced once.

    Nothing is skipped because it looks bad.

    Of the search it uses which meeting points, depths and widths there are, and none of its tables,
    bounds or dominance.
    """

    instance: Instance
    works: dict[object, BranchDemand | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.analysis, self.cost_model = (
            NetworkAnalysis(self.instance.graph),
            CostModel(self.instance.soc),
        )
        one = self.instance
        self.space = SearchSpace(
            self.analysis,
            CostModel(one.soc),
            one.processors,
            one.limits,
            one.width_steps,
            one.merges,
        )
        self.constraints = constraints_of(replace(one.limits, max_fork=1.0), one.soc)

    @cached_property
    def full(self) -> list[int]:
        return [self.space.original_width(k) for k in range(len(self.space.cuts))]

    def work(
        self, segment: Segment, branch: Branch, width_in: int, share: int
    ) -> BranchDemand | None:
        """None where no such branch can be built."""
        team = tuple(member.processor for member in segment.branches)
        key = (segment.start, segment.end, segment.merge, branch, width_in, share, team)
        if key not in self.works:
            try:
                self.works[key] = self.cost_model.branch_demand(
                    lower_branch(self.analysis, segment, branch, width_in, share), team
                )
            except BadPlan:
                self.works[key] = None
        return self.works[key]

    def teams(self, i: int, j: int, width_in: int) -> Iterator[Segment]:
        """Segments of every team, merge, depth and width."""
        start, end = self.space.cuts[i].name, self.space.cuts[j].name
        for processor in self.instance.processors:
            yield Segment(start, end, (Branch(processor),))
        if j == len(self.space.cuts) - 1:
            return
        sizes = list(product(self.space.depths(i, j), self.space.widths(j).tolist()))
        for team in (t for n in range(2, 5) for t in combinations(self.instance.processors, n)):
            for merge in self.instance.merges:
                if merge == "project" and width_in != self.full[i]:
                    continue
                for choice in product(sizes, repeat=len(team)):
                    yield Segment(
                        start,
                        end,
                        tuple(Branch(p, d, w) for p, (d, w) in zip(team, choice, strict=True)),
                        merge,
                    )

    def ways(self, i: int, j: int, width_in: int) -> Iterator[Way]:
        """Those that no constraint refuses.

        As in the search, a segment is compared with the fastest of all processors.
        """
        one = self.instance
        original = section(one.graph, self.space.cuts[i], self.space.cuts[j])
        fastest_us = min(
            self.cost_model.estimate_graph(original, p).latency_us for p in self.instance.processors
        )
        for segment in self.teams(i, j, width_in):
            forks = original.macs <= one.limits.max_fork * one.graph.macs
            if segment.branched and not (original.macs and forks):
                continue
            shares = equal_slices(self.full[j], len(segment.branches))
            works = [
                self.work(segment, b, width_in, share)
                for b, share in zip(segment.branches, shares, strict=True)
            ]
            if any(work is None for work in works):
                continue
            built = [work for work in works if work is not None]
            ends = {"start": segment.start, "end": segment.end}
            cost = segment_cost(
                self.instance.soc,
                built,
                **ends,
                original_us=fastest_us,
                original_macs=original.macs,
            )  # type: ignore[arg-type]
            trial = Trial(Plan("", (), (segment,)), (cost,), 0, 0)
            if not any(constraint(trial) for constraint in self.constraints):
                concat = sum(b.width for b in segment.branches if isinstance(b.width, int))
                yield Way(
                    segment,
                    cost,
                    concat if segment.branched and segment.merge == "concat" else self.full[j],
                )

    def best(self) -> tuple[float, Plan] | None:
        """Latency and plan, cut by cut.

        Of paths with equal MACs and parameters that have met in equal tensors, the fastest.
        """
        last = len(self.space.cuts) - 1
        soc = self.instance.soc
        least = {
            p.name: p.memory_bytes / soc.element_bytes
            for p in soc.processors
            if p.memory_bytes is not None
        }
        reached: dict[tuple[int, int, str], Rows] = {
            (0, self.full[0], ""): {(0, 0, (0,) * len(least), 0): (0.0, ())}
        }
        for i in range(last):
            for width in sorted({w for k, w, _ in reached if k == i}):
                for j in range(i + 1, last + 1):
                    for way in self.ways(i, j, width):
                        alone = "" if way.segment.branched else way.segment.branches[0].processor
                        for before in [key for key in reached if key[:2] == (i, width)]:
                            if (
                                not alone or before[2] != alone
                            ):  # two on one processor are one segment
                                extend(
                                    reached[before],
                                    way,
                                    reached.setdefault((j, way.width, alone), {}),
                                    least,
                                )
        bounds = self.instance.bounds
        ends = [
            (us, path)
            for (k, _, _), rows in reached.items()
            if k == last
            for (m, n, _, meetings), (us, path) in rows.items()
            if within(bounds, m, n, meetings) and n <= self.instance.max_params
        ]
        if not ends:
            return None
        us, path = min(ends, key=lambda end: end[0])
        return us, Plan(self.instance.graph.name, self.instance.graph.inputs[0].spec.shape, path)


Rows = dict[tuple[int, int, tuple[int, ...], int], tuple[float, tuple[Segment, ...]]]
"""MACs and parameters so far, those on processors with a memory limit, and meeting points -> the
fastest way there.
"""


def within(bounds: NetworkLimits, macs: int, params: int, meetings: int) -> bool:
    is_work_within = bounds.min_macs <= macs <= bounds.max_macs and params >= bounds.min_params
    return is_work_within and meetings >= bounds.min_meetings


def extend(rows: Rows, way: Way, into: Rows, least: Mapping[str, float]) -> None:
    macs, params = (sum(getattr(b, name) for b in way.cost.branches) for name in ("macs", "params"))
    on = {b.processor: b.params for b in way.cost.branches}
    for (m, n, held, meetings), (us, path) in rows.items():
        now = tuple(h + on.get(p, 0) for h, p in zip(held, least, strict=True))
        if any(h > most for h, most in zip(now, least.values(), strict=True)):
            continue
        key = (m + macs, n + params, now, meetings + way.segment.branched)
        total = us + way.cost.latency_us
        if key not in into or total < into[key][0]:
            into[key] = total, (*path, way.segment)
