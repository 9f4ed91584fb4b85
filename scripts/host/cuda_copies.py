"""A stream of items through a stage on a CUDA card: copies beside kernels against one after the
other.

The pipeline has three workers for its one stage: one copies in, one computes, one copies out. Its
limit is the slowest of the three; the same three steps one after another are their sum.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from nnstretch.bench.commands import run_verb
from nnstretch.bench.interleaved import run_interleaved
from nnstretch.bench.pipelines import stream_period_us
from nnstretch.bench.statistics import speedup
from nnstretch.bundle.bundle import read_bundle
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.sequential import SequentialPipeline

ITEMS, ROUNDS = 60, 7
IMAGES = (1, 32)
HEADS = (
    *("network", "images an item", "ms an item: one step after another", "copies beside kernels"),
    *("speed-up", "copy in, ms", "compute, ms", "copy out, ms", "of the slowest step's limit"),
)


@dataclass(frozen=True)
class StreamTimes:
    """Of one network at one batch size; us an item."""

    in_turn_us: list[float]
    overlapped_us: list[float]
    steps_us: tuple[float, ...]
    """Copy in, compute, copy out: medians."""


def measured(model: str, images: int, device: str) -> StreamTimes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.nns"
        one = ("--soc", "mi9", "--processors", "gpu", "--stages", 1, "--threads", 1)
        run_verb("partition", model, "--input", f"{images},3,224,224", *one, "--out", path)
        bundle = read_bundle(path)
    backend = f"torch:{device}"
    alone = SequentialPipeline(bundle, backend=backend)
    inputs = alone.random_inputs(0)
    with Pipeline(bundle, backend=backend) as pipeline:
        turns: dict[str, Callable[[], float]] = {
            "in turn": lambda: in_turn_us(alone, inputs),
            "overlapped": lambda: stream_period_us(pipeline, inputs, ITEMS),
        }
        times = run_interleaved(turns, ROUNDS)
        steps_us = tuple(step.service_us for step in pipeline.statistics())
    return StreamTimes(times["in turn"], times["overlapped"], steps_us)


def in_turn_us(alone: SequentialPipeline, inputs: Any) -> float:
    began_s = perf_counter()
    for _ in range(ITEMS):
        alone.run(inputs)
    return (perf_counter() - began_s) * 1e6 / ITEMS


def cells(model: str, images: int, times: StreamTimes) -> list[str]:
    gain, period_us = speedup(times.in_turn_us, times.overlapped_us), median(times.overlapped_us)
    return [
        *(model, str(images), f"{median(times.in_turn_us) / 1e3:.2f}", f"{period_us / 1e3:.2f}"),
        f"{gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})",
        *(f"{us / 1e3:.2f}" for us in times.steps_us),
        f"{max(times.steps_us) / period_us:.0%}",
    ]
