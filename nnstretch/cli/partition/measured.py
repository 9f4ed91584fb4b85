"""`nnstretch partition --measure`.

Splits are streamed on this machine, and what that teaches of their stages finds better ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.common import progress

if TYPE_CHECKING:
    from nnstretch.bench.pipelines import MeasuredPipeline
    from nnstretch.partition.partition import Partition
    from nnstretch.partition.stage_costs import Corrections

FIRST, NEXT, LESSONS = 4, 2, 3
"""Candidates at first, after each lesson, and how many lessons."""
LAST, LAST_ROUNDS, APART = 3, 9, 0.01
"""How many are streamed once more before one is chosen, for how many rounds, and by how much
another one has to be faster than the best by prediction: a shared machine slows single rounds by
more than candidates differ.
"""
WHY = "chosen by measured times"

Write = Callable[[Sequence["Partition"], Sequence[Path]], list[float]]
"""Writes bundles; how far each is from the network."""
Again = Callable[[int, "Corrections | None"], Sequence["Partition"]]
"""The best so many partitions at corrected times."""
Key = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class MeasuredPartition:
    """A candidate that has been streamed here."""

    partition: Partition
    path: Path
    error: float
    measured: MeasuredPipeline


def key_of(partition: Partition) -> Key:
    """Return what makes a candidate another one: which nodes are on which processors."""
    pairs = zip(partition.stages, partition.subgraphs, strict=True)
    return tuple(
        (tuple(share.processor for share in stage.shares), tuple(node.name for node in piece.nodes))
        for stage, piece in pairs
    )


def corrections_of(result: MeasuredPartition) -> Corrections:
    """Return the correction of every kernel: that of its stage."""
    pairs = zip(
        result.partition.stages, result.partition.subgraphs, result.measured.service_us, strict=True
    )
    return {
        node.name: service_us / stage.latency_us
        for stage, piece, service_us in pairs
        for node in piece.nodes
    }


def best_measured(
    outs: Sequence[Path], write: Write, again: Again
) -> tuple[list[Partition], list[float], list[MeasuredPipeline]]:
    """Write the fastest candidates as `outs`; return them with their errors and what was measured.

    `again` is asked without corrections first.

    Each lesson corrects the stages of the fastest split so far by what they took and asks for the
    best at these times. Candidates are written beside `outs` and moved when all is over, so an
    interrupt leaves nothing.
    """
    from nnstretch.bench.pipelines import measure_candidates

    tried: dict[Key, MeasuredPartition] = {}
    with tempfile.TemporaryDirectory(prefix=".candidates-", dir=outs[0].parent) as folder:
        results = again(max(FIRST, len(outs)), None)
        bound_us = results[0].bound_us
        for _ in range(LESSONS + 1):
            new = [result for result in results if key_of(result) not in tried]
            if not new:
                break
            paths = [Path(folder) / f"{len(tried) + k}.nns" for k in range(len(new))]
            errors = write(new, paths)
            best = [min(tried.values(), key=period_us)] if tried else []
            with progress(f"streaming {len(best) + len(new)} candidates") as tick:
                measured = measure_candidates(
                    [*(result.path for result in best), *paths], tell=tick
                )
            for result, again_measured in zip(
                best, measured, strict=False
            ):  # beside the new ones, in the same minute
                tried[key_of(result.partition)] = replace(result, measured=again_measured)
            rows = zip(new, paths, errors, measured[len(best) :], strict=True)
            tried |= {
                key_of(result): MeasuredPartition(result, path, error, times)
                for result, path, error, times in rows
            }
            results = [
                replace(result, bound_us=bound_us, why_open=WHY)
                for result in again(NEXT, corrections_of(min(tried.values(), key=period_us)))
            ]
        kept = fastest_measured(list(tried.values()), len(outs))
        for result, out in zip(kept, outs, strict=False):
            result.path.replace(out)
    return (
        [result.partition for result in kept],
        [result.error for result in kept],
        [result.measured for result in kept],
    )


def fastest_measured(tried: Sequence[MeasuredPartition], count: int) -> list[MeasuredPartition]:
    """Measure and return the fastest of `tried`, whose first is the best by prediction.

    That one and the fastest others are streamed again, for longer.

    In the order of their times, but the best by prediction is the first unless another is faster by
    `APART`.
    """
    from nnstretch.bench.pipelines import measure_candidates

    forecast, *others = tried
    last = [forecast, *sorted(others, key=period_us)[: max(LAST - 1, count)]]
    if len(last) > 1:
        with progress(f"streaming the best {len(last)} again") as tick:
            again = measure_candidates(
                [result.path for result in last], rounds=LAST_ROUNDS, tell=tick
            )
        last = [
            replace(result, measured=measured) for result, measured in zip(last, again, strict=True)
        ]
    forecast, by_time = last[0], sorted(last, key=period_us)
    if period_us(forecast) * (1 - APART) < period_us(by_time[0]):
        by_time.remove(forecast)
        by_time.insert(0, forecast)
    return by_time[:count]


def period_us(result: MeasuredPartition) -> float:
    """Return the measured time between two outputs, us."""
    return result.measured.period_us
