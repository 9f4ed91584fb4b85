"""What every possible stage costs on every processor, in microseconds, as arrays.

`[p, i, j]` is what lies between frontiers i and j as one stage on processor p: compute (sum of its
kernels, alone on the chip) and transfers (every tensor that enters is copied in, every tensor that
leaves is copied out once, and the processor's synchronisation). Infinite where i is not within j,
where a kernel has no measured kind there, or the weights do not fit its memory. Kernels end where
layers end, so sums are exact on runtimes with one layout; where a runtime keeps maps in blocks,
copies at borders are left out here, and a stage that was chosen is priced anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.partition.split_graph import stage_of_value
from nnstretch.partition.topological_cuts import TopologicalCuts
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.structure.cuts import depends_on_input, is_size


@dataclass(frozen=True)
class StageCostTable:
    """Costs of every possible stage; frontier 0 is the network's input, the last one its output."""

    processors: tuple[str, ...]
    compute_us: np.ndarray
    """[processor, start, stop]."""
    transfer_us: np.ndarray
    slowdown: Callable[[frozenset[str]], float]
    """Factor on compute while exactly these processors run at once."""
    least_us: np.ndarray
    """[processor, unit], without copies between layouts.

    What a unit takes at least, whoever its neighbours are.
    """
    refused: tuple[str, ...] = ()
    """Kernels that some processor's predictor refuses, as `PROCESSOR: KERNEL`."""
    beside: frozenset[str] = frozenset()
    """Processors that compute one item while others are copied.

    The longer of the two counts for throughput, both for latency.
    """

    @property
    def units(self) -> int:
        """Return the number of units."""
        return int(self.least_us.shape[1])

    @property
    def last(self) -> int:
        """Return the frontier that is the whole network."""
        return int(self.compute_us.shape[1]) - 1


Corrections = Mapping[str, float]
"""By node, how many times longer than predicted its kernel takes.

What measuring a stage has taught.
"""


def stage_cost_table(
    graph: Graph,
    unit_of: Sequence[int],
    ends: TopologicalCuts,
    soc: Soc,
    processors: Sequence[str],
    cost_model: CostModel,
    corrections: Corrections | None = None,
) -> StageCostTable:
    """Return prices of all stages between frontiers of the units that `unit_of` divides the nodes
    into.

    Raises UnknownName.
    """
    flow, member, nested = (
        boundary_traffic(graph, unit_of, ends, soc.element_bytes),
        ends.member,
        ends.nested,
    )
    compute, transfer, least, refused = [], [], [], []
    beside = frozenset(name for name in processors if soc.processor(name).overlaps_copies)
    for name in processors:
        processor = soc.processor(name)
        units_us, least_us, missing = unit_times(
            graph, unit_of, ends.units, name, cost_model, corrections or {}
        )
        sums = sum_between(units_us, member, nested)
        if processor.memory_bytes is not None:
            sums = np.where(flow.weight_bytes > processor.memory_bytes, np.inf, sums)
        into = (
            processor.copy_in.fixed_us * flow.reads
            + processor.copy_in.us_per_kib * flow.read_bytes / 1024
        )
        out = (
            processor.copy_out.fixed_us * flow.writes
            + processor.copy_out.us_per_kib * flow.write_bytes / 1024
        )
        least.append(least_us)
        compute.append(sums)
        transfer.append(into + out + processor.sync_us)
        refused += [f"{name}: {kernel}" for kernel in missing]
    return StageCostTable(
        tuple(processors),
        np.stack(compute),
        np.stack(transfer),
        soc.contention_factor,
        np.stack(least),
        tuple(refused),
        beside,
    )


