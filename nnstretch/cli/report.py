"""One HTML page that shows a whole story: plan, timeline, latency terms, search, training.

FOLDER holds any of summary.json, search.json, run_original.json, run_branched.json,
trace_original.json, trace_branched.json, training_original.json, training_branched.json and
plan.yaml; the page shows what is there and says what is not. It needs no network to be opened.
FOLDER may also be one trace of `nnstretch run --trace`. Of a pipeline it holds any of
partition.json, run_pipeline.json and trace_pipeline.json: what `partition --json` prints, and `run
--mode pipeline --json --trace trace_pipeline.json`. Where a trace holds a prediction and a run,
both are drawn on top of each other, and the five sub-graphs that are furthest from their prediction
are named, on the page and with --json.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.common import check_writable

if TYPE_CHECKING:
    from rich.console import Console

SUMMARY = "show a whole story as one HTML page"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        help="folder with search.json and its neighbours, or one trace",
    )
    parser.add_argument(
        "--out", metavar="FILE.html", type=Path, required=True, help="page to write"
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.report import write_report
    from nnstretch.report.load.trace_diff import largest

    check_writable(args.out, args.folder)
    report_data = write_report(args.folder, args.out)
    differences = largest(report_data.timelines, report_data.runs)
    return {
        "report": str(args.out),
        "differences": [
            {**asdict(difference), "ratio": difference.ratio} for difference in differences
        ],
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    for difference in result["differences"]:
        said = (
            f"{difference['subgraph']} on {difference['processor']} ({difference['network']}):"
            f" predicted {difference['predicted_ms']:.3f} ms, {difference['timing']}"
        )
        ratio = "" if difference["ratio"] is None else f", {difference['ratio']:.2f} times"
        console.print(
            f"{said} {difference['measured_ms']:.3f} ms{ratio}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"wrote {result['report']}", markup=False, highlight=False, soft_wrap=True)
