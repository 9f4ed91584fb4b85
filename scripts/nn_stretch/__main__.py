"""Compare every published NN-Stretch plan of the Mi 9 with the plan that a search finds at no fewer
MACs and parameters.

    python scripts/nn_stretch --out docs/results/reproduce_nn_stretch.md [--networks R-34,R-50]
    [--combinations C+D]

Six networks on C+G, C+D, G+D and C+G+D. Every search runs in a process of its own. Finished rows go
to a journal beside --out (`NAME.rows.jsonl`), so an interrupted run goes on where it stopped; rows
of other sources or data are searched again. `--no-search` writes the page from the journal alone.
`--limits alpha=0.7,segment_macs=0.6` loosens what a search must keep to. `--before FOLDER` searches
nothing and prices the published plans by another state of the chip's predictors, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from comparison_page import Results, page
from comparison_rows import COMBINATIONS, Row, Searched, Task, chosen, limits_of, tasks_of
from plans_page import plans_page
from published_plans import Phone
from search_journal import (
    SOC,
    Allowance,
    append,
    clean,
    code_fingerprint,
    fresh,
    read_journal,
    run,
)

from nnstretch.bench.commands import command_parser, run_command
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.stretch.search.constraints import SegmentLimits


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """Limits of the searches, and where finished ones are kept."""

    limits: Mapping[str, float]
    journal: Path | None
    search: bool
    keep_old: bool
    allowance: Allowance


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--networks",
        default=None,
        metavar="A,B",
        help="default all: R-34,R-50,RX-1.6,RX-4,EN-L4,EN-B5",
    )
    parser.add_argument(
        "--combinations", default=None, metavar="A,B", help=f"default all: {','.join(COMBINATIONS)}"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.md",
        default=None,
        help="where to write the page, and the journal beside it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the page"
    )
    parser.add_argument(
        "--limits",
        default=None,
        metavar="NAME=X,..",
        help=f"of {', '.join(asdict(SegmentLimits()))}; others keep their defaults",
    )
    parser.add_argument(
        "--before",
        metavar="FOLDER",
        default=None,
        help="a chip to price the published plans with, too; no search",
    )
    parser.add_argument("--no-search", action="store_true", help="use the journal's rows only")
    parser.add_argument(
        "--keep-old",
        action="store_true",
        help="keep rows of other code or data; the page counts them",
    )
    parser.add_argument(
        "--timeout-s", type=float, default=1800.0, help="limit of one search (default 1800)"
    )
    parser.add_argument(
        "--memory-gb", type=float, default=6.0, help="limit of one search's process (default 6)"
    )
    return parser


def settings_of(args: argparse.Namespace) -> ComparisonSettings:
    if args.timeout_s <= 0 or args.memory_gb <= 0:
        raise BadInput(
            f"--timeout-s is {args.timeout_s:g} and --memory-gb {args.memory_gb:g}, command line,"
            " both must be above 0"
        )
    limits = limits_of(args.limits, asdict(SegmentLimits()))
    SegmentLimits(**limits)
    out = check_writable(args.out)
    journal = None if out is None else out.with_name(f"{out.stem}.rows.jsonl")
    return ComparisonSettings(
        limits,
        journal,
        not args.no_search,
        args.keep_old,
        Allowance(args.timeout_s, int(args.memory_gb * 1e9)),
    )


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def ticking(label: str) -> Any:
    """Return what shows progress within one search, on a terminal only."""

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            say(f"\r{label} pricing {done}/{total} ", end="")

    return tell


def searched_row(
    task: Task, label: str, settings: ComparisonSettings, known: Mapping[Any, Searched], code: str
) -> tuple[Searched | None, bool]:
    """Return the row of a task, searched where the journal lacks it, and whether it is outdated."""
    row, reason = fresh(task, settings.limits, known, code)
    outdated = row is not None and row.code != code
    usable = outdated and settings.keep_old and row is not None and not row.stopped
    if not reason or not settings.search or usable:
        kept = row if not outdated or settings.keep_old or not settings.search else None
        source = "from the journal" if kept else "not searched"
        say(f"{label} {source}{f' ({reason})' if reason else ''}")
        return kept, outdated and kept is not None
    say(f"{label} searching: {reason}")
    row = run(task, settings.limits, settings.allowance, ticking(label))
    if settings.journal is not None:
        append(settings.journal, row)
    end = f"{row.latency_us / 1000:.2f} ms in {row.search_s:.1f} s" if row.found else row.refusal
    say(f"{label} {end}, {row.peak_bytes / 1e9:.2f} GB")
    return row, False


def compare(
    networks: str | None, combinations: str | None, settings: ComparisonSettings
) -> Results:
    phone = Phone(load_soc(SOC))
    names = chosen(networks, phone.networks, "--networks")
    asked = chosen(combinations, tuple(COMBINATIONS), "--combinations")
    originals, published = [], []
    for name in names:
        say(f"{name}: pricing the original and its published plans")
        originals.append(phone.original(name))
        published += list(phone.published(name))
    tasks = tasks_of(published, originals, asked)
    by_config = {p.config: p for p in published}
    by_name = {o.network: o for o in originals}
    known = read_journal(settings.journal) if settings.journal is not None else {}
    code = code_fingerprint()
    rows = []
    old_rows = 0
    for number, task in enumerate(tasks, 1):
        label = f"[{number}/{len(tasks)}] {task.network} {task.combination} at {task.bound.source}:"
        searched, outdated = searched_row(task, label, settings, known, code)
        old_rows += outdated
        plan = None if task.bound.borrowed else by_config[task.bound.source]
        rows.append(Row(by_name[task.network], task, plan, searched))
    order = list(COMBINATIONS)
    published.sort(key=lambda p: (names.index(p.network), order.index(p.combination)))
    return Results(
        tuple(originals),
        tuple(published),
        tuple(rows),
        settings.limits,
        settings.limits != asdict(SegmentLimits()),
        old_rows,
        phone.soc.provenance,
    )


def as_json(results: Results) -> dict[str, Any]:
    return {
        "limits": dict(results.limits),
        "provenance": results.provenance,
        "originals": [asdict(o) for o in results.originals],
        "published": [asdict(p) for p in results.published],
        "rows": [row_json(row) for row in results.rows],
        "old_rows": results.old_rows,
    }


def row_json(row: Row) -> dict[str, Any]:
    plan = row.plan
    data: dict[str, Any] = {
        "network": row.task.network,
        "combination": row.task.combination,
        "bound": asdict(row.task.bound),
        "published": row.published and row.published.config,
        "fastest": row.fastest,
        "fastest_us": row.fastest_us,
        "sum_of_rates": row.rates,
        "met": row.met,
        "searched": row.searched and clean(row.searched),
    }
    if plan is not None:
        data |= {
            "speedup_vs_fastest": row.fastest_us / plan.latency_us,
            "speedup_vs_iso_mac": plan.iso_mac_us / plan.latency_us,
            "speedup_vs_published": row.published and row.published.predicted_us / plan.latency_us,
            "limit": row.limit(plan.macs),
            "share_of_limit": row.share(plan.latency_us, plan.macs),
        }
    return data


def main() -> int:
    args = arguments().parse_args()
    torch.set_num_threads(1)
    settings = settings_of(args)
    if args.before is not None:
        text = plans_page(load_soc(args.before), load_soc(SOC))
        if args.out is not None:
            write_text(Path(args.out), text)
        print(text)
        return 0
    results = compare(args.networks, args.combinations, settings)
    text = page(results)
    if args.out is not None:
        write_text(Path(args.out), text)
    print(json.dumps(as_json(results)) if args.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
