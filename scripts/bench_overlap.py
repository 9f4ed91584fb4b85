"""A published plan for CPU and GPU, its branches on two cores of this machine.

How near to the critical path, and what meeting costs.

    python scripts/bench_overlap.py --out docs/results/overlap.md [--config R-50-CG] [--runs 50] [--backend
    onnxruntime,litert]

ONNX Runtime and LiteRT float32, LiteRT int8. Weights and calibration inputs are random: only times
may be judged by them. The critical path is the slowest branch of every segment and its merge, each
sub-graph alone on its core, in the same rounds as everything else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from bench_host import HEADS, lines_of, nnstretch
from reproduce_published import config_of, configurations

from nnstretch.capture import load_model
from nnstretch.capture.torch_export import capture
from nnstretch.cli.common import check_writable
from nnstretch.errors import NnstretchError, UnknownName, one_line
from nnstretch.files.atomic import write_text
from nnstretch.files.plan_yaml import write_plan
from nnstretch.stretch import NetworkAnalysis
from nnstretch.stretch.published.anynet import check_config, import_plan, match_published_network

TARGET, DISPATCH_US = 0.93, 50
"""Share of the latency that the critical path should be, and the most that a meeting point should
cost.
"""


def plan_of(name: str, path: Path) -> None:
    """A published configuration as a plan file.

    Raises UnknownName, and BadInput where it contradicts itself.
    """
    if name not in (known := configurations()):
        raise UnknownName(f"unknown configuration {name!r}, configs.csv, it has {', '.join(known)}")
    config = config_of(known[name])
    family = match_published_network(config)
    check_config(config, family)
    graph = capture(load_model(family.model), torch.zeros(1, 3, 224, 224), family.model)
    write_plan(path, import_plan(config, NetworkAnalysis(graph), family))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument(
        "--config",
        default="R-50-CG",
        help="a configuration of configs.csv for two processors (R-50-CG)",
    )
    parser.add_argument(
        "--backend",
        default="onnxruntime,litert",
        help="as `nnstretch bench` takes them; int8 comes with litert",
    )
    parser.add_argument("--runs", type=int, default=50, help="rounds (50)")
    args = parser.parse_args()
    out = check_writable(args.out)
    assert out is not None
    int8 = ("--int8", "--calibration", "random") if "litert" in args.backend.split(",") else ()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / f"{args.config}.yaml"
        plan_of(args.config, plan)
        found = nnstretch("bench", plan, "--backend", args.backend, *int8, "--runs", args.runs)
    command = (
        f"python scripts/bench_overlap.py --out {args.out} --config {args.config} --backend"
        f" {args.backend} --runs {args.runs}"
    )
    lines = [f"# Branches of {args.config} on two cores", "", f"    {command}", ""]
    lines += [
        f"{found['machine']}; {found['versions']}. Weights and calibration inputs are random.",
        "",
    ]
    lines += [
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *lines_of(args.config, found),
        "",
    ]
    for one in found["variants"]:
        name = f"{one['backend']} {one['precision']}"
        met = "met" if one["efficiency"] >= TARGET else "missed"
        lines.append(
            f"- {name}: critical path over latency {one['efficiency']:.3f}, wanted {TARGET}: {met}"
        )
        met = "met" if one["dispatch_us"] <= DISPATCH_US else "missed"
        lines.append(
            f"- {name}: {one['dispatch_us']:.0f} us per meeting point, wanted at most"
            f" {DISPATCH_US}: {met}"
        )
    lines += [f"- not measured: {name}, {why}" for name, why in found["skipped"].items()]
    lines += [f"- warning: {warning}" for warning in found["warnings"]]
    write_text(out, "\n".join(lines) + "\n")
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        main()
    except NnstretchError as refusal:
        sys.exit(f"nnstretch: {one_line(refusal)}")
