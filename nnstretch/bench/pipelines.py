"""Pipelines of one network against each other on this machine.

They take turns, round after round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

from nnstretch.bench.interleaved import Tell, run_interleaved
from nnstretch.bundle.bundle import read_bundle
from nnstretch.run.pipelines.metrics import PipelineMetrics
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.sequential import SequentialPipeline

ITEMS, ROUNDS = 30, 5
LEAST_ITEMS, TURN_S = 6, 0.12
"""Items of a turn, fewer where they are slow: it takes about so long, for so many at any rate."""
SERIES_S, FEWEST_ROUNDS = 8.0, 3
"""How long rounds take, each turn run twice, once to be warm: slow pipelines have fewer."""


@dataclass(frozen=True, slots=True)
class MeasuredPipeline:
    """A pipeline on this machine."""

    period_us: float
    """Between two results while it is full."""
    service_us: tuple[float, ...]
    """Of each stage, while the others work beside it."""


def stream_period_us(pipeline: Pipeline, inputs: Any, items: int) -> float:
    """Return microseconds between two results while the pipeline is full."""
    ended_us: list[float] = []
    latencies_us: list[float] = []
    for result in pipeline.stream(repeat(inputs, items)):
        ended_us.append(result.ended_us)
        latencies_us.append(result.latency_us)
    times_us = tuple(ended_us), tuple(latencies_us)
    metrics = PipelineMetrics(
        pipeline.manifest, pipeline.stage_graph, *times_us, {}, pipeline.trace(), pipeline.emulated
    )
    return metrics.period_us


def measure_candidates(
    paths: Sequence[Path],
    rounds: int = ROUNDS,
    tell: Tell = lambda done, total: None,
) -> list[MeasuredPipeline]:
    """Measure every bundle and return medians, of at most `rounds` of at most ITEMS.

    They have the same inputs. Raises what `Pipeline` raises.
    """
    inputs = SequentialPipeline(read_bundle(paths[0])).random_inputs(0)
    with ExitStack() as stack:
        pipelines = {path: stack.enter_context(Pipeline(path)) for path in paths}
        trials_us = [stream_period_us(p, inputs, LEAST_ITEMS) for p in pipelines.values()]
        item_us = max(median(trials_us), 1.0)
        in_turn = min(ITEMS, max(LEAST_ITEMS, int(TURN_S * 1e6 / item_us)))
        fitting = int(SERIES_S * 1e6 / (2 * len(pipelines) * in_turn * item_us))
        turns: dict[Path, Callable[[], float]] = {}
        for path, pipeline in pipelines.items():
            turns[path] = partial(stream_period_us, pipeline, inputs, in_turn)
        times = run_interleaved(
            turns,
            min(rounds, max(FEWEST_ROUNDS, fitting)),
            tell=tell,
        )
        measured: list[MeasuredPipeline] = []
        for path, pipeline in pipelines.items():
            service_us = tuple(stage.service_us for stage in pipeline.statistics())
            measured.append(MeasuredPipeline(median(times[path]), service_us))
        return measured
