"""The table of networks: a line of the journal for each that ends, and the page made of it.

Each network is drawn with random weights and norm statistics, translated, compiled against one
build of the runtime with both kernel sets, and compared on three inputs (largest difference over
largest magnitude). Times are the least of all turns, PyTorch eager and both kernel sets in turns,
one thread. Networks that are refused are listed with the operators that are missing.
"""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from cpp_trial import INPUTS, LIMIT, NetworkRow, build_runtime, examine
from cpp_zoo import names, work_gmacs
from printed_rows import read_printed

from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.files.journal import append_rows, decode_row, read_journal, resume_journal

PAGE = Path("docs/results/cpp_networks.md")
COMMAND = "python scripts/cpp_networks table --timm"
"""With a number of networks, whatever part made the last rows: the page is of the whole journal."""
HEADS = (
    *("network", "calls", "oneDNN's", "error, portable", "error, oneDNN", "translate s", "build s"),
    *("eager ms", "portable ms", "oneDNN ms", "arena MB", "alive MB", "least MB"),
)


def cells(row: NetworkRow) -> tuple[str, ...]:
    """Return a row of the table."""
    seconds = (f"{row.translate_s:.1f}", f"{row.build_s:.1f}")
    times = (f"{row.eager_ms:.1f}", f"{row.portable_ms:.1f}", f"{row.onednn_ms:.1f}")
    return (
        *(row.name, str(row.calls), str(row.library_calls)),
        *(f"{row.portable_error:.1e}", f"{row.onednn_error:.1e}", *seconds, *times),
        *(f"{row.arena_mb:.2f}", f"{row.alive_mb:.2f}", f"{row.least_mb:.2f}"),
    )


def page(rows: list[NetworkRow], timm: int, asked: int, kept: int) -> str:
    """Return the page of results; `kept`: how many rows an earlier page had."""
    built = [row for row in rows if not row.reason]
    right = [row for row in built if row.is_right]
    tight = [row for row in built if row.arena_mb <= 1.1 * row.alive_mb]
    least = [row for row in built if row.arena_mb <= 1.001 * row.least_mb]
    lines = [
        "# Networks as C++",
        "",
        f"{len(rows)} networks of {asked}: {len(built)} translated and built, {len(right)} of them"
        f" within {LIMIT:g} of PyTorch with both kernel sets (largest difference over largest"
        f" magnitude, {INPUTS} inputs each), {len(rows) - len(built)} refused. The arena is at most"
        f" 1.1 times the most bytes alive in {len(tight)} where calls run one after the other, and"
        f" as small as any arena can be where tasks run at once in {len(least)} (least: tensors of"
        " which no two may share memory).",
        "",
        f"Made by `{COMMAND} {timm}`, one thread, both kernel sets in turns with PyTorch eager, the"
        " least of all turns; other programs ran on the machine, so that only numbers of one row"
        " may be compared, and those roughly."
        + (f" {kept} rows are kept from earlier runs, as they were printed." if kept else ""),
        "",
        *markdown_table(HEADS, [cells(row) for row in built]),
    ]
    return "\n".join([*lines, *remarks(built, rows), ""])


def remarks(built: list[NetworkRow], rows: list[NetworkRow]) -> list[str]:
    """Return what is said of networks that are not within the limit, or refused."""
    lines: list[str] = []
    wrong = [row for row in built if not row.is_right]
    if wrong:
        lines += ["", "Beyond the limit, with random weights and norm statistics:", ""]
        lines += [
            f"- {row.name}: PyTorch's own answers differ from those in float64 by {row.own_error:.1e}"
            for row in wrong
        ]
    refused = [(row.name, row.reason) for row in rows if row.reason]
    if refused:
        lines += ["", "Refused:", "", *markdown_table(("network", "why"), refused)]
    return lines


def latest(journal: Path) -> dict[str, NetworkRow]:
    """Return the last row of every network."""
    rows: dict[str, NetworkRow] = {}
    for number, line in enumerate(read_journal(journal), 1):
        row = decode_row(NetworkRow, line, journal, number)
        rows[row.name] = row
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--timm", type=int, default=40, help="how many networks of timm")
    parser.add_argument("--runtime", type=Path, help="where the runtime is, or is to be, built")
    parser.add_argument("--journal", type=Path, default=Path("cpp_networks.jsonl"))
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write at the end")
    parser.add_argument("--page-only", action="store_true", help="write the page, run nothing")
    parser.add_argument(
        "--keep", action="store_true", help="keep the page's rows of networks the journal lacks"
    )


def runtime_in(folder: Path) -> Path:
    """Return the runtime's archive, built where the folder lacks it."""
    archive = folder / "libnnstretch_runtime.a"
    return archive if archive.is_file() else build_runtime(folder)


def run(args: argparse.Namespace) -> int:
    """Examine the networks that the journal lacks, and write the page."""
    torch.set_num_threads(1)
    all_names = names(args.timm)
    if not args.page_only:
        resume_journal(args.journal)  # cuts off a row that was not written to its end
    known = latest(args.journal)
    with tempfile.TemporaryDirectory() as folder:
        runtime = None
        for name in [] if args.page_only else sorted(all_names, key=work_gmacs):
            if name in known or not any(fnmatch.fnmatch(name, p) for p in args.only):
                continue
            runtime = runtime or runtime_in(args.runtime or Path(folder) / "runtime")
            with tempfile.TemporaryDirectory(dir=folder) as work:
                row = examine(name, Path(work), runtime)
            append_rows(args.journal, [asdict(row)])
            print(row, flush=True)
    printed = read_printed(args.out) if args.keep else {}
    rows = printed | latest(args.journal)
    listed = [rows[name] for name in all_names if name in rows]
    kept = sum(row is printed.get(row.name) for row in listed)
    write_text(args.out, page(listed, args.timm, len(all_names), kept))
    return 0
