"""Play CEDR's experiments on mi9 and on the described chip, and compare with what was published.

python scripts/cedr experiments --out docs/results/cedr.md

Task graphs of the described chip are those of examples/cedr, which `describe` writes. On mi9 a layer
of a network is a task, with its predicted time on each processor; copies between processors are
edges, those of the network's input and output are in the times.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from chip_runs import (
    decision_table,
    detection_table,
    gantt,
    instance_lines,
    instances_table,
    mixed_table,
    saturation_lines,
    scale_table,
    shared_cores_table,
    signal_table,
)
from describe import captured_networks
from findings import findings_table
from mi9_runs import mi9_gantt, mi9_instances, mi9_pools, mi9_saturation, write_mi9_graphs
from simulated import NOT_CALIBRATED

from nnstretch.bench.commands import command_line
from nnstretch.files.atomic import write_text
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.html import Markup
from nnstretch.report.style import stand_alone

INTRODUCTION = f"""\
# CEDR's experiments, simulated

What was published of CEDR's experiments on ZCU102 boards (three CPUs for work, units for conv2d, ZIP and FFT), played by
`nnstretch simulate`. Every number of zcu102 is **{NOT_CALIBRATED}** (the first table
names them); FFT and ZIP follow CEDR's own example costs; the networks are stand-ins, since those of the experiments were not published; nothing
else is tuned. Numbers of mi9 are predicted by its [calibrated predictor](../../latency_predictors/mi9/CARD.md). All times are of the
virtual clock; policies know what each task costs, where CEDR knows one constant per kernel.

Made by `{{command}}`, from the task graphs of `examples/cedr`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the part's options to its parser."""
    parser.add_argument("--out", type=Path, required=True, help="page to write, pictures beside it")


def run(args: argparse.Namespace) -> int:
    """Run all experiments and write page and pictures."""
    measured: dict[str, Any] = {}
    lines = [INTRODUCTION.format(command=command_line()), ""]
    add_chip_sections(lines, measured, args.out)
    add_mi9_sections(lines, args.out)
    lines += ["## Published findings", "", *findings_table(measured), ""]
    write_text(args.out, "\n".join(lines))
    return 0


def add_chip_sections(lines: list[str], measured: dict[str, Any], page: Path) -> None:
    """Add the sections on the described chip; keep numbers that findings are judged by."""
    sections = (
        ("What sets the scale", scale_table(measured)),
        ("Object detection, one instance", detection_table(measured)),
        ("1 to 10 instances at once", instances_table(measured)),
        ("The signal mix against the rate", signal_table(measured)),
        ("Deciding, on the host that simulated", decision_table(measured)),
        ("Detection beside the signal mix", mixed_table(measured)),
        ("Accelerators whose threads share cores", shared_cores_table(measured)),
    )
    for title, table in sections:
        lines += [f"## {title}, zcu102 (not calibrated)", "", *table, ""]
    picture(lines, page, "saturation", against_rate(saturation_lines(measured), "zcu102"))
    picture(lines, page, "instances", against_instances(instance_lines(measured)))
    picture(lines, page, "gantt", gantt(measured))


def add_mi9_sections(lines: list[str], page: Path) -> None:
    """Add the sections on mi9."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_mi9_graphs(folder, captured_networks())
        lines += ["## Execution time against resources, mi9", "", *mi9_pools(folder), ""]
        lines += ["## 1 to 10 instances at once, mi9", "", *mi9_instances(folder), ""]
        table, curves = mi9_saturation(folder)
        lines += ["## The three networks against the rate, mi9", "", *table, ""]
        picture(lines, page, "mi9_saturation", against_rate(curves, "mi9"))
        picture(lines, page, "mi9_gantt", mi9_gantt(folder))


def picture(lines: list[str], page: Path, name: str, drawing: Markup) -> None:
    """Write a picture beside the page, and show it there."""
    file = page.with_name(f"{page.stem}_{name}.svg")
    write_text(file, stand_alone(drawing))
    lines += [f"![{name}]({file.name})", ""]


def against_rate(lines: list[ChartLine], chip: str) -> Markup:
    """Draw execution time against the rate, a line for each pool."""
    across = ChartAxis("Mbps" if chip == "zcu102" else "mixes a second", logarithmic=True)
    words = ", not calibrated" if chip == "zcu102" else ""
    title = f"Saturation under EFT, {chip}{words}"
    return line_chart(title, across, ChartAxis("mean execution time, ms"), lines)


def against_instances(lines: list[ChartLine]) -> Markup:
    """Draw seconds per instance against how many arrive at once."""
    title = "Detection, 3 CPUs + conv2d + zip, zcu102, not calibrated"
    return line_chart(title, ChartAxis("instances"), ChartAxis("s an instance"), lines)
