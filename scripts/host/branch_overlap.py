"""Run a published plan's branches on two cores: how near to the critical path, what meeting costs.

ONNX Runtime and LiteRT float32, LiteRT int8. Weights and calibration inputs are random: only times
may be judged by them. The critical path is the slowest branch of every segment and its merge, each
sub-graph alone on its core, in the same rounds as everything else.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench_tables import HEADS, bench_rows

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture import load_model
from nnstretch.capture.torch_export import capture
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import UnknownName
from nnstretch.files.atomic import write_text
from nnstretch.files.plan_yaml import write_plan
from nnstretch.stretch import NetworkAnalysis
from nnstretch.stretch.published.anynet import check_config, import_plan, match_published_network
from nnstretch.stretch.published.configs_csv import config_from_rows, read_config_rows

CONFIGS = Path(__file__).parents[2] / "tests/data/nn_stretch/configs.csv"
TARGET = 0.93
"""Share of the latency that the critical path should be."""
DISPATCH_US = 50
"""The most that a meeting point should cost."""


def write_published_plan(name: str, path: Path) -> None:
    """Write a published configuration as a plan file.

    Raises UnknownName, and BadInput where it contradicts itself.
    """
    if name not in (known := read_config_rows(CONFIGS)):
        raise UnknownName(f"unknown configuration {name!r}, configs.csv, it has {', '.join(known)}")
    config = config_from_rows(known[name])
    family = match_published_network(config)
    check_config(config, family)
    graph = capture(load_model(family.model), torch.zeros(1, 3, 224, 224), family.model)
    write_plan(path, import_plan(config, NetworkAnalysis(graph), family))


def add_options(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    check_writable(out)
    int8 = ("--int8", "--calibration", "random") if "litert" in args.backend.split(",") else ()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / f"{args.config}.yaml"
        write_published_plan(args.config, plan)
        result = run_verb("bench", plan, "--backend", args.backend, *int8, "--runs", args.runs)
    text = page(args.config, result)
    write_text(out, text)
    print(text)
    return 0


def page(config: str, result: dict[str, Any]) -> str:
    lines = [f"# Branches of {config} on two cores", "", f"    {command_line()}", ""]
    lines += [
        f"{result['machine']}; {result['versions']}. Weights and calibration inputs are random.",
        "",
        *markdown_table(HEADS, bench_rows(config, result)),
        "",
    ]
    for variant in result["variants"]:
        name, efficiency = f"{variant['backend']} {variant['precision']}", variant["efficiency"]
        verdict = "met" if efficiency >= TARGET else "missed"
        lines.append(
            f"- {name}: critical path over latency {efficiency:.3f}, wanted {TARGET}: {verdict}"
        )
        verdict = "met" if variant["dispatch_us"] <= DISPATCH_US else "missed"
        lines.append(
            f"- {name}: {variant['dispatch_us']:.0f} us per meeting point, wanted at most"
            f" {DISPATCH_US}: {verdict}"
        )
    lines += [f"- not measured: {name}, {why}" for name, why in result["skipped"].items()]
    lines += [f"- warning: {warning}" for warning in result["warnings"]]
    return "\n".join(lines) + "\n"
