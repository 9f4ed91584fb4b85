"""Small random questions to the search, and the answer by brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, permutations, product
from random import Random

import numpy as np
import pytest
from support.toy_network import residual

from nnstretch.errors import BadPlan, NoPlan, UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.predictor import Estimate
from nnstretch.soc import Link, Neighbour, Processor, Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import equal_slices, lower_branch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits, constraints_of
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.structure.cuts import section
from nnstretch.structure.segment_cost import BranchDemand, segment_cost
from nnstretch.trial import SegmentCost, Trial


@dataclass(frozen=True)
class Rate:
    """A predictor of one number a processor: MACs per microsecond."""

    processor: str
    macs_per_us: float
    busy_factor: float = 1.0

    def beside(self, busy_factor: float, /) -> Rate:
        return replace(self, busy_factor=busy_factor)

    def estimate(self, kernel: Kernel, /) -> Estimate:
        if kernel.kind == "exotic":
            raise UnsupportedOp(f"{self.processor}: {kernel.name} was never measured")
        us = (
            1.0
            + kernel.macs / self.macs_per_us
            + (kernel.read_elements + kernel.write_elements) / 50_000
        )
        us = max(us, self.busy_factor * kernel.macs / self.macs_per_us)
        return Estimate(us, us / 10)


def chip(fixed_us: float = 5.0) -> Soc:
    cpu = Processor("cpu", "cpu", 1)
    dsp = Processor("dsp", "dsp", 2, Link(fixed_us, 0.05), Link(fixed_us, 0.05), sync_us=2.0)
    rates = {"cpu": Rate("cpu", 20_000.0), "dsp": Rate("dsp", 24_000.0)}
    return Soc("toy", (cpu, dsp), "int8", rates, Link(1.0, 0.02), {frozenset({"cpu", "dsp"}): 1.1})


NETWORK = residual(((32, 3), (64, 2)))


def all_combinations(option: SegmentOption, width_in: int) -> BranchCombinations | None:
    """Return every admissible combination of a segment option."""
    totals = option.branch_totals(width_in)
    if totals is None:
        return None
    finite = [np.flatnonzero(np.isfinite(branch.us)) for branch in totals]
    grids = np.meshgrid(*finite, indexing="ij")
    return option.admissible_combinations(width_in, totals, tuple(g.ravel() for g in grids))


@dataclass(frozen=True)
class Instance:
    """One question to the search."""

    graph: Graph
    soc: Soc
    limits: SegmentLimits
    bounds: NetworkLimits
    width_steps: int
    merges: tuple[str, ...]
    max_params: float = math.inf

    @property
    def processors(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.soc.processors)

    def search(self) -> SearchResult:
        """Ask it. Raises NoPlan where there is none."""
        low, high, params = self.bounds.min_macs, self.bounds.max_macs, self.bounds.min_params
        return search(
            self.graph,
            self.soc,
            self.processors,
            self.limits,
            low,
            high,
            params,
            width_steps=self.width_steps,
            merges=self.merges,
            max_params=self.max_params,
            min_meetings=self.bounds.min_meetings,
        )

    def answer(self) -> ScoredPlan | None:
        """What the search finds, proven; None where it says that there is no plan."""
        try:
            result = self.search()
        except NoPlan:
            return None
        assert result.optimal
        assert result.lower_bound_us == pytest.approx(result.plans[0].trial.latency_us, rel=1e-9)
        return result.plans[0]


def random_chip(
    rng: Random, names: Sequence[str], memory_bytes: Mapping[str, int] | None = None
) -> Soc:
    """Processors of unequal speed, some far from the host."""

    memory_bytes = memory_bytes or {}

    def link(scale: float) -> Link:
        return Link(rng.choice((0.0, scale * rng.random())), rng.choice((0.0, 0.3 * rng.random())))

    processors = tuple(
        Processor(
            n,
            n,
            2,
            link(2),
            link(2),
            rng.choice((0.0, 2 * rng.random())),
            memory_bytes=memory_bytes.get(n),
        )
        for n in names
    )
    rates = {n: Rate(n, 10 ** rng.uniform(2.7, 3.6)) for n in names}
    teams = [frozenset(team) for size in (2, 3) for team in combinations(names, size)]
    contention = {team: rng.uniform(1.0, 1.4) for team in teams if rng.random() < 0.5}
    return Soc("toy", processors, rng.choice(("int8", "float32")), rates, link(2), contention)


def random_neighbours(rng: Random, names: tuple[str, ...]) -> tuple[Neighbour, ...]:
    pairs = [pair for pair in permutations(names, 2) if rng.random() < 0.6]
    slowdowns = (1.0, 1.2, 1.7)
    return tuple(
        Neighbour(
            *pair, rng.choice(slowdowns), Link(rng.choice((0.0, 2.0)), rng.choice((0.0, 0.3)))
        )
        for pair in pairs
    )


def random_bounds(rng: Random, graph: Graph) -> NetworkLimits:
    low, high, params = (0.0, math.inf, 0.0)
    kind = rng.choice(
        ("none", "low", "high", "params", "low and params", "low and high", "high and params")
    )
    share = rng.choice((0.7, 0.8, 0.9, 0.95, 1.0, 1.1))
    if "low" in kind:
        low = share * graph.macs
    if "high" in kind:
        high = (rng.choice((1.0, 1.02, 1.2)) * low) if low else share * graph.macs
    if "params" in kind:
        params = rng.choice((0.5, 0.7, 0.8, 1.0, 1.1)) * graph.params
    return NetworkLimits(low, high, params)


def random_instance(seed: int, neighbours: bool = False) -> Instance:
    rng = Random(seed)
    three = rng.random() < 0.3
    names = ("cpu", "gpu", "dsp") if three else ("cpu", "dsp")
    shapes = ((1,), (2,), (1, 1)) if three else ((1,), (2,), (3,), (1, 1), (1, 2), (2, 1))
    blocks = tuple((rng.choice((8, 12, 16, 24, 32)), depth) for depth in rng.choice(shapes))
    graph = residual(blocks, rng.choice((8, 16)), rng.choice((8, 16)), rng.random() < 0.7)
    limits = SegmentLimits(
        rng.choice((0.3, 1.0, 3.0)),
        rng.choice((0.7, 0.8, 1.0, 1.5)),
        rng.choice((0.3, 0.6)),
        rng.choice((0.2, 0.5)),
        rng.choice((0.0, 0.2, 0.4)),
        rng.choice((0.3, 0.5, 0.7, 0.9)),
    )
    merges = rng.choice((("concat",), ("concat", "project")))
    soc, bounds, forks = random_chip(rng, names), random_bounds(rng, graph), Random(f"forks {seed}")
    if neighbours:
        soc = replace(soc, neighbours=random_neighbours(Random(seed), names))
    if forks.random() < 0.3:
        limits = replace(limits, max_fork=forks.choice((0.3, 0.5, 0.8)))
    if forks.random() < 0.3:
        bounds = replace(bounds, min_meetings=forks.choice((1, 1, 2)))
    return Instance(
        graph,
        soc,
        limits,
        bounds,
        2 if three else rng.choice((2, 3)),
        merges,
    )


def four_processors(seed: int) -> Instance:
    """A big and a little CPU cluster, a GPU and an NPU that share out one small network."""
    rng = Random(f"four {seed}")
    graph = residual(((rng.choice((16, 32)), 1),), 16, 16)
    limits = SegmentLimits(3.0, 1.5, 0.3, 0.5, 0.0, rng.choice((0.3, 0.7)))
    least_macs = rng.choice((0.0, 0.8)) * graph.macs
    bounds = NetworkLimits(least_macs, min_params=rng.choice((0.0, 0.7)) * graph.params)
    soc = random_chip(rng, ("big", "little", "gpu", "npu"))
    return Instance(graph, soc, limits, bounds, 2, ("concat",))


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
