"""How long a schedule and its simulation take on one core, and how that grows with operators.

Residual networks of growing length are scheduled by `graphturbo` on STCP920, then ResNet-50 of 64
images, where images per cluster are tried, and BERT of 512 tokens. Capture is not counted. Times
are those of the processor, so that another program on the host counts little.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from judged import JudgedClaim, judged_table, status_of
from optimum_gaps import SmallGraph

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph, Value, ValueRef
from nnstretch.graph import TensorSpec as Spec
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.style import stand_alone

MACHINE = "stcp920"
BLOCK = 7
"""Operators of a residual block: three convolutions, two activations, a sum, an activation."""
OPERATORS = (77, 154, 308, 616, 1232, 2499, 5005)
CHANNELS = 64
NETWORKS = (
    ("torchvision:resnet50", 64, 5.0),
    ("examples/accelerator/networks.py:bert_base?tokens=512", 8, 10.0),
)
LARGEST_S = 60.0
"""For 5,000 operators."""


@dataclass(frozen=True)
class GrowthRow:
    """One network that was scheduled."""

    name: str
    operators: int
    instructions: int
    seconds: float
    limit_s: float | None = None


def residual_network(operators: int) -> Graph:
    """Residual blocks one after the other on maps of 28 x 28."""
    maker = SmallGraph(random.Random(0))
    shape = (4, CHANNELS, 28, 28)
    maker.shapes = {"x": shape}
    entry = "x"
    while len(maker.nodes) < operators:
        x = entry
        for kernel in (1, 3):
            x = maker.convolution(x, CHANNELS, kernel, 1)
            x = maker.add("relu", shape, ValueRef(x))
        x = maker.convolution(x, CHANNELS, 1, 1)
        total = maker.add("add.Tensor", shape, ValueRef(x), ValueRef(entry))
        entry = maker.add("relu", shape, ValueRef(total))
    inputs = (Value("x", Spec(shape)),)
    return Graph("residual", inputs, tuple(maker.weights), tuple(maker.nodes), (entry,))


def grown_row(operators: int) -> GrowthRow:
    """Schedule one residual network."""
    chip = chip_graph(residual_network(operators), "fp16")
    rates = ChipRates(load_accelerator(MACHINE), "fp16")
    began_s = time.process_time()
    schedule = schedule_cluster(chip, rates, ScheduleOptions())
    seconds = time.process_time() - began_s
    limit_s = LARGEST_S if operators >= 5000 else None
    name = f"{operators // BLOCK} residual blocks"
    return GrowthRow(name, len(chip.operators), len(schedule.instructions), seconds, limit_s)


def network_row(model: str, batch: int, limit_s: float) -> GrowthRow:
    """Schedule a network by the command, which says its own wall time without the capture."""
    answer = run_verb("accelerate", model, "--accelerator", MACHINE, "--batch", batch)
    operators = sum(len(group["operators"]) for group in answer["group_list"])
    name = f"{model.rpartition(':')[2]}, batch {batch} (wall time)"
    return GrowthRow(name, operators, answer["instructions"], answer["scheduling_s"], limit_s)


def claims_of(rows: Sequence[GrowthRow]) -> list[JudgedClaim]:
    """Return what is judged: rows with a limit."""
    limited = [(row, row.limit_s) for row in rows if row.limit_s is not None]
    return [
        JudgedClaim(row.name, f"{row.seconds:.2f} s", f"{limit_s:g} s", row.seconds < limit_s)
        for row, limit_s in limited
    ]


def page(rows: Sequence[GrowthRow], picture: Path) -> str:
    """The table as a page."""
    table: list[Sequence[object]] = []
    for row in rows:
        limit = "" if row.limit_s is None else f"{row.limit_s:g}"
        each = f"{1e3 * row.seconds / row.operators:.2f}"
        counts = f"{row.operators:,}", f"{row.instructions:,}"
        table.append([row.name, *counts, f"{row.seconds:.2f}", limit, each])
    heads = ("network", "operators", "instructions", "seconds", "limit s", "ms an operator")
    lines = [
        "# Time of schedule and simulation inside an accelerator",
        "",
        f"`{command_line()}`",
        "",
        "Policy `graphturbo` on `stcp920`, schedule and simulation together, capture apart, one core.",
        "Residual networks of equal blocks count the processor's time; the two networks below them are",
        "what the command says of itself (`scheduling_s`), with the images per cluster that it tries,",
        "on a host that other programs use, too; they slow both, since cores and caches are shared.",
        "",
        *markdown_table(heads, table),
        "",
        *judged_table(claims_of(rows)),
        "",
        f"![seconds against operators]({picture.name})",
        "",
    ]
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE.svg")


def run(args: argparse.Namespace) -> int:
    grown: list[GrowthRow] = []
    for operators in OPERATORS:
        grown.append(grown_row(operators))
        print(f"{operators} operators: {grown[-1].seconds:.2f} s", flush=True)
    rows = [*grown, *(network_row(*network) for network in NETWORKS)]
    line = ChartLine("residual network", tuple((row.operators, row.seconds) for row in grown))
    axes = ChartAxis("operators", True), ChartAxis("seconds", True)
    drawing = line_chart("Schedule and simulation, one core", *axes, [line])
    write_text(args.picture, stand_alone(drawing))
    write_text(args.out, page(rows, args.picture))
    return status_of(claims_of(rows))
