"""Pipelines of three and four emulated stages: their share of what the slowest stage allows.

The ideal is a result each time the slowest stage is through with an item. On the real clock stages
are threads that compute the true numbers and last their predicted times on a clock that is slowed
down by `dilation`, so that this host can keep it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.cli.output_path import check_writable
from nnstretch.files.atomic import write_text

CASES = (
    ("torchvision:resnet18", "cpu,gpu,dsp"),
    ("torchvision:resnet18", "cpu,cpu,cpu,cpu"),
    ("torchvision:resnet50", "cpu,gpu,dsp"),
    ("torchvision:resnet50", "cpu,cpu,cpu,cpu"),
)
WANTED = 0.95
HEADS = (
    *("network", "processors", "slowest stage ms", "balance"),
    *("virtual: a result every ms", "of the ideal"),
    *("real: a result every ms", "of the ideal", "late", "dilation"),
)


def measured(
    model: str, processors: str, soc: str, items: int, folder: Path
) -> tuple[list[str], bool]:
    """Return the cells of a row, and whether both clocks reach what is wanted."""
    path, count = folder / "net.nns", processors.count(",") + 1
    where = ("--soc", soc, "--processors", processors, "--stages", count, "--out", path)
    split = run_verb("partition", model, *where)
    mode = ("--mode", "pipeline", "--soc", soc, "--repeat", items)
    runs = [run_verb("run", path, *mode, "--clock", clock) for clock in ("virtual", "real")]
    cells = [model.partition(":")[2], processors]
    cells += [f"{split['bottleneck_ms']:.2f}", f"{split['balance']:.3f}"]
    for result in runs:
        cells += [f"{result['period_ms']:.2f}", f"{result['efficiency']:.3f}"]
    late = sum(stage["late"] for stage in runs[1]["stages"])
    cells += [f"{late} of {count * items}", f"{runs[1]['dilation']:.2f}"]
    return cells, min(result["efficiency"] for result in runs) >= WANTED


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument("--soc", default="mi9")
    parser.add_argument("--items", type=int, default=60)


def run(args: argparse.Namespace) -> int:
    out, rows, met = Path(args.out), [], 0
    check_writable(out)
    with tempfile.TemporaryDirectory() as folder:
        for model, processors in CASES:
            cells, good = measured(model, processors, args.soc, args.items, Path(folder))
            rows.append(cells)
            met += good
            print(markdown_row(cells), file=sys.stderr)
    lines = [
        *(f"# Pipelines on emulated processors of {args.soc}", "", f"    {command_line()}", ""),
        *(f"{args.items} items; times of the chip.", "", *markdown_table(HEADS, rows), ""),
        f"At least {WANTED:g} of the ideal on both clocks: {met} of {len(rows)}.",
    ]
    write_text(out, "\n".join([*lines, ""]))
    return 0
