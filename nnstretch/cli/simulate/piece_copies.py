"""Copies of a network's pieces: its own inputs and outputs, and what pieces read of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from nnstretch.graph import Graph
from nnstretch.soc import Link, Processor
from nnstretch.task import Task, TaskTimes, WorkKey


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
