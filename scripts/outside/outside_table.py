"""Networks that others made: captured, priced, searched, split in two; seconds, or the reason.

    python scripts/outside table --journal outside.jsonl --out docs/results/outside.md

Each network runs in a process of its own with a time limit, and is a line of the journal when it
ends, so that an interrupted run goes on where it stopped; `--again NAME` runs one anew. Pages are
written from the journal alone with `--page-only`.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outside_networks import FAMILIES, SEED, OutsideNetwork, all_networks
from outside_trial import TrialRow, child

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.files.journal import append_rows, decode_row, read_journal, resume_journal
from nnstretch.profile.machine import description

HEADS = (
    *("network", "from", "GMACs", "capture s", "equal", "price s", "search s", "vs fastest alone"),
    *("proof", "partition s", "export s", "parts equal", "reason"),
)
SLOW_S, SLOW_GMACS = 60, 20
EQUAL = 1e-4
"""Of the largest number of an output; float32 sums in another order differ by about 1e-6."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", type=Path, default=Path("outside.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/outside.md"))
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of networks")
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="once more")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th network, from I")
    parser.add_argument("--search-s", type=float, default=20, help="time limit of a search (20)")
    parser.add_argument("--timeout-s", type=float, default=200, help="of one network (200)")
    parser.add_argument("--page-only", action="store_true", help="write the page, run nothing")


def run(args: argparse.Namespace) -> int:
    networks = all_networks()
    if not args.page_only:
        first, _, step = args.part.partition("/")
        if step == "1":
            resume_journal(args.journal)  # cuts off a row that was not written to its end
        known = set(latest(args.journal)) - set(args.again)
        for network in networks[int(first) :: int(step)]:
            if fnmatch.fnmatch(network.name, args.only) and network.name not in known:
                row = run_one(network, args.search_s, args.timeout_s)
                append_rows(args.journal, [asdict(row)])
                print(asdict(row), flush=True)
    if args.part == "0/1":
        write_page(args, [row for n in networks if (row := latest(args.journal).get(n.name))])
    return 0


def latest(journal: Path) -> dict[str, TrialRow]:
    """The last row of every network."""
    rows: dict[str, TrialRow] = {}
    for number, line in enumerate(read_journal(journal), 1):
        row = decode_row(TrialRow, line, journal, number)
        rows[row.name] = row
    return rows


def run_one(network: OutsideNetwork, search_s: float, timeout_s: float) -> TrialRow:
    """The row of one network, with the reason where its process ended early."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(network.name, search_s, theirs))
    process.start()
    theirs.close()
    row = TrialRow(network.name, network.group)
    ended = ""
    while True:
        try:
            if not ours.poll(timeout_s):
                ended = f"a step took more than {timeout_s:.0f} s"
                break
            row = TrialRow(**ours.recv())
        except EOFError:
            break
    process.kill()
    process.join()
    done = row.reason or row.parts_error is not None
    if not done and not ended:
        ended = "the process was ended, by memory or a signal"
    return replace(row, reason=row.reason or ended)


def cells(row: TrialRow) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0e}" + ("" if value <= EQUAL else " **no**")

    return (
        row.name,
        row.group,
        "-" if row.gmacs is None else f"{row.gmacs:.2f}",
        seconds(row.captured_s),
        share(row.error),
        seconds(row.priced_s),
        seconds(row.searched_s),
        "-" if row.speedup is None else f"{row.speedup:.2f}x",
        row.search_note,
        seconds(row.partitioned_s),
        seconds(row.exported_s),
        share(row.parts_error),
        re.sub(r"\S*/site-packages/", "", row.reason),
    )


def write_page(args: argparse.Namespace, rows: list[TrialRow]) -> None:
    """Write the page of results."""
    captured = [row for row in rows if row.captured_s is not None]
    partitioned = [row for row in captured if row.parts_error is not None]
    equal = [row for row in partitioned if max(row.error or 0, row.parts_error or 0) <= EQUAL]
    slow = [row.name for row in captured if is_slow(row)]
    write_text(
        args.out,
        "\n".join(
            [
                "# Networks from outside",
                "",
                f"`{command_line()}`",
                "",
                f"On {description()}, one thread each of {os.cpu_count()} cores; chip mi9, kernels that were never",
                "measured priced as the nearest kind. Weights of ONNX files are their own, all others random. `equal`: the",
                "largest difference of the rebuilt graph from ONNX Runtime (files) or PyTorch (modules), over the largest",
                "number of that output; `parts equal`: of both stages, exported and run by ONNX Runtime in a row. A search",
                f"has {args.search_s:.0f} s. Of each of {FAMILIES} timm families, drawn by seed {SEED}, one network.",
                "",
                f"{len(rows)} networks: {len(captured)} captured, {len(partitioned)} partitioned in two and run,"
                f" {len(equal)} of these equal to {EQUAL:g} whole and in parts.",
                f"Steps above {SLOW_S} s below {SLOW_GMACS} GMACs: {', '.join(slow) or 'none'}.",
                "",
                *markdown_table(HEADS, [cells(row) for row in rows]),
                "",
            ]
        ),
    )


def is_slow(row: TrialRow) -> bool:
    steps: tuple[Any, ...] = (
        row.captured_s,
        row.priced_s,
        row.searched_s,
        row.partitioned_s,
        row.exported_s,
    )
    return (row.gmacs or 0) < SLOW_GMACS and any((step or 0) > SLOW_S for step in steps)
