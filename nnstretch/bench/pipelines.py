"""Pipelines of one network against each other on this machine: they take turns, round after round."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

from nnstretch.bench.rounds import Tell, in_rounds
from nnstretch.bundle import read_bundle
from nnstretch.run.stream import Pipeline
from nnstretch.run.streamed import Chain, Streamed

ITEMS, ROUNDS = 30, 5


@dataclass(frozen=True, slots=True)
class Measured:
    """A pipeline on this machine."""

    period_us: float
    """Between two results while it is full."""
    service_us: tuple[float, ...]
    """Of each stage, while the others work beside it."""


def streamed_us(pipeline: Pipeline, inputs: Any, items: int) -> float:
    """Microseconds between two results while the pipeline is full."""
    times = [(result.ended_us, result.latency_us) for result in pipeline.stream(repeat(inputs, items))]
    ended_us, latencies_us = zip(*times, strict=True)
    return Streamed(pipeline.manifest, pipeline.flow, ended_us, latencies_us, {}, pipeline.trace()).period_us


def candidates(paths: Sequence[Path], items: int = ITEMS, rounds: int = ROUNDS, tell: Tell = lambda done, total: None) -> list[Measured]:
    """Of every bundle, medians. They have the same inputs. Raises what `Pipeline` raises."""
    inputs = Chain(read_bundle(paths[0])).random_inputs(0)
    with ExitStack() as stack:
        pipelines = {path: stack.enter_context(Pipeline(path)) for path in paths}
        times = in_rounds({path: partial(streamed_us, one, inputs, items) for path, one in pipelines.items()}, rounds, tell=tell)
        return [Measured(median(times[path]), tuple(stage.service_us for stage in one.statistics())) for path, one in pipelines.items()]
