"""ResNet-18 and MobileNetV2 served over HTTP on two cores, measured, and predicted by `simulate`.

    python scripts/serving --out docs/results/serving.md
    python scripts/serving --out serving.md --requests 60      small, to see that all of it works

Clients are processes of their own that do not import nnstretch and send 600 KB of binary tensors at
exponential gaps. Wants a machine with two cores on which nothing else runs. Finished rows go to a
journal beside --out (`NAME.rows.jsonl`), so that a run that was stopped goes on where it was;
networks and what they were measured to cost stay in --work. Without journal and --work all begins
anew, as it must when the code has changed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from servers import Bench
from serving_page import page
from serving_rows import (
    LOADS,
    NETWORK_NAMES,
    POLICIES,
    TODAY,
    alone,
    saturated,
    saturated_inside,
    served_row,
    today_row,
)

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.files.journal import append_rows, resume_journal

FEWEST = 60
START_S = 12.0
"""What a row takes beside its requests: a server starts, `simulate` predicts."""
SATURATED = 600
"""Requests at most of a saturated row."""
Rows = dict[str, dict[str, Any]]


class Journal:
    """Rows by name; those of other numbers of requests are measured again."""

    def __init__(self, path: Path, requests: int) -> None:
        self._path, self._requests = path, requests
        self.rows: Rows = {}
        for row in resume_journal(path):
            if row["of"] == requests:
                self.rows[row["row"]] = row

    def row(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name not in self.rows:
            began_s = time.monotonic()
            row = {"row": name, "of": self._requests} | measure()
            row["took_s"] = time.monotonic() - began_s
            append_rows(self._path, [row])
            self.rows[name] = row
            print(f"{name}: {row['took_s']:.0f} s", file=sys.stderr, flush=True)
        return self.rows[name]


def arguments() -> ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument("--requests", type=int, default=2000, metavar="N", help="a row (2000)")
    work = Path(tempfile.gettempdir()) / "nnstretch-serving"
    parser.add_argument("--work", type=Path, default=work, metavar="FOLDER")
    return parser


def measured(bench: Bench, journal: Journal, requests: int) -> float:
    """Measure all rows that the journal lacks; return the capacity, requests a second."""
    few = min(SATURATED, requests)
    bench.costs()
    for cores in (1, 2):
        journal.row(f"saturated/{cores}", partial(saturated, bench, cores, few))
        journal.row(f"inside/{cores}", partial(saturated_inside, bench, cores, few))
    journal.row("confined/1", partial(saturated, bench, 1, few, 1))
    for network in NETWORK_NAMES:
        journal.row(f"alone/{network}", partial(alone, bench, network))
    capacity_per_s: float = journal.rows["saturated/2"]["per_s"]
    planned: dict[str, tuple[float, Callable[[], dict[str, Any]]]] = {}
    for load in LOADS:
        for policy in POLICIES:
            measure = partial(served_row, bench, policy, load, capacity_per_s, requests)
            planned[f"served/{policy}/{load}"] = load, measure
        for name in TODAY:
            measure = partial(today_row, bench, name, load, capacity_per_s, requests)
            planned[f"today/{name}/{load}"] = load, measure
    missing = [load for row, (load, _) in planned.items() if row not in journal.rows]
    left_s = sum(requests / load / capacity_per_s + START_S for load in missing)
    print(f"{len(missing)} rows, about {left_s / 60:.0f} minutes", file=sys.stderr, flush=True)
    for name, (_, measure) in planned.items():
        journal.row(name, measure)
    return capacity_per_s


def run(args: Namespace) -> int:
    if args.requests < FEWEST:
        raise BadInput(f"--requests is {args.requests}, command line, write {FEWEST} or more")
    out = check_writable(args.out)
    assert out is not None
    journal = Journal(out.with_name(f"{out.stem}.rows.jsonl"), args.requests)
    capacity_per_s = measured(Bench(args.work), journal, args.requests)
    text = page(command_line(), journal.rows, capacity_per_s, args.requests)
    write_text(out, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: run(arguments().parse_args())))
