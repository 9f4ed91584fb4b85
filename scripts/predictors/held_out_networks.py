"""Profile this machine, then predict and measure networks that were never sampled, in one run.

For ONNX Runtime (float32) and LiteRT (int8): `nnstretch profile`, then 20 networks of torchvision
and timm from more than 10 families, none of which is in nnstretch/profile/prior.csv. nn-Meter's
published figures stand beside ours.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text

DTYPES = {"onnxruntime": "float32", "litert": "int8"}
NN_METER = """
nn-Meter (README of microsoft/nn-Meter), share of 26,000 models within 10%: Cortex-A76 with TFLite 2.1 99.0%, Adreno 640 99.1%,
Adreno 630 99.0%, Myriad VPU with OpenVINO 2019R2 83.4%. Those models are variants of the families that its predictors were fitted for,
on other devices: the figures stand beside ours for scale, not as a race.
"""


HEADS = ("network", "predicted ms", "measured ms", "error", "spread between quartiles")


def section(backend: str, dtype: str, result: dict[str, Any]) -> str:
    summary = result["held_out"]
    rows = []
    for r in result["networks"]:
        times = (f"{r['predicted_ms']:.2f}", f"{r['measured_ms']:.2f}")
        rows.append((r["network"], *times, f"{r['error']:+.1%}", f"{r['spread']:.1%}"))
    lines = [
        f"## {backend}, {dtype}\n",
        f"{result['kernels']} kernels, {result['seconds']:.0f} s in all. Mean error"
        f" **{summary['mape']:.1%}**, **{summary['within_10_percent']:.0%}** of"
        f" {len(rows)} networks within 10%.\n",
        *markdown_table(HEADS, rows),
        *(f"\nNot told: {name}: {reason}" for name, reason in result["refused"].items()),
        f"\n{result['provenance']}\n",
    ]
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument(
        "--folder", type=Path, default=Path("profiles"), help="where the profiled chips go"
    )
    parser.add_argument("--networks", default="all", help="as `nnstretch profile --validate`")
    parser.add_argument(
        "--backend", action="append", choices=DTYPES, help="only these (default: both)"
    )
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> int:
    args.folder.mkdir(exist_ok=True)
    parts = [f"# Predictors of this machine, validated\n\n`{command_line()}`\n{NN_METER}"]
    for backend in args.backend or DTYPES:
        target = ("--out", args.folder / f"host_{backend}", "--backend", backend)
        settings = ("--dtype", DTYPES[backend], "--budget-s", args.budget_s)
        result = run_verb("profile", *target, *settings, "--validate", args.networks, "--fresh")
        parts.append(section(backend, DTYPES[backend], result))
        write_text(args.out, "\n".join(parts))
    print("\n".join(parts))
    return 0
