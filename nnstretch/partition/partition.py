"""Partition a graph among processors, with the cost of every stage and a lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

from nnstretch.errors import BadInput
from nnstretch.files.checked import check_settings, checked
from nnstretch.files.limits import shorten
from nnstretch.graph import Graph
from nnstretch.partition.search.compute_layers import compute_layers
from nnstretch.partition.search.lower_bound import bottleneck_bound_us
from nnstretch.partition.search.solver import Assignment, best_assignments
from nnstretch.partition.search.stage_costs import Corrections, StageCostTable, stage_cost_table
from nnstretch.partition.search.topological_cuts import (
    TopologicalCuts,
    chain_cuts,
    topological_cuts,
)
from nnstretch.partition.split_graph import split_graph
from nnstretch.pipeline import MAX_STAGES
from nnstretch.soc import Link, Soc, processor_of
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.structure.cuts import INPUT, OUTPUT, find_cuts, is_size

INEXACT_TRIES = 8
"""Assignments estimated anew where sums over layers are inexact: copies between layouts depend on
the split, and one by hand may part what is one kernel of the whole network."""
MOST = 1000
"""Candidates."""
LAYOUTS = "copies between layouts depend on the split"
ORDERS = "parallel branches have too many orders, a few were tried"
BY_HAND = "the split was made by hand"


@dataclass(frozen=True, slots=True)
class StageOnProcessor:
    """Cost of one item of a stage on one processor, us, contention included."""

    processor: str
    transfer_in_us: float
    compute_us: float
    transfer_out_us: float
    """Copies out, and the processor's synchronisation."""
    error_us: float
    overlaps_copies: bool = False
    """Whether the processor computes one item while others are copied."""

    @property
    def latency_us(self) -> float:
        """Return the latency of one item."""
        return self.transfer_in_us + self.compute_us + self.transfer_out_us

    @property
    def period_us(self) -> float:
        """Return the time between two items, us."""
        if self.overlaps_copies:
            return max(self.compute_us, self.transfer_in_us + self.transfer_out_us)
        return self.latency_us


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost of a stage; several shares are replicas that take items in turn."""

    start: str
    end: str
    shares: tuple[StageOnProcessor, ...]
    macs: int
    params: int

    @property
    def latency_us(self) -> float:
        """Return the latency of one item on the slowest replica."""
        return max(share.latency_us for share in self.shares)

    @property
    def period_us(self) -> float:
        """Return the time between two items, us: that of the slowest replica, in turn."""
        return max(share.period_us for share in self.shares) / len(self.shares)


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order, their costs, and what they compare with."""

    graph: Graph
    subgraphs: tuple[Graph, ...]
    stages: tuple[StageCost, ...]
    single_us: dict[str, float]
    """Period of the whole network on each processor that can run it."""
    bound_us: float
    """Lower bound on the bottleneck of any split, copies and contention left out."""
    why_open: str = ""
    """Why a better split is not ruled out; empty where the optimum is proven."""

    @property
    def proven(self) -> bool:
        """Return whether no split between layers is better, whatever the order of branches."""
        return not self.why_open

    @property
    def bottleneck_us(self) -> float:
        """Return the period of the slowest stage."""
        return max(stage.period_us for stage in self.stages)

    @property
    def latency_us(self) -> float:
        """Return the latency of one item."""
        return sum(stage.latency_us for stage in self.stages)

    @property
    def balance(self) -> float:
        """Return mean stage over slowest stage, 1 where none takes time."""
        mean_us = sum(stage.period_us for stage in self.stages) / len(self.stages)
        return mean_us / self.bottleneck_us if self.bottleneck_us else 1.0

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processors of all stages in order."""
        shares = chain.from_iterable(stage.shares for stage in self.stages)
        return tuple(share.processor for share in shares)

    @property
    def ideal_us(self) -> float | None:
        """Return the period at the sum of the rates of all processors used.

        None where one of them cannot run the whole network.
        """
        if any(name not in self.single_us for name in self.processors):
            return None
        singles_us = [self.single_us[name] for name in self.processors]
        return 1 / sum(1 / single_us for single_us in singles_us) if min(singles_us) else 0.0

    @property
    def fastest(self) -> str | None:
        """Return the processor that runs the whole network fastest, None where no one can."""
        return min(self.single_us, key=lambda name: self.single_us[name], default=None)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Settings of a partition: number of stages, processors, replicas, candidates."""

    stages: int | None = None
    """None for as many as are best, up to the number of processors."""
    processors: Sequence[str] = ()
    """Empty for all of the chip."""
    replicas: bool = False
    """Whether processors that are left over may double a stage."""
    top: int = 1

    def __post_init__(self) -> None:
        check_settings(self)


