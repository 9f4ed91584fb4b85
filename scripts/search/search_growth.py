"""Time and memory of the exact search: ResNets of growing depth, and networks of the zoo.

Every search runs in a process of its own on one core, over every cut between blocks and every width
in steps of 8. One that takes under five seconds runs three times: its row shows the median, least
and most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.files.atomic import write_text

GROWTH = ("resnet18", "resnet34", "resnet50", "resnet101")
ZOO = (
    "torchvision:mobilenet_v3_large",
    "torchvision:densenet121",
    "timm:convnext_tiny",
    "torchvision:inception_v3",
    "torchvision:vgg16",
    "timm:vit_tiny_patch16_224",
    "timm:efficientnet_b5",
)
LONGEST_S = 75.0
"""For one search, capture included."""
SHORT_S = 5.0
REPEATS = 3
TEAMS = ("cpu,dsp", "cpu,gpu,dsp")
ONE = """
import json, resource, sys, time
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.predict import load_soc
from nnstretch.stretch.search.search import search
subject, soc = load_model_argument(sys.argv[1]), load_soc("mi9")
analysis = subject.analysis
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = search(analysis, soc, sys.argv[2].split(","), fallback="nearest")
best = found.plans[0]
print(json.dumps({
    "cuts": len(analysis.block_ends), "seconds": time.process_time() - began, "log10_size": found.log10_size, "optimal": found.optimal,
    "gap": found.gap, "latency_ms": best.trial.latency_us / 1000, "fastest_ms": min(found.original_us.values()) / 1000,
    "iso_mac_ms": best.iso_mac.latency_us / 1000, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    "before_mb": before / 1000, "fallbacks": len(found.fallbacks),
}))
"""


def searched(model: str, processors: str) -> dict[str, float]:
    """Return one run, with the median, least and most of its seconds where it is short."""
    runs = [search_once(model, processors)]
    while "refused" not in runs[0] and runs[0]["seconds"] < SHORT_S and len(runs) < REPEATS:
        runs.append(search_once(model, processors))
    if any("refused" in run for run in runs):
        return next(run for run in runs if "refused" in run)
    seconds = [run["seconds"] for run in runs]
    return runs[0] | {
        "seconds": median(seconds),
        "least_s": min(seconds),
        "most_s": max(seconds),
        "runs": len(runs),
    }


def search_once(model: str, processors: str) -> dict[str, float]:
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    try:
        run = subprocess.run(
            [sys.executable, "-c", ONE, model, processors],
            capture_output=True,
            text=True,
            env=environment,
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return {"refused": f"not finished in {LONGEST_S:.0f} s"}  # type: ignore[dict-item]
    if run.returncode:
        return {"refused": run.stderr.strip().splitlines()[-1]}  # type: ignore[dict-item]
    return dict(json.loads(run.stdout))


def onnx_file(folder: str) -> str:
    """A ResNet-18 as an ONNX file."""
    import torch
    import torchvision

    path = f"{folder}/resnet18.onnx"
    torch.onnx.export(
        torchvision.models.resnet18(weights=None).eval(),
        (torch.zeros(1, 3, 224, 224),),
        path,
        dynamo=True,
    )
    return path


HEADS = (
    *("network", "processors", "cuts", "plans", "proof", "found ms", "vs fastest alone"),
    *("vs equal MACs", "seconds", "peak MB"),
)


def cells(name: str, processors: str, result: dict[str, float]) -> list[str]:
    if "refused" in result:
        return [name, processors, "", str(result["refused"]), *[""] * 6]
    spread = f" ({result['least_s']:.1f} to {result['most_s']:.1f})" if result["runs"] > 1 else ""
    return [
        *(name, processors, f"{result['cuts']:.0f}", f"10^{result['log10_size']:.0f}"),
        "optimal" if result["optimal"] else f"within {100 * result['gap']:.1f} %",
        f"{result['latency_ms']:.2f}",
        f"{result['fastest_ms'] / result['latency_ms']:.2f}x",
        f"{result['iso_mac_ms'] / result['latency_ms']:.2f}x",
        f"{result['seconds']:.1f}{spread}",
        f"{result['peak_mb']:.0f} ({result['before_mb']:.0f} before)",
    ]


def plot(points: dict[str, list[tuple[float, float]]]) -> str:
    """Seconds over cuts, both logarithmic."""
    from math import log10

    def place(cuts: float, seconds: float) -> tuple[float, float]:
        return 60 + 460 * (log10(cuts) - 1) / 0.85, 300 - 250 * (log10(seconds) + 1) / 3

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 360" font-family="sans-serif"'
        ' font-size="12">'
    ]
    parts.append(
        '<rect width="620" height="360" fill="white"/><text x="60" y="24" font-size="14">Seconds to'
        " the proven optimum, one core</text>"
    )
    for seconds in (0.1, 1, 10, 100):
        y = place(10, seconds)[1]
        parts.append(
            f'<line x1="60" y1="{y:.0f}" x2="530" y2="{y:.0f}" stroke="#ddd"/><text x="52"'
            f' y="{y + 4:.0f}" text-anchor="end">{seconds} s</text>'
        )
    for cuts in (10, 20, 30, 50, 70):
        x = place(cuts, 1)[0]
        parts.append(
            f'<line x1="{x:.0f}" y1="50" x2="{x:.0f}" y2="300" stroke="#eee"/><text x="{x:.0f}"'
            f' y="320" text-anchor="middle">{cuts}</text>'
        )
    parts.append(
        '<text x="290" y="345" text-anchor="middle">cuts between blocks (ResNet-18, 34, 50,'
        " 101)</text>"
    )
    for (processors, line), colour in zip(points.items(), ("#0067a8", "#b84a00"), strict=True):
        spots = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in spots]
        parts.append(
            f'<text x="{spots[-1][0] + 8:.0f}" y="{spots[-1][1] + 4:.0f}"'
            f' fill="{colour}">{processors}</text>'
        )
    return "".join([*parts, "</svg>\n"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE.svg")


def run(args: argparse.Namespace) -> int:
    rows = []
    points: dict[str, list[tuple[float, float]]] = {processors: [] for processors in TEAMS}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        models = {name: f"torchvision:{name}" for name in GROWTH}
        models |= {model.partition(":")[2]: model for model in ZOO}
        models["resnet18 (ONNX file)"] = onnx_file(folder)
        for (name, model), processors in product(models.items(), TEAMS):
            result = searched(model, processors)
            rows.append(cells(name, processors, result))
            print(markdown_row(rows[-1]), file=sys.stderr)
            if name in GROWTH and "refused" not in result:
                points[processors].append((result["cuts"], result["seconds"]))
    head = f"""# The exact search: time, memory, and what it finds on `mi9`

`{command_line()}`: {time.perf_counter() - began:.0f} s on one core.

Every cut between blocks, every width in steps of 8, both merges, default limits, no bound on MACs: the fastest plan the constraints
allow. Predicted latencies. Kernels of kinds that `mi9` never measured are priced as the nearest kind (`--fallback nearest`).
Seconds of the processor: pricing, proof, and equal-MACs comparison; capture apart; where a search takes under five seconds, the median of three
(least to most). Memory: peak of the process, in MB.

![growth with the number of cuts]({args.picture.name})
"""
    write_text(args.out, "\n".join([head, *markdown_table(HEADS, rows), ""]))
    write_text(args.picture, plot(points))
    return 0
