"""How fast predictors are: estimates per second, and the whole table of a network.

    python scripts/bench_predictor.py [--soc mi9 --soc profiles/host_onnxruntime] [--model
    torchvision:resnet50]

The table holds every unit of the network at every depth of its stage and ten widths, on every
processor. One core, five repetitions, medians; making the table includes scaling the graphs and
fusing them.
"""

from __future__ import annotations

import argparse
import os
from itertools import islice, pairwise
from statistics import median
from time import perf_counter

import torch

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
    """Different kernels per second, with reading them included."""
    predictor, found = soc.predictors[processor], []
    for kernel in generate_kernels(load_prior(), soc.rules(processor), 0):
        try:
            predictor.estimate(kernel)
        except UnsupportedOp:
            continue
        found.append(kernel)
        if len(found) == count:
            break
    times = []
    for _ in range(REPEATS):
        started = perf_counter()
        estimate_many(predictor, found)
        times.append(perf_counter() - started)
    return count / median(times)


def table(analysis: NetworkAnalysis, soc: Soc) -> dict[tuple[int, int, str], list[Kernel]]:
    """Kernels of every unit at every width, as each processor's backend fuses them.

    A depth is a sum over units.
    """
    found: dict[tuple[int, int, str], list[Kernel]] = {}
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
            found |= {(u, w, p.name): by_rules[soc.rules(p.name)] for p in soc.processors}
    return found


def table_s(analysis: NetworkAnalysis, soc: Soc) -> tuple[float, float, int]:
    """Seconds to scale and fuse, seconds to estimate, kernels."""
    started = perf_counter()
    found = table(analysis, soc)
    built = perf_counter()
    for processor in soc.processors:
        estimate_many(
            soc.predictors[processor.name],
            [k for key, many in found.items() if key[2] == processor.name for k in many],
        )
    return built - started, perf_counter() - built, sum(map(len, found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--soc", action="append", default=None)
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--kernels", type=int, default=20_000)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    module = load_model(args.model).eval()
    analysis = NetworkAnalysis(
        capture(module, torch.zeros(default_input(args.model, module)), args.model)
    )
    print("| chip | processor | estimates per second |\n| --- | --- | --- |")
    socs = [load_soc(name) for name in args.soc or ["mi9"]]
    for soc in socs:
        for processor in islice(soc.processors, 3):
            print(
                f"| {soc.name} | {processor.name} |"
                f" {rate(soc, processor.name, args.kernels):,.0f} |"
            )
    print(
        f"\n| table of {args.model} | kernels | scale and fuse s | estimate s |\n| --- | --- | ---"
        " | --- |"
    )
    for soc in socs:
        runs = [table_s(analysis, soc) for _ in range(REPEATS)]
        print(
            f"| {soc.name} | {runs[0][2]} | {median(r[0] for r in runs):.2f} |"
            f" {median(r[1] for r in runs):.3f} |"
        )


if __name__ == "__main__":
    main()