@checked
def partitions(
    graph: Graph,
    soc: Soc,
    request: PartitionRequest,
    unit_of: Sequence[int] | None = None,
    cost_model: CostModel | None = None,
    corrections: Corrections | None = None,
) -> tuple[Partition, ...]:
    """Return the best partition and the next `top` - 1.

    `unit_of` gives the stage of every node; then only processors are chosen. With `corrections`
    candidates are the best at corrected times, and their costs still as predicted. Raises NoPlan
    where processors cannot hold the stages, UnknownName for an unknown processor, BadInput for a
    request that does not fit.
    """
    if not graph.nodes:
        raise BadInput(f"{graph.name} computes nothing, partition, its outputs are its inputs")
    cost_model = cost_model or CostModel(soc)
    count = stage_count(request, unit_of, graph.name)
    names = request.processors or soc.processor_names
    units = layers = compute_layers(graph)
    cuts = topological_cuts(graph, layers)
    prices = soc, names, cost_model, corrections
    table = table_of_layers = stage_cost_table(graph, layers, cuts, *prices)
    if unit_of is not None:
        units, cuts = tuple(unit_of), chain_cuts(max(unit_of) + 1)
        table = stage_cost_table(graph, units, cuts, *prices)
    blocked = any(soc.rules(name).blocked for name in names)
    inexact = blocked or unit_of is not None
    tries = max(request.top, INEXACT_TRIES if inexact else 1)
    assignments = best_assignments(table, count, request.replicas, tries)
    bound_us = bottleneck_bound_us(table_of_layers, request.replicas)
    doubts = {BY_HAND: unit_of is not None, LAYOUTS: blocked, ORDERS: not cuts.complete}
    why_open = " and ".join(reason for reason, holds in doubts.items() if holds)
    single_us = single_periods_us(table)
    results = []
    for assignment in assignments:
        subgraphs = split_graph(graph, stages_of(units, cuts, assignment))
        stages = estimate_stages(graph, subgraphs, assignment, soc, cost_model)
        results.append(Partition(graph, subgraphs, stages, single_us, bound_us, why_open))
    if inexact and not corrections:
        results.sort(key=lambda partition: (partition.bottleneck_us, partition.latency_us))
    return tuple(results[: request.top])


def stage_count(request: PartitionRequest, unit_of: Sequence[int] | None, model: str) -> int | None:
    """Return the number of stages, None for any. Raises BadInput for an impossible request."""
    stages = request.stages
    processors = request.processors
    counts = (1 if stages is None else stages, request.top)
    if not all(1 <= count <= most for count, most in zip(counts, (MAX_STAGES, MOST), strict=True)):
        asked = f"{shorten(stages)} stages, {shorten(request.top)} candidates"
        raise BadInput(f"{asked}, partition, at least 1 of each, at most {MAX_STAGES} and {MOST}")
    if len(set(processors)) != len(processors):
        raise BadInput(f"processors {', '.join(processors)}, partition, each has a name of its own")
    if unit_of is None:
        return stages
    count = max(unit_of) + 1
    if stages not in (None, count):
        raise BadInput(
            f"{stages} stages and a split into {count}, network {model}, give one of them"
        )
    return count


def stages_of(units: Sequence[int], cuts: TopologicalCuts, assignment: Assignment) -> list[int]:
    """Return the stage of every node: the first border that its unit lies before."""
    masks = [cuts.masks[border] for border in assignment.borders[1:]]
    return [next(stage for stage, mask in enumerate(masks) if mask >> unit & 1) for unit in units]


def single_periods_us(table: StageCostTable) -> dict[str, float]:
    """Return the period of the whole network on each processor that can run it."""
    single_us = {}
    for number, name in enumerate(table.processors):
        compute_us = float(table.compute_us[number, 0, -1])
        transfer_us = float(table.transfer_us[number, 0, -1])
        overlaps = name in table.overlapping
        time_us = max(compute_us, transfer_us) if overlaps else compute_us + transfer_us
        if time_us < inf:
            single_us[name] = time_us
    return single_us


def estimate_stages(
    graph: Graph,
    subgraphs: Sequence[Graph],
    assignment: Assignment,
    soc: Soc,
    cost_model: CostModel,
) -> tuple[StageCost, ...]:
    """Estimate every stage of an assignment, each as its own graph."""
    used = frozenset(chain.from_iterable(assignment.groups))
    slowdown = soc.contention_factor(used) if len(used) > 1 else 1.0
    stages = []
    start = INPUT
    for subgraph, group in zip(subgraphs, assignment.groups, strict=True):
        end = stage_end_name(graph, subgraph, last=subgraph is subgraphs[-1])
        keys = [soc.price_key(name, used) for name in group]
        shares = [estimate_stage(subgraph, key, soc, cost_model, slowdown) for key in keys]
        stages.append(StageCost(start, end, tuple(shares), subgraph.macs, subgraph.params))
        start = end
    return tuple(stages)


def estimate_stage(
    subgraph: Graph, price_key: str, soc: Soc, cost_model: CostModel, slowdown: float
) -> StageOnProcessor:
    """Estimate a stage: its own kernels, and a copy of every tensor that crosses its borders."""
    specs = subgraph.specs()
    description = soc.processor(processor_of(price_key))
    estimate = cost_model.estimate_graph(subgraph, price_key)

    def copies_us(link: Link, names: Sequence[str]) -> float:
        return sum(link.cost_us(specs[name].elements * soc.element_bytes) for name in names)

    inputs = subgraph.input_names
    return StageOnProcessor(
        description.name,
        copies_us(description.copy_in, inputs),
        slowdown * estimate.latency_us,
        copies_us(description.copy_out, subgraph.outputs) + description.sync_us,
        slowdown * estimate.error_us,
        description.overlaps_copies,
    )


def stage_end_name(graph: Graph, subgraph: Graph, last: bool) -> str:
    """Return the cut a stage ends at, or its last operator where more than one tensor crosses."""
    if last:
        return OUTPUT
    if len(subgraph.outputs) == 1:
        for cut in find_cuts(graph):
            if cut.value == subgraph.outputs[0]:
                return cut.name
    return [node.name for node in subgraph.nodes if not is_size(node)][-1]
