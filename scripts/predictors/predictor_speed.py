"""Estimates per second, and how long the whole table of a network takes.

The table holds every unit of the network at every depth of its stage and ten widths, on every
processor. One core, five repetitions, medians; making the table includes scaling the graphs and
fusing them.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

from nnstretch.bench.markdown import markdown_table
from nnstretch.capture import default_input, load_model
from nnstretch.capture.torch_export import capture
from nnstretch.errors import BadPlan, UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.plan import Branch
from nnstretch.predict import load_soc
from nnstretch.predict.learned import estimate_many
from nnstretch.profile.sampling.kernel_generator import generate_kernels, load_prior
from nnstretch.soc import Soc
from nnstretch.stretch import NetworkAnalysis
from nnstretch.stretch.lowering.section import resize_section
from nnstretch.structure.kernel_fusion import fuse_kernels

REPEATS = 5
WIDTHS = tuple(step / 10 for step in range(1, 11))


def rate(soc: Soc, processor: str, count: int) -> float:
    """Return different kernels estimated per second, with reading them included."""
    predictor, kernels = soc.predictors[processor], []
    for kernel in generate_kernels(load_prior(), soc.rules(processor), 0):
        try:
            predictor.estimate(kernel)
        except UnsupportedOp:
            continue
        kernels.append(kernel)
        if len(kernels) == count:
            break
    times = []
    for _ in range(REPEATS):
        started = perf_counter()
        estimate_many(predictor, kernels)
        times.append(perf_counter() - started)
    return count / median(times)


def table(analysis: NetworkAnalysis, soc: Soc) -> dict[tuple[int, int, str], list[Kernel]]:
    """Return the kernels of every unit at every width, as each processor's backend fuses them."""
    kernels: dict[tuple[int, int, str], list[Kernel]] = {}
    for u, (start, end) in enumerate(pairwise(analysis.cuts)):
        piece = analysis.section(start, end, None)
        for w, share in enumerate(WIDTHS):
            try:
                graph, _ = resize_section(
                    piece,
                    Branch(soc.processors[0].name),
                    piece.width_in,
                    max(8, round(piece.width_out * share / 8) * 8),
                    "",
                )
            except BadPlan:
                continue
            by_rules = {
                rules: list(fuse_kernels(graph, rules))
                for rules in {soc.rules(p.name) for p in soc.processors}
            }
            kernels |= {(u, w, p.name): by_rules[soc.rules(p.name)] for p in soc.processors}
    return kernels


def table_s(analysis: NetworkAnalysis, soc: Soc) -> tuple[float, float, int]:
    """Return seconds to scale and fuse, seconds to estimate, kernels."""
    started = perf_counter()
    kernels = table(analysis, soc)
    built = perf_counter()
    for processor in soc.processors:
        estimate_many(
            soc.predictors[processor.name],
            [k for key, many in kernels.items() if key[2] == processor.name for k in many],
        )
    return built - started, perf_counter() - built, sum(map(len, kernels.values()))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--soc", action="append", default=None)
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--kernels", type=int, default=20_000)


def run(args: argparse.Namespace) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    module = load_model(args.model).eval()
    example = torch.zeros(default_input(args.model, module))
    analysis = NetworkAnalysis(capture(module, example, args.model))
    speeds, tables = [], []
    for soc in map(load_soc, args.soc or ["mi9"]):
        for processor in soc.processors[:3]:
            per_s = rate(soc, processor.name, args.kernels)
            speeds.append((soc.name, processor.name, f"{per_s:,.0f}"))
        runs = [table_s(analysis, soc) for _ in range(REPEATS)]
        fuse_s, estimate_s, (kernels, *_) = zip(*runs, strict=True)
        tables.append((soc.name, kernels, f"{median(fuse_s):.2f}", f"{median(estimate_s):.3f}"))
    heads = (f"table of {args.model}", "kernels", "scale and fuse s", "estimate s")
    print(*markdown_table(("chip", "processor", "estimates per second"), speeds), sep="\n")
    print("", *markdown_table(heads, tables), sep="\n")
    return 0
