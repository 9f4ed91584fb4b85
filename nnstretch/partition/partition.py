"""A graph divided among processors, every stage priced, and beside it what no division can beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.errors import BadInput
from nnstretch.graph import Graph
from nnstretch.partition.compute_layers import compute_layers
from nnstretch.partition.lower_bound import bottleneck_bound_us
from nnstretch.partition.solver import Assignment, best_assignments
from nnstretch.partition.split_graph import split_graph
from nnstretch.partition.stage_costs import Corrections, StageCostTable, stage_cost_table
from nnstretch.partition.topological_cuts import TopologicalCuts, chain_cuts, topological_cuts
from nnstretch.soc import Link, Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.structure.cuts import INPUT, OUTPUT, find_cuts, is_size

BLOCKED_TRIES = 8
"""Choices that are priced anew where copies between layouts make sums over layers inexact."""
LAYOUTS = "copies between layouts depend on the split"
ORDERS = "parallel branches have too many orders, a few were tried"


@dataclass(frozen=True, slots=True)
class StageOnProcessor:
    """What one processor has to do for one item of a stage, in microseconds, contention
    included.
    """

    processor: str
    transfer_in_us: float
    compute_us: float
    transfer_out_us: float
    """Copies out, and the processor's synchronisation."""
    error_us: float
    beside: bool = False
    """Whether it computes one item while others are copied."""

    @property
    def latency_us(self) -> float:
        """Return the latency of one item."""
        return self.transfer_in_us + self.compute_us + self.transfer_out_us

    @property
    def period_us(self) -> float:
        """Return the time between two items, us."""
        return (
            max(self.compute_us, self.transfer_in_us + self.transfer_out_us)
            if self.beside
            else self.latency_us
        )


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage with its numbers; several shares are replicas that take items in turn."""

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
        """Return the time between two items that leave, us: the slowest replica sets the pace of
        the turn.
        """
        return max(share.period_us for share in self.shares) / len(self.shares)


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order, and the numbers they are judged by."""

    graph: Graph
    subgraphs: tuple[Graph, ...]
    stages: tuple[StageCost, ...]
    single_us: dict[str, float]
    """Between two items of the whole network as one stage on each processor.

    Processors that cannot run it are absent.
    """
    bound_us: float
    """No split of these layers on these processors has a smaller bottleneck.

    Copies and contention left out.
    """
    why_open: str = ""
    """Why a better split is not ruled out.

    Empty where none between layers is better, whatever the order of parallel branches.
    """

    @property
    def proven(self) -> bool:
        """Return whether the optimum is proven."""
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
        """Return mean stage over slowest stage."""
        return sum(stage.period_us for stage in self.stages) / len(self.stages) / self.bottleneck_us

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processors of all stages in order."""
        return tuple(share.processor for stage in self.stages for share in stage.shares)

    @property
    def ideal_us(self) -> float | None:
        """Return all work at the sum of the rates of the processors used.

        None where one of them cannot run the whole network.
        """
        if any(name not in self.single_us for name in self.processors):
            return None
        return 1 / sum(1 / self.single_us[name] for name in self.processors)

    @property
    def fastest(self) -> str | None:
        """Return the best processor alone and its time."""
        return min(self.single_us, key=lambda name: self.single_us[name], default=None)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What is asked for."""

    stages: int | None = None
    """None for as many as are best, up to the number of processors."""
    processors: tuple[str, ...] = ()
    """None named: all of the chip."""
    replicas: bool = False
    """Whether processors that are left over may double a stage."""
    top: int = 1


def partitions(
    graph: Graph,
    soc: Soc,
    wish: PartitionRequest,
    unit_of: Sequence[int] | None = None,
    cost_model: CostModel | None = None,
    corrections: Corrections | None = None,
) -> tuple[Partition, ...]:
    """Return the best partition, and the next `top` - 1.

    `unit_of` a hand's stages, whose processors alone are chosen.

    With `corrections` they are the best at corrected times; what each says of itself is still as
    predicted. Raises NoPlan where processors cannot hold the stages, UnknownName for a processor
    that is not there, BadInput for what does not fit.
    """
    check_request(wish)
    cost_model = cost_model or CostModel(soc)
    names = wish.processors or tuple(processor.name for processor in soc.processors)
    units = compute_layers(graph) if unit_of is None else tuple(unit_of)
    count = wish.stages if unit_of is None else max(units) + 1
    if unit_of is not None and wish.stages not in (None, count):
        raise BadInput(
            f"{wish.stages} stages and a split into {count}, network {graph.name}, give one of them"
        )
    ends = topological_cuts(graph, units) if unit_of is None else chain_cuts(max(units) + 1)
    table = stage_cost_table(graph, units, ends, soc, names, cost_model, corrections)
    blocked = any(soc.rules(name).blocked for name in names)
    choices = best_assignments(
        table, count, wish.replicas, max(wish.top, BLOCKED_TRIES if blocked else 1)
    )
    bound_us = bottleneck_bound_us(table, wish.replicas)
    stages = [stages_of(units, ends, choice) for choice in choices]
    why_open = " and ".join(([LAYOUTS] if blocked else []) + ([] if ends.complete else [ORDERS]))
    results = [
        estimate_stages(graph, at, assignment, table, soc, cost_model, bound_us, why_open)
        for at, assignment in zip(stages, choices, strict=True)
    ]
    if blocked and not corrections:
        results.sort(key=lambda assignment: (assignment.bottleneck_us, assignment.latency_us))
    return tuple(results[: wish.top])


