"""Networks split in two on two cores of this machine.

Throughput against one core and against two threads within operators.

    nnstretch profile --out latency_predictors/host --backend onnxruntime --processors cpu0,cpu1
    python scripts/bench_pipeline.py --out docs/results/bench_pipeline.md --soc latency_predictors/host
    [--rounds 12] [--items 40]

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
from bench_host import nnstretch

from nnstretch.bench.contenders import pin_caller
from nnstretch.bench.interleaved import run_interleaved
from nnstretch.bench.pipelines import stream_period_us
from nnstretch.bench.statistics import quartiles, speedup
from nnstretch.bundle.bundle import read_bundle
from nnstretch.errors import NnstretchError, one_line
from nnstretch.files.atomic import write_text
from nnstretch.profile.machine import allowed_cores, description
from nnstretch.run.pipelines.metrics import SequentialPipeline
from nnstretch.run.pipelines.pipeline import Pipeline

SSD = "tests/support/pipeline_nets.py:Ssd"
NETWORKS = ("torchvision:resnet18", "torchvision:resnet50", SSD)
ONE, TWO, IN_TURN = (
    "original, one core",
    "original, two threads within operators",
    "stages in turn, one core",
)
PREDICTED, MEASURED = "pipeline of two, split by prediction", "pipeline of two, split by measuring"
WANTED, OF_TWO, NEAR, EVEN = 1.8, 0.95, 0.10, 0.9
HEADS = (
    "network",
    "what",
    "ms an item, median",
    "quartiles ms",
    "throughput over one core",
    "95% interval",
)


def in_a_row(chain: SequentialPipeline, inputs: Any, items: int) -> float:
    """Microseconds of an item."""
    began_s = perf_counter()
    for _ in range(items):
        chain.run(inputs)
    return (perf_counter() - began_s) * 1e6 / items


def measured(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    common = (model, "--soc", args.soc, "--processors")
    pair = (*common, args.processors, "--stages", 2, "--out")
    splits = {
        PREDICTED: nnstretch("partition", *pair, folder / "p.nns"),
        MEASURED: nnstretch("partition", *pair, folder / "m.nns", "--measure"),
    }
    for threads in (1, 2):
        nnstretch(
            "partition",
            *common,
            args.processors.split(",")[0],
            "--stages",
            1,
            "--threads",
            threads,
            "--out",
            folder / f"whole{threads}.nns",
        )
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
            name: [stage.service_us / 1e3 for stage in one.statistics()]
            for name, one in pipelines.items()
        }
    return {"times": times, "service_ms": service_ms, "splits": splits}


def lines_of(name: str, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Rows of the table, and what is wanted beside what was measured."""
    times, rows = found["times"], []
    for what, own in times.items():
        middle, gain = quartiles(own), speedup(times[ONE], own)
        spread = f"{middle.median / 1e3:.2f} | {middle.low / 1e3:.2f} to {middle.high / 1e3:.2f}"
        rows.append(
            f"| {name} | {what} | {spread} | {gain.median:.2f}x | {gain.low:.2f} to"
            f" {gain.high:.2f} |"
        )
    over_one, over_two = speedup(times[ONE], times[MEASURED]), speedup(times[TWO], times[MEASURED])
    forecast_ms, service_ms = found["splits"][PREDICTED]["bottleneck_ms"], found["service_ms"]
    balance, off = (
        sum(service_ms[MEASURED]) / 2 / max(service_ms[MEASURED]),
        forecast_ms / max(service_ms[PREDICTED]) - 1,
    )
    claims = [
        (
            (
                f"{over_one.median:.2f}x one core ({over_one.low:.2f} to {over_one.high:.2f}),"
                f" wanted {WANTED}"
            ),
            over_one.median >= WANTED,
        ),
        (
            (
                f"{over_two.median:.2f} of two threads within operators ({over_two.low:.2f} to"
                f" {over_two.high:.2f}), wanted {OF_TWO}"
            ),
            over_two.median >= OF_TWO,
        ),
        (
            (
                f"balance {balance:.3f} ({', '.join(f'{ms:.2f}' for ms in service_ms[MEASURED])}"
                f" ms), wanted {EVEN}"
            ),
            balance >= EVEN,
        ),
        (
            (
                f"slowest stage {max(service_ms[PREDICTED]):.2f} ms, predicted {forecast_ms:.2f}"
                f" ({off:+.1%}), wanted within {NEAR:.0%}"
            ),
            abs(off) <= NEAR,
        ),
    ]
    about = (
        "split by measuring",
        "split by measuring",
        "split by measuring",
        "split by prediction",
    )
    notes = [
        f"- {name}, {how}: {text}: {'met' if met else 'missed'}"
        for how, (text, met) in zip(about, claims, strict=True)
    ]
    for how, split in found["splits"].items():
        period_ms, slowest_ms = quartiles(times[how]).median / 1e3, max(service_ms[how])
        borders = ", ".join(f"{stage['processor']} to {stage['end']}" for stage in split["stages"])
        notes.append(
            f"- {name}, {how}: {borders}; a result every {period_ms:.2f} ms,"
            f" {slowest_ms / period_ms:.1%} of what the slowest stage allows"
        )
    return rows, notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.md")
    parser.add_argument("--soc", required=True, metavar="FOLDER", help="profile of this machine")
    parser.add_argument("--processors", default="cpu0,cpu1")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--items", type=int, default=40)
    args = parser.parse_args()
    shown = " ".join(
        word if word != args.soc else "latency_predictors/host" for word in sys.argv[1:]
    )
    rows, notes = list[str](), list[str]()
    for model in args.networks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            more = lines_of(model.rpartition(":")[2], measured(model, args, Path(folder)))
        rows, notes = rows + more[0], notes + more[1]
        print("\n".join([*more[0], *more[1]]), file=sys.stderr)
    versions = f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"
    head = [
        "# Pipelines on two cores of this machine",
        "",
        f"    python scripts/bench_pipeline.py {shown}",
        "",
    ]
    head += [
        f"{description()}, {len(allowed_cores())} cores allowed; {versions}. Weights are random.",
        "",
    ]
    table = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", *rows]
    write_text(args.out, "\n".join([*head, *table, "", *notes, ""]))


if __name__ == "__main__":
    try:
        main()
    except NnstretchError as refusal:
        sys.exit(f"nnstretch: {one_line(refusal)}")
