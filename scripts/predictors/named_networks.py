"""Networks from outside, predicted by several profiles of this machine and measured once.

Each FOLDER is what `nnstretch profile --out` wrote with ONNX Runtime, as with and without `--for`. A
network (NET, or NET@1,3,320,320) runs as `nnstretch export` deploys it; the networks take turns with
a few calls each, of which the first finds cold caches and does not count. The lower quartile does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import torch

from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.loaded_model import LoadedModel, load_model_argument
from nnstretch.errors import UnsupportedOp
from nnstretch.files.atomic import write_text
from nnstretch.files.model_text import parse_input_shapes
from nnstretch.predict import load_soc
from nnstretch.profile.backends.registry import meter_for
from nnstretch.profile.machine import pin_process
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel

TURNS = 12
CALLS = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A network, ready to run."""

    name: str
    model: LoadedModel
    run: Callable[[], None]


def load_candidate(text: str) -> Candidate:
    spec, _, shape = text.partition("@")
    model = load_model_argument(spec, parse_input_shapes(shape) if shape else ())
    example = torch.randn(model.graph.inputs[0].spec.shape, generator=torch.manual_seed(0))
    run = meter_for("onnxruntime").network(model.module.eval(), example)
    return Candidate(f"{Path(spec).name}{'@' if shape else ''}{shape}", model, run)


def measure_ms(candidates: list[Candidate]) -> list[float]:
    """Return the lower quartile of each network's calls; networks take turns."""
    times: list[list[float]] = [[] for _ in candidates]
    for turn in range(1 + TURNS):
        for candidate, calls in zip(candidates, times, strict=True):
            candidate.run()
            if turn:
                calls += [call_ms(candidate.run) for _ in range(CALLS - 1)]
    return [float(np.percentile(calls, 25)) for calls in times]


def call_ms(run: Callable[[], None]) -> float:
    start = perf_counter_ns()
    run()
    return (perf_counter_ns() - start) / 1e6


def predicted(candidate: Candidate, soc: Soc) -> tuple[float | None, int, int]:
    """Return the latency, and how many kernels have no price or lie outside of what was measured.

    None for a latency that the profile refuses, in milliseconds.
    """
    cost_model, processor = CostModel(soc), soc.processors[0].name
    refused = outside = 0
    for kernel in cost_model.fuse_kernels(candidate.model.graph, processor):
        try:
            cost_model.estimate_kernel(kernel, processor)
            outside += bool(cost_model.outside(kernel, processor))
        except UnsupportedOp:
            refused += 1
    if refused:
        return None, refused, outside
    cost = cost_model.estimate_alone(candidate.model.graph, processor)
    return cost.latency_us / 1000, refused, outside


def rows(candidates: list[Candidate], socs: list[Soc]) -> Iterator[list[str]]:
    for candidate, measured in zip(candidates, measure_ms(candidates), strict=True):
        cells = [candidate.name, f"{measured:.2f}"]
        for soc in socs:
            latency_ms, refused, outside = predicted(candidate, soc)
            if latency_ms is None:
                cells += ["-", f"{refused} refused"]
            else:
                cells += [f"{latency_ms:.2f} ({latency_ms / measured - 1:+.1%})", str(outside)]
        yield cells


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("networks", nargs="+", metavar="NET[@SHAPE]")
    parser.add_argument("--soc", action="append", required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    socs = [load_soc(folder) for folder in args.soc]
    candidates = [load_candidate(text) for text in args.networks]
    heads = ["network", "measured ms"]
    for soc in socs:
        heads += [f"{soc.name}: predicted ms", "outside"]
    with pin_process(0):
        text = "\n".join(markdown_table(heads, rows(candidates, socs)))
    print(text)
    if args.out:
        write_text(args.out, text + "\n")
    return 0
