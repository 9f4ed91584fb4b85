"""Networks as tasks: cut as finely as is wanted, each piece with its time on every processor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

from nnstretch.cli.simulate.pool import Pool
from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.task import Task, TaskTimes, WorkKey

if TYPE_CHECKING:
    from nnstretch.files.workload.workload import Cut
    from nnstretch.graph import Graph
    from nnstretch.soc import Link, Processor, Soc

Times = dict[tuple[WorkKey, str], float]
Transfers = dict[tuple[WorkKey, WorkKey], float]


def network_tasks(
    graph: Graph, cut: Cut, pool: Pool, soc: Soc
) -> tuple[tuple[Task, ...], Times, Transfers]:
    """Return the pieces of a network, what each takes on each processor, and what copies between
    processors take. Copies of the network's own inputs and outputs are in the times.

    A processor whose predictor does not know an operator of a piece cannot run it. Raises BadInput
    where a piece can run nowhere, or there are more pieces wanted than layers.
    """
    from nnstretch.partition.split_graph import split_graph
    from nnstretch.stretch.cost.cost_model import CostModel

    pieces = split_graph(graph, stages_of_cut(graph, cut))
    cost_model, element_bytes = CostModel(soc), soc.element_bytes
    tasks, times_us = piece_tasks(pieces), Times()
    processors = described(pool, soc)
    copies_us: dict[str, list[tuple[float, float]]] = {}
    for name, processor in processors.items():
        copies_us[name] = network_copies_us(graph, pieces, processor, element_bytes)
    for number, (piece, task) in enumerate(zip(pieces, tasks, strict=True)):
        missing = ""
        for name, processor in processors.items():
            try:
                compute_us = cost_model.estimate_graph(piece, processor.name).latency_us
            except UnsupportedOp as error:
                missing = str(error)
                continue
            in_us, out_us = copies_us[name][number]
            times_us[task.work, name] = in_us + compute_us + out_us
        if missing and not any(work == task.work for work, _ in times_us):
            where = (pool.soc or soc).name
            raise BadInput(f"{task.subgraph} of {graph.name} can run nowhere, {where}, {missing}")
    transfers_us = transfers_between_us(pieces, tasks, processors, times_us, element_bytes)
    return tasks, times_us, transfers_us


def described(pool: Pool, soc: Soc) -> dict[str, Processor]:
    """Return what the chip says of each processor of a pool, or of what it is a copy of."""
    processors: dict[str, Processor] = {}
    for processor in pool.processors:
        processors[processor.name] = soc.processor(pool.original(processor))
    return processors


def stages_of_cut(graph: Graph, cut: Cut) -> list[int]:
    """Return the piece of every node. Raises BadInput for more pieces than there are layers."""
    from nnstretch.partition.search.compute_layers import compute_layers
    from nnstretch.structure.cuts import find_cuts

    if cut == "whole":
        return [0] * len(graph.nodes)
    if cut == "segments":
        borders = sorted(cut.position for cut in find_cuts(graph))
        return merged_tail([bisect_left(borders, node) for node in range(len(graph.nodes))])
    layers = compute_layers(graph)
    if cut == "layers":
        return list(layers)
    count = max(layers) + 1
    if cut > count:
        raise BadInput(f"cut {cut}, network {graph.name}, it has {count} layers")
    return balanced(graph, layers, cut)


def merged_tail(stages: list[int]) -> list[int]:
    """Return stages numbered without gaps."""
    numbers = {stage: number for number, stage in enumerate(sorted(set(stages)))}
    return [numbers[stage] for stage in stages]


def balanced(graph: Graph, layers: Sequence[int], pieces: int) -> list[int]:
    """Return the piece of every node: whole layers, with about as many MACs in each piece."""
    count = max(layers) + 1
    macs = [1] * count
    for node, layer in zip(graph.nodes, layers, strict=True):
        macs[layer] += node.macs
    total, before, piece, of_layer = sum(macs), 0, 0, []
    for layer in range(count):
        remaining = count - layer
        due = before + macs[layer] / 2 >= total * (piece + 1) / pieces
        if layer and piece < pieces - 1 and (due or remaining <= pieces - piece - 1):
            piece += 1
        of_layer.append(piece)
        before += macs[layer]
    return [of_layer[layer] for layer in layers]


def piece_tasks(pieces: Sequence[Graph]) -> tuple[Task, ...]:
    """Return a task for each piece, which needs those that write what it reads."""
    writers: dict[str, str] = {}
    tasks: list[Task] = []
    for number, piece in enumerate(pieces):
        name = f"piece{number}"
        reads = piece.input_names
        needs = frozenset(writers[value] for value in reads if value in writers)
        tasks.append(Task(name, name, needs))
        for output in piece.outputs:
            writers[output] = name
    return tuple(tasks)


def network_copies_us(
    graph: Graph, pieces: Sequence[Graph], processor: Processor, element_bytes: float
) -> list[tuple[float, float]]:
    """Return for each piece on a processor what it takes to copy the network's inputs that it reads
    first, and to copy the network's outputs that it writes. The last one synchronises, too.
    """
    copied: set[str] = set()
    copies_us: list[tuple[float, float]] = []
    for piece in pieces:
        sizes = sizes_of(piece, element_bytes)
        reads = [n for n in piece.input_names if n in graph.input_names and n not in copied]
        writes = [name for name in piece.outputs if name in graph.outputs]
        copied.update(reads)
        out_us = copy_us(processor.copy_out, [sizes[name] for name in writes])
        if piece is pieces[-1]:
            out_us += processor.sync_us
        copies_us.append((copy_us(processor.copy_in, [sizes[name] for name in reads]), out_us))
    return copies_us


def transfers_between_us(
    pieces: Sequence[Graph],
    tasks: Sequence[Task],
    processors: Mapping[str, Processor],
    times_us: TaskTimes,
    element_bytes: float,
) -> dict[tuple[WorkKey, WorkKey], float]:
    """Return what it takes until data of a piece are there for another on another processor: the
    mean over all pairs of processors of which one can run the writer, the other the reader.
    """
    writers: dict[str, WorkKey] = {}
    transfers_us: dict[tuple[WorkKey, WorkKey], float] = {}
    for piece, task in zip(pieces, tasks, strict=True):
        sizes = sizes_of(piece, element_bytes)
        by_writer: dict[WorkKey, list[float]] = {}
        for name in piece.input_names:
            if name in writers:
                by_writer.setdefault(writers[name], []).append(sizes[name])
        for writer, copied in by_writer.items():
            pairs_us: list[float] = []
            for (source, sender), (target, receiver) in permutations(processors.items(), 2):
                if (writer, source) in times_us and (task.work, target) in times_us:
                    out_us = copy_us(sender.copy_out, copied) + sender.sync_us
                    pairs_us.append(out_us + copy_us(receiver.copy_in, copied))
            if any(pairs_us):
                transfers_us[writer, task.work] = sum(pairs_us) / len(pairs_us)
        writers |= dict.fromkeys(piece.outputs, task.work)
    return transfers_us


def sizes_of(piece: Graph, element_bytes: float) -> dict[str, float]:
    """Return the bytes of every tensor of a piece."""
    return {name: spec.elements * element_bytes for name, spec in piece.specs().items()}


def copy_us(link: Link, sizes_bytes: Iterable[float]) -> float:
    """Return what it takes to copy tensors, us."""
    return sum(map(link.cost_us, sizes_bytes))
