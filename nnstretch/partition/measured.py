"""Repartition by measurement: stream candidates, correct kernel times, ask for better splits.

Each round corrects the kernels of the fastest candidate so far by the measured times of their
stages and asks for the best partitions at these times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nnstretch.partition.partition import Partition
from nnstretch.partition.search.stage_costs import Corrections

FIRST_CANDIDATES = 4
NEXT_CANDIDATES = 2
CORRECTIONS = 3
"""How often times are corrected."""
ROUNDS = 5
FINALISTS, FINAL_ROUNDS = 3, 9
"""How many candidates are streamed once more before one is chosen, and for how many rounds."""
CLEARLY_FASTER = 0.01
"""Share by which a candidate must beat the best predicted one: a shared machine slows single rounds
by more than candidates differ.
"""
WHY_OPEN = "chosen by measured times"


class StreamTimes(Protocol):
    """Measured times of one pipeline, us."""

    @property
    def period_us(self) -> float:
        """Return the time between two results of a full pipeline."""

    @property
    def service_us(self) -> tuple[float, ...]:
        """Return the time of an item in each stage."""


Propose = Callable[[int, Corrections | None], Sequence[Partition]]
"""Best partitions, so many, at corrected times."""
Write = Callable[[Sequence[Partition], Sequence[Path]], list[float]]
"""Writes a bundle for each partition and returns their largest differences from the network."""
Measure = Callable[[Sequence[Path], int], Sequence[StreamTimes]]
"""Streams items through bundles in turn, for so many rounds."""
AssignmentKey = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class MeasuredPartition:
    """A partition, its bundle, and the times of its stages on this machine."""

    partition: Partition
    path: Path
    error: float
    measured: StreamTimes

    @property
    def period_us(self) -> float:
        """Return the measured time between two results, us."""
        return self.measured.period_us


def best_measured(
    outs: Sequence[Path], propose: Propose, write: Write, measure: Measure
) -> list[MeasuredPartition]:
    """Write the fastest measured partitions to `outs`, the best first.

    Candidates are written beside `outs` and moved at the end, so an interrupt leaves nothing.
    """
    with tempfile.TemporaryDirectory(prefix=".candidates-", dir=outs[0].parent) as folder:
        tried = measure_rounds(
            Path(folder), max(FIRST_CANDIDATES, len(outs)), propose, write, measure
        )
        fastest = fastest_measured(tried, len(outs), measure)
        for result, out in zip(fastest, outs, strict=False):
            result.path.replace(out)
    return [replace(result, path=out) for result, out in zip(fastest, outs, strict=False)]


def measure_rounds(
    folder: Path, count: int, propose: Propose, write: Write, measure: Measure
) -> list[MeasuredPartition]:
    """Measure candidates round by round, the best predicted one first.

    The fastest so far is streamed again beside new ones, under the same load of the machine.
    """
    tried: dict[AssignmentKey, MeasuredPartition] = {}
    candidates = propose(count, None)
    bound_us = candidates[0].bound_us
    for _ in range(CORRECTIONS + 1):
        untried = [partition for partition in candidates if assignment_key(partition) not in tried]
        if not untried:
            break
        paths = [folder / f"{len(tried) + number}.nns" for number in range(len(untried))]
        rows = list(zip(untried, paths, write(untried, paths), strict=True))
        if tried:
            fastest = fastest_of(tried.values())
            rows.insert(0, (fastest.partition, fastest.path, fastest.error))
        streams = measure([path for _, path, _ in rows], ROUNDS)
        for (partition, path, error), times in zip(rows, streams, strict=True):
            tried[assignment_key(partition)] = MeasuredPartition(partition, path, error, times)
        corrected = propose(NEXT_CANDIDATES, corrections_of(fastest_of(tried.values())))
        candidates = [replace(p, bound_us=bound_us, why_open=WHY_OPEN) for p in corrected]
    return list(tried.values())


def fastest_measured(
    tried: Sequence[MeasuredPartition], count: int, measure: Measure
) -> list[MeasuredPartition]:
    """Stream the finalists again and return the fastest `count`, in order.

    The first of `tried`, the best predicted one, stays first unless another is faster by
    `CLEARLY_FASTER`.
    """
    predicted, *others = tried
    others.sort(key=lambda result: result.period_us)
    finalists = [predicted, *others[: max(FINALISTS - 1, count)]]
    if len(finalists) > 1:
        streams = measure([result.path for result in finalists], FINAL_ROUNDS)
        pairs = zip(finalists, streams, strict=True)
        finalists = [replace(result, measured=times) for result, times in pairs]
    predicted = finalists[0]
    finalists.sort(key=lambda result: result.period_us)
    if predicted.period_us * (1 - CLEARLY_FASTER) < finalists[0].period_us:
        finalists.remove(predicted)
        finalists.insert(0, predicted)
    return finalists[:count]


def fastest_of(results: Iterable[MeasuredPartition]) -> MeasuredPartition:
    """Return the result with the shortest period."""
    return min(results, key=lambda result: result.period_us)


def assignment_key(partition: Partition) -> AssignmentKey:
    """Return the processors and nodes of every stage: equal for equal assignments."""
    keys = []
    for stage, subgraph in zip(partition.stages, partition.subgraphs, strict=True):
        processors = tuple(share.processor for share in stage.shares)
        keys.append((processors, tuple(node.name for node in subgraph.nodes)))
    return tuple(keys)


def corrections_of(result: MeasuredPartition) -> Corrections:
    """Return measured over predicted time of each node, that of its stage."""
    partition = result.partition
    corrections: dict[str, float] = {}
    stages = zip(partition.stages, partition.subgraphs, result.measured.service_us, strict=True)
    for stage, subgraph, service_us in stages:
        factor = service_us / stage.latency_us
        corrections.update((node.name, factor) for node in subgraph.nodes)
    return corrections
