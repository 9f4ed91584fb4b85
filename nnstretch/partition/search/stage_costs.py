"""Cost of every possible stage on every processor, us, as arrays `[processor, start, stop]`.

An entry is what lies between frontiers start and stop as one stage: compute (the sum of its
kernels, alone on the chip) and transfers (every tensor that enters is copied in, every tensor that
leaves is copied out once, and the processor's synchronisation). It is infinite where start is not
within stop, where a kernel has no measured kind on the processor, or where the weights do not fit
its memory. Kernels end where layers end, so sums are exact on runtimes with one layout; where a
runtime keeps maps in blocks, copies at borders are left out, and chosen stages are estimated anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.partition.search.topological_cuts import TopologicalCuts
from nnstretch.partition.split_graph import stage_of_value
from nnstretch.soc import Processor, Soc, processor_of
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.structure.cuts import depends_on_input, is_size

MOST_COMPANY = 8
"""Others beside two processors, of which every set is asked for, at most."""
Corrections = Mapping[str, float]
"""Measured over predicted time of a node's kernel, by node."""


@dataclass(frozen=True)
class StageCostTable:
    """Costs of every possible stage; frontier 0 is the network's input, the last one its output."""

    processors: tuple[str, ...]
    compute_us: np.ndarray
    """[processor, start, stop]."""
    transfer_us: np.ndarray
    """[processor, start, stop]."""
    slowdown: Callable[[frozenset[str]], float]
    """Factor on compute while exactly these processors run at once."""
    least_us: np.ndarray
    """[processor, unit], the least time of a unit: without copies between layouts."""
    refused: tuple[str, ...] = ()
    """Kernels that some processor's predictor refuses, as `PROCESSOR: KERNEL`."""
    overlapping: frozenset[str] = frozenset()
    """Processors that compute one item while others are copied.

    The longer of the two counts for throughput, their sum for latency.
    """
    price_key: Callable[[str, frozenset[str]], str] = lambda processor, _: processor
    """What a processor's kernels are priced under while exactly these processors run at once."""
    beside_us: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Compute under price keys beside others: [start, stop]."""
    equal_tables: dict[tuple[str, str], bool] = field(default_factory=dict, init=False)
    """By price keys: whether tables are equal, where that was asked."""

    def compute_among(self, number: int, names: frozenset[str]) -> np.ndarray:
        """Return the compute of a processor while these run at once: [start, stop]."""
        processor = self.processors[number]
        compute_us = self.beside_us.get(self.price_key(processor, names), self.compute_us[number])
        factor = self.slowdown(names) if len(names) > 1 else 1.0
        return np.asarray(factor * compute_us)

    def twins(self) -> dict[int, int]:
        """Return, by processor, the last earlier one that costs the same in every company."""
        twins: dict[int, int] = {}
        for number in range(len(self.processors)):
            for earlier in range(number):
                if self.are_twins(earlier, number):
                    twins[number] = earlier
        return twins

    def are_twins(self, first: int, second: int) -> bool:
        """Return whether two processors may change places: all costs stay what they are."""
        pair = {self.processors[first], self.processors[second]}
        if len(pair & self.overlapping) == 1:
            return False
        for costs in (self.compute_us, self.transfer_us):
            if not np.array_equal(costs[first], costs[second]):
                return False
        others = [number for number in range(len(self.processors)) if number not in (first, second)]
        if len(others) > MOST_COMPANY:
            return False
        teams = chain.from_iterable(combinations(others, n) for n in range(len(others) + 1))
        return all(self.are_equal_among(first, second, team) for team in teams)

    def are_equal_among(self, first: int, second: int, team: Sequence[int]) -> bool:
        """Return whether a team and two processors take as long where these change places."""
        names = frozenset(self.processors[number] for number in team)
        before, after = (names | {self.processors[number]} for number in (first, second))
        if team and self.slowdown(before) != self.slowdown(after):
            return False
        pairs = [((number, before), (number, after)) for number in team]
        pairs.append(((first, before), (second, after)))
        pairs.append(((first, before | after), (second, before | after)))
        return all(
            self.are_equal_tables(self.table_key(*now), self.table_key(*then))
            for now, then in pairs
        )

    def table_key(self, number: int, names: frozenset[str]) -> str:
        """Return which table says what a processor computes while these run at once."""
        key = self.price_key(self.processors[number], names)
        return key if key in self.beside_us else self.processors[number]

    def are_equal_tables(self, first: str, second: str) -> bool:
        """Return whether two tables of compute are equal."""
        if first == second:
            return True
        if (first, second) not in self.equal_tables:
            alone = dict(zip(self.processors, self.compute_us, strict=True))
            tables = alone | dict(self.beside_us)
            self.equal_tables[first, second] = np.array_equal(tables[first], tables[second])
        return self.equal_tables[first, second]

    @property
    def units(self) -> int:
        """Return the number of units."""
        return int(self.least_us.shape[1])

    @property
    def last(self) -> int:
        """Return the frontier that is the whole network."""
        return int(self.compute_us.shape[1]) - 1


def stage_cost_table(
    graph: Graph,
    unit_of: Sequence[int],
    cuts: TopologicalCuts,
    soc: Soc,
    processors: Sequence[str],
    cost_model: CostModel,
    corrections: Corrections | None = None,
) -> StageCostTable:
    """Return the costs of all stages between cuts; `unit_of` gives the unit of every node.

    Raises UnknownName for an unknown processor.
    """
    traffic = boundary_traffic(graph, unit_of, cuts, soc.element_bytes)
    member = cuts.member
    nested = cuts.nested
    compute_us, transfer_us, least_us = [], [], []
    beside_us: dict[str, np.ndarray] = {}
    refused: list[str] = []
    for price_key in soc.price_keys(processors):
        times = unit_times(graph, unit_of, cuts.units, price_key, cost_model, corrections or {})
        processor = soc.processor(processor_of(price_key))
        sums_us = sum_between(times.compute_us, member, nested)
        if processor.memory_bytes is not None:
            sums_us = np.where(traffic.weight_bytes > processor.memory_bytes, np.inf, sums_us)
        if price_key != processor.name:
            beside_us[price_key] = sums_us
            continue
        compute_us.append(sums_us)
        transfer_us.append(transfers_us(processor, traffic))
        least_us.append(times.least_us)
        refused += [f"{price_key}: {kernel}" for kernel in times.refused]
    return StageCostTable(
        tuple(processors),
        np.stack(compute_us),
        np.stack(transfer_us),
        soc.contention_factor,
        np.stack(least_us),
        tuple(refused),
        frozenset(name for name in processors if soc.processor(name).overlaps_copies),
        soc.price_key,
        beside_us,
    )


def transfers_us(processor: Processor, traffic: BoundaryTraffic) -> np.ndarray:
    """Return [start, stop], the copies in and out of each stage and the synchronisation."""
    copy_in, copy_out = processor.copy_in, processor.copy_out
    into_us = copy_in.fixed_us * traffic.reads + copy_in.us_per_kib * traffic.read_bytes / 1024
    out_us = copy_out.fixed_us * traffic.writes + copy_out.us_per_kib * traffic.write_bytes / 1024
    return into_us + out_us + processor.sync_us


@dataclass(frozen=True)
class UnitTimes:
    """Compute of each unit on one processor, infinite where a kernel is refused."""

    compute_us: np.ndarray
    """[unit], a copy between layouts in the unit of the kernel behind it."""
    least_us: np.ndarray
    """[unit], without copies between layouts."""
    refused: list[str]


def unit_times(
    graph: Graph,
    unit_of: Sequence[int],
    count: int,
    price_key: str,
    cost_model: CostModel,
    corrections: Corrections,
) -> UnitTimes:
    """Estimate the kernels of each unit on one processor, alone or beside others."""
    unit = {node.name: number for node, number in zip(graph.nodes, unit_of, strict=True)}
    times = UnitTimes(np.zeros(count), np.zeros(count), [])
    kernels = cost_model.fuse_kernels(graph, price_key)
    cost_model.prefetch(kernels, price_key)
    last = 0
    layout_us = 0.0
    for kernel in kernels:
        try:
            latency_us = cost_model.estimate_kernel(kernel, price_key).latency_us
        except UnsupportedOp:
            latency_us = np.inf
            times.refused.append(kernel.name)
        if not kernel.nodes:
            layout_us += latency_us
            continue
        last = unit[kernel.nodes[0]]
        latency_us *= corrections.get(kernel.nodes[0], 1.0)
        times.least_us[last] += latency_us
        times.compute_us[last] += latency_us + layout_us
        layout_us = 0.0
    times.compute_us[last] += layout_us
    return times


def sum_between(units_us: np.ndarray, member: np.ndarray, nested: np.ndarray) -> np.ndarray:
    """Return [start, stop], the sum of the units between two frontiers.

    Infinite where they are not nested or a unit between them is.
    """
    finite = np.where(np.isfinite(units_us), units_us, 0.0) @ member
    infinite = (~np.isfinite(units_us)).astype(int) @ member
    possible = nested & (infinite[None, :] == infinite[:, None])
    return np.where(possible, finite[None, :] - finite[:, None], np.inf)


@dataclass(frozen=True)
class BoundaryTraffic:
    """Tensors that cross the borders of each stage, and its weights: [start, stop]."""

    reads: np.ndarray
    read_bytes: np.ndarray
    writes: np.ndarray
    write_bytes: np.ndarray
    weight_bytes: np.ndarray


def boundary_traffic(
    graph: Graph, unit_of: Sequence[int], cuts: TopologicalCuts, element_bytes: int
) -> BoundaryTraffic:
    """Count the tensors that cross borders, in the chip's element type.

    A weight that several units share is held once by a stage.
    """
    member = cuts.member
    specs = graph.specs()
    width = len(cuts.masks)
    unit = stage_of_value(graph, unit_of, depends_on_input(graph) | set(graph.outputs))
    consumers = consumers_of(graph, unit, cuts.units)
    traffic = BoundaryTraffic(*(np.zeros((width, width)) for _ in range(5)))
    for name in (*graph.input_names, *unit):
        readers = consumers.get(name, set())
        inner = sorted(readers - {cuts.units})
        size_bytes = specs[name].elements * element_bytes
        served = member[inner].sum(axis=0)
        written = member[unit[name]] if name in unit else np.ones(width, bool)
        enters = written[:, None] & (served[None, :] > served[:, None])
        traffic.reads[:] += enters
        traffic.read_bytes[:] += size_bytes * enters
        if name in unit:
            needed = written & ((served < len(inner)) | (cuts.units in readers))
            leaves = ~written[:, None] & needed[None, :]
            traffic.writes[:] += leaves
            traffic.write_bytes[:] += size_bytes * leaves
    for weight in graph.weights:
        holders = sorted(consumers.get(weight.name, set()) - {cuts.units})
        if weight.trainable and holders:
            served = member[holders].sum(axis=0)
            inside = served[None, :] > served[:, None]
            traffic.weight_bytes[:] += weight.spec.elements * element_bytes * inside
    return traffic


def consumers_of(graph: Graph, unit: dict[str, int], caller: int) -> dict[str, set[int]]:
    """Return the units that read each value or weight; outputs are read by unit `caller`.

    What a stage computes again is read by the units that need its result.
    """
    entering = set(graph.input_names)
    consumers: dict[str, set[int]] = {name: {caller} for name in graph.outputs}
    for node in reversed(graph.nodes):
        own_unit = {unit[node.name]} if node.name in unit else consumers.get(node.name, set())
        for name in node.inputs:
            if not (is_size(node) and (name in unit or name in entering)):
                consumers.setdefault(name, set()).update(own_unit)
    return consumers
