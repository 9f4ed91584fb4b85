"""One HTML page that shows a whole story: plan, timeline, latency terms, search, training.

FOLDER holds any of summary.json, search.json, run_original.json, run_branched.json, trace_original.json,
trace_branched.json, training_original.json, training_branched.json and plan.yaml; the page shows what is
there and says what is not. It needs no network to be opened.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

SUMMARY = "show a whole story as one HTML page"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder with search.json and its neighbours")
    parser.add_argument("--out", metavar="FILE.html", type=Path, required=True, help="page to write")


def main(args: argparse.Namespace) -> dict[str, Any]:
    from nnstretch.report import write_report

    write_report(args.folder, args.out)
    return {"report": str(args.out)}


def show(result: dict[str, Any], console: Console) -> None:
    console.print(f"wrote {result['report']}", markup=False, highlight=False, soft_wrap=True)
