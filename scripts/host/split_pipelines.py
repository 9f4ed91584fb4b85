"""Split networks in two on two cores: throughput against one core and against two threads.

    nnstretch profile --out latency_predictors/host --backend onnxruntime --processors cpu0,cpu1
    python scripts/host pipelines --out docs/results/bench_pipeline.md --soc latency_predictors/host

Split automatically, by predicted latency alone and with `partition --measure`, which streams
candidates for a while and learns. Everything takes turns in one run, round after round. Throughput
of a pipeline is that while it is full. Weights are random: only times may be judged.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import onnxruntime

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.contenders import pin_caller
from nnstretch.bench.interleaved import run_interleaved
from nnstretch.bench.markdown import markdown_table
from nnstretch.bench.pipelines import stream_period_us
from nnstretch.bench.statistics import quartiles, speedup
from nnstretch.bundle.bundle import read_bundle
from nnstretch.files.atomic import write_text
from nnstretch.profile.machine import allowed_cores, description
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.sequential import SequentialPipeline

SSD = f"{Path(__file__).parents[2] / 'tests/support/pipeline_nets.py'}:Ssd"
NETWORKS = ("torchvision:resnet18", "torchvision:resnet50", SSD)
ONE = "original, one core"
TWO = "original, two threads within operators"
IN_TURN = "stages in turn, one core"
PREDICTED = "pipeline of two, split by prediction"
MEASURED = "pipeline of two, split by measuring"
OVER_ONE_CORE = 1.8
OVER_TWO_THREADS = 0.95
BALANCE = 0.9
PREDICTION_ERROR = 0.10
"""What is wanted of throughput, balance and prediction."""
HEADS = (
    *("network", "what", "ms an item, median", "quartiles ms"),
    *("throughput over one core", "95% interval"),
)


def in_a_row(chain: SequentialPipeline, inputs: Any, items: int) -> float:
    """Return the microseconds of an item."""
    began_s = perf_counter()
    for _ in range(items):
        chain.run(inputs)
    return (perf_counter() - began_s) * 1e6 / items


def measured(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    common = (model, "--soc", args.soc, "--processors")
    pair = (*common, args.processors, "--stages", 2, "--out")
    splits = {
        PREDICTED: run_verb("partition", *pair, folder / "p.nns"),
        MEASURED: run_verb("partition", *pair, folder / "m.nns", "--measure"),
    }
    for threads in (1, 2):
        whole = (args.processors.split(",")[0], "--stages", 1, "--threads", threads)
        run_verb("partition", *common, *whole, "--out", folder / f"whole{threads}.nns")
    one, two, turns = (
        SequentialPipeline(read_bundle(folder / name))
        for name in ("whole1.nns", "whole2.nns", "m.nns")
    )
    inputs = one.random_inputs(0)
    with Pipeline(folder / "p.nns") as by_prediction, Pipeline(folder / "m.nns") as by_measuring:
        times = run_interleaved(
            {
                ONE: lambda: pin_caller(lambda: in_a_row(one, inputs, args.items)),
                TWO: lambda: in_a_row(two, inputs, args.items),
                IN_TURN: lambda: pin_caller(lambda: in_a_row(turns, inputs, args.items)),
                PREDICTED: lambda: stream_period_us(by_prediction, inputs, args.items),
                MEASURED: lambda: stream_period_us(by_measuring, inputs, args.items),
            },
            args.rounds,
        )
        pipelines = {PREDICTED: by_prediction, MEASURED: by_measuring}
        service_ms = {
            name: [stage.service_us / 1e3 for stage in pipeline.statistics()]
            for name, pipeline in pipelines.items()
        }
    return {"times": times, "service_ms": service_ms, "splits": splits}


def table_rows(name: str, times: dict[str, Any]) -> list[list[str]]:
    rows = []
    for what, times_us in times.items():
        middle, gain = quartiles(times_us), speedup(times[ONE], times_us)
        spread = f"{middle.low / 1e3:.2f} to {middle.high / 1e3:.2f}"
        over_one = (f"{gain.median:.2f}x", f"{gain.low:.2f} to {gain.high:.2f}")
        rows.append([name, what, f"{middle.median / 1e3:.2f}", spread, *over_one])
    return rows


def notes(name: str, result: dict[str, Any]) -> list[str]:
    """Return what is wanted beside what was measured, and where each split lies."""
    times, service_ms = result["times"], result["service_ms"]
    over_one, over_two = speedup(times[ONE], times[MEASURED]), speedup(times[TWO], times[MEASURED])
    forecast_ms, slowest_ms = (
        result["splits"][PREDICTED]["bottleneck_ms"],
        max(service_ms[PREDICTED]),
    )
    balance = sum(service_ms[MEASURED]) / 2 / max(service_ms[MEASURED])
    off = forecast_ms / slowest_ms - 1
    stages_ms = ", ".join(f"{ms:.2f}" for ms in service_ms[MEASURED])
    claims = [
        (
            f"split by measuring: {over_one.median:.2f}x one core ({over_one.low:.2f} to"
            f" {over_one.high:.2f}), wanted {OVER_ONE_CORE}",
            over_one.median >= OVER_ONE_CORE,
        ),
        (
            f"split by measuring: {over_two.median:.2f} of two threads within operators"
            f" ({over_two.low:.2f} to {over_two.high:.2f}), wanted {OVER_TWO_THREADS}",
            over_two.median >= OVER_TWO_THREADS,
        ),
        (
            f"split by measuring: balance {balance:.3f} ({stages_ms} ms), wanted {BALANCE}",
            balance >= BALANCE,
        ),
        (
            f"split by prediction: slowest stage {slowest_ms:.2f} ms, predicted {forecast_ms:.2f}"
            f" ({off:+.1%}), wanted within {PREDICTION_ERROR:.0%}",
            abs(off) <= PREDICTION_ERROR,
        ),
    ]
    lines = [f"- {name}, {text}: {'met' if met else 'missed'}" for text, met in claims]
    for how, split in result["splits"].items():
        period_ms, slowest_ms = quartiles(times[how]).median / 1e3, max(service_ms[how])
        borders = ", ".join(f"{stage['processor']} to {stage['end']}" for stage in split["stages"])
        lines.append(
            f"- {name}, {how}: {borders}; a result every {period_ms:.2f} ms,"
            f" {slowest_ms / period_ms:.1%} of what the slowest stage allows"
        )
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.md")
    parser.add_argument("--soc", required=True, metavar="FOLDER", help="profile of this machine")
    parser.add_argument("--processors", default="cpu0,cpu1")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--items", type=int, default=40)


def run(args: argparse.Namespace) -> int:
    rows, remarks = list[list[str]](), list[str]()
    for model in args.networks.split(","):
        name = model.rpartition(":")[2]
        with tempfile.TemporaryDirectory() as folder:
            result = measured(model, args, Path(folder))
        rows += table_rows(name, result["times"])
        remarks += notes(name, result)
        print(f"{name} is measured", file=sys.stderr)
    versions = f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"
    lines = [
        *("# Pipelines on two cores of this machine", "", f"    {command_line()}", ""),
        f"{description()}, {len(allowed_cores())} cores allowed; {versions}. Weights are random.",
        *("", *markdown_table(HEADS, rows), "", *remarks, ""),
    ]
    write_text(args.out, "\n".join(lines))
    return 0