def unit_times(
    graph: Graph,
    unit_of: Sequence[int],
    count: int,
    processor: str,
    cost_model: CostModel,
    corrections: Corrections,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Compute of each unit, with and without copies between layouts, infinite where a kernel is
    refused, and which kernels are.

    A copy belongs to the kernel behind it.
    """
    unit = {node.name: at for node, at in zip(graph.nodes, unit_of, strict=True)}
    times_us, least_us, refused, waiting_us = np.zeros(count), np.zeros(count), [], 0.0
    kernels = cost_model.fuse_kernels(graph, processor)
    cost_model.prefetch(kernels, processor)
    last = 0
    for kernel in kernels:
        try:
            latency_us = cost_model.estimate_kernel(kernel, processor).latency_us
        except UnsupportedOp:
            latency_us = np.inf
            refused.append(kernel.name)
        if not kernel.nodes:
            waiting_us += latency_us
            continue
        last = unit[kernel.nodes[0]]
        latency_us *= corrections.get(kernel.nodes[0], 1.0)
        least_us[last] += latency_us
        times_us[last] += latency_us + waiting_us
        waiting_us = 0.0
    times_us[last] += waiting_us
    return times_us, least_us, refused


def sum_between(units_us: np.ndarray, member: np.ndarray, nested: np.ndarray) -> np.ndarray:
    """Return [i, j], the sum of the units in frontier j and not in i.

    Infinite where there is none, or one of them is.
    """
    finite = np.where(np.isfinite(units_us), units_us, 0.0) @ member
    broken = (~np.isfinite(units_us)).astype(int) @ member
    return np.where(
        nested & (broken[None, :] == broken[:, None]), finite[None, :] - finite[:, None], np.inf
    )


@dataclass(frozen=True)
class BoundaryTraffic:
    """What enters and leaves what lies between two frontiers, [start, stop]."""

    reads: np.ndarray
    read_bytes: np.ndarray
    writes: np.ndarray
    write_bytes: np.ndarray
    weight_bytes: np.ndarray


def boundary_traffic(
    graph: Graph, unit_of: Sequence[int], ends: TopologicalCuts, element_bytes: int
) -> BoundaryTraffic:
    """Return the tensors that cross each boundary, in the chip's element type.

    A weight that several units share is held once by a stage.
    """
    specs, member, width = graph.specs(), ends.member, len(ends.masks)
    unit = stage_of_value(graph, unit_of, depends_on_input(graph) | set(graph.outputs))
    users = users_of(graph, unit, ends.units)
    reads, read_bytes, writes, write_bytes, weight_bytes = (
        np.zeros((width, width)) for _ in range(5)
    )
    for name in [*(value.name for value in graph.inputs), *unit]:
        readers, size = users.get(name, set()), specs[name].elements * element_bytes
        done, wanted = (
            member[sorted(readers - {ends.units})].sum(axis=0),
            len(readers - {ends.units}),
        )
        writer = member[unit[name]] if name in unit else np.ones(width, bool)
        enters = writer[:, None] & (done[None, :] > done[:, None])
        reads += enters
        read_bytes += size * enters
        if name in unit:
            leaves = (
                ~writer[:, None] & (writer & ((done < wanted) | (ends.units in readers)))[None, :]
            )
            writes += leaves
            write_bytes += size * leaves
    for weight in graph.weights:
        holders = users.get(weight.name, set()) - {ends.units}
        if weight.trainable and holders:
            done = member[sorted(holders)].sum(axis=0)
            weight_bytes += weight.spec.elements * element_bytes * (done[None, :] > done[:, None])
    return BoundaryTraffic(reads, read_bytes, writes, write_bytes, weight_bytes)


def users_of(graph: Graph, unit: dict[str, int], count: int) -> dict[str, set[int]]:
    """Return units that read each value or weight.

    What is computed again is read by whoever needs it, an output by unit `count`, the caller.
    """
    entering = {value.name for value in graph.inputs}
    users: dict[str, set[int]] = {name: {count} for name in graph.outputs}
    for node in reversed(graph.nodes):
        mine = {unit[node.name]} if node.name in unit else users.get(node.name, set())
        for name in node.inputs:
            if not (is_size(node) and (name in unit or name in entering)):
                users.setdefault(name, set()).update(mine)
    return users