def check_request(wish: PartitionRequest) -> None:
    """Refuse a request that no partition can meet. Raises BadInput."""
    if wish.top < 1 or (wish.stages is not None and wish.stages < 1):
        raise BadInput(
            f"{wish.stages} stages, {wish.top} candidates, partition, at least 1 of each"
        )
    if len(set(wish.processors)) != len(wish.processors):
        raise BadInput(
            f"processors {', '.join(wish.processors)}, partition, each has a name of its own"
        )


def stages_of(units: Sequence[int], ends: TopologicalCuts, choice: Assignment) -> list[int]:
    """Return the stage of every node: the first border that its unit lies before."""
    masks = [ends.masks[border] for border in choice.borders[1:]]
    return [next(stage for stage, mask in enumerate(masks) if mask >> unit & 1) for unit in units]


def estimate_stages(
    graph: Graph,
    stage_of: Sequence[int],
    choice: Assignment,
    table: StageCostTable,
    soc: Soc,
    cost_model: CostModel,
    bound_us: float,
    why_open: str,
) -> Partition:
    """Return a partition with the true cost of every stage."""
    subgraphs = split_graph(graph, stage_of)
    used = frozenset(name for group in choice.groups for name in group)
    slowdown = soc.contention_factor(used) if len(used) > 1 else 1.0
    ends = [
        stage_end_name(graph, subgraph, last=subgraph is subgraphs[-1]) for subgraph in subgraphs
    ]
    stages = tuple(
        StageCost(
            start,
            end,
            tuple(estimate_stage(subgraph, name, soc, cost_model, slowdown) for name in group),
            subgraph.macs,
            subgraph.params,
        )
        for subgraph, group, start, end in zip(
            subgraphs, choice.groups, [INPUT, *ends[:-1]], ends, strict=True
        )
    )
    times_us = {
        name: (table.compute_us[p, 0, -1], table.transfer_us[p, 0, -1])
        for p, name in enumerate(table.processors)
    }
    whole_us = {
        name: max(both) if name in table.beside else sum(both) for name, both in times_us.items()
    }
    single_us = {
        name: float(time_us) for name, time_us in whole_us.items() if time_us < float("inf")
    }
    return Partition(graph, subgraphs, stages, single_us, bound_us, why_open)


def estimate_stage(
    subgraph: Graph, processor: str, soc: Soc, cost_model: CostModel, slowdown: float
) -> StageOnProcessor:
    """Return the true price of a stage: its own kernels, every tensor that crosses."""
    specs, chip_processor = subgraph.specs(), soc.processor(processor)
    estimate = cost_model.estimate_graph(subgraph, processor)

    def copies_us(link: Link, names: Sequence[str]) -> float:
        return sum(link.cost_us(specs[name].elements * soc.element_bytes) for name in names)

    into_us = copies_us(chip_processor.copy_in, [value.name for value in subgraph.inputs])
    out_us = copies_us(chip_processor.copy_out, subgraph.outputs) + chip_processor.sync_us
    return StageOnProcessor(
        processor,
        into_us,
        slowdown * estimate.latency_us,
        out_us,
        slowdown * estimate.error_us,
        chip_processor.overlaps_copies,
    )


def stage_end_name(graph: Graph, subgraph: Graph, last: bool) -> str:
    """Return the cut a stage ends at, or its last operator where more than one tensor crosses."""
    if last:
        return OUTPUT
    if len(subgraph.outputs) == 1 and (
        named := [cut.name for cut in find_cuts(graph) if cut.value == subgraph.outputs[0]]
    ):
        return named[0]
    return [node.name for node in subgraph.nodes if not is_size(node)][-1]
