"""Small random questions to the search: networks, chips and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from random import Random

import pytest
from support.toy_network import residual

from nnstretch.errors import NoPlan, UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.soc import Link, Neighbour, Processor, Soc
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult


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

    def search(self, top: int = 1) -> SearchResult:
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
            top,
            self.width_steps,
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
