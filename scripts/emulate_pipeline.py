"""Pipelines of three and four stages on emulated processors.

How much of what the slowest stage allows, on both clocks.

    python scripts/emulate_pipeline.py --out docs/results/pipeline_emulation.md [--items 60]

The ideal is a result each time the slowest stage is through with an item. On the real clock stages
are threads that compute the true numbers and last their predicted times on a clock that is slowed
down by `dilation`, so that this host can keep it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench_host import nnstretch

from nnstretch.cli.common import check_writable
from nnstretch.errors import NnstretchError, one_line
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
    *(
        "virtual: a result every ms",
        "of the ideal",
        "real: a result every ms",
        "of the ideal",
        "late",
        "dilation",
    ),
)


def row(model: str, processors: str, soc: str, items: int, folder: Path) -> tuple[str, bool]:
    path, count = folder / "net.nns", processors.count(",") + 1
    split = nnstretch(
        "partition",
        model,
        "--soc",
        soc,
        "--processors",
        processors,
        "--stages",
        count,
        "--out",
        path,
    )
    virtual, real = (
        nnstretch(
            "run", path, "--mode", "pipeline", "--soc", soc, "--clock", clock, "--repeat", items
        )
        for clock in ("virtual", "real")
    )
    cells = [
        model.partition(":")[2],
        processors,
        f"{split['bottleneck_ms']:.2f}",
        f"{split['balance']:.3f}",
    ]
    for found in (virtual, real):
        cells += [f"{found['period_ms']:.2f}", f"{found['efficiency']:.3f}"]
    cells += [
        f"{sum(stage['late'] for stage in real['stages'])} of {count * items}",
        f"{real['dilation']:.2f}",
    ]
    return f"| {' | '.join(cells)} |", min(virtual["efficiency"], real["efficiency"]) >= WANTED


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument("--soc", default="mi9")
    parser.add_argument("--items", type=int, default=60)
    args = parser.parse_args()
    out, rows = check_writable(args.out), []
    assert out is not None
    with tempfile.TemporaryDirectory() as folder:
        for model, processors in CASES:
            rows.append(row(model, processors, args.soc, args.items, Path(folder)))
            print(rows[-1][0], file=sys.stderr)
    command = f"python scripts/emulate_pipeline.py {' '.join(sys.argv[1:])}"
    lines = [
        f"# Pipelines on emulated processors of {args.soc}",
        "",
        f"    {command}",
        "",
        f"{args.items} items; times of the chip.",
        "",
    ]
    lines += [
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(text for text, _ in rows),
        "",
    ]
    met = sum(good for _, good in rows)
    lines.append(f"At least {WANTED:g} of the ideal on both clocks: {met} of {len(rows)}.")
    write_text(out, "\n".join([*lines, ""]))


if __name__ == "__main__":
    try:
        main()
    except NnstretchError as refusal:
        sys.exit(f"nnstretch: {one_line(refusal)}")
