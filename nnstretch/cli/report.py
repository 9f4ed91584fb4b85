"""One HTML page that shows a whole story: plan, timeline, latency terms, search, training.

FOLDER holds any of summary.json, search.json, run_original.json, run_branched.json,
trace_original.json, trace_branched.json, training_original.json, training_branched.json, plan.yaml,
and the folders original and branched of `train --out`; the page shows what is there and says what
is not. It needs no network to be opened.
FOLDER may also be one trace of `nnstretch run --trace`. Of a pipeline it holds any of
partition.json, run_pipeline.json and trace_pipeline.json: what `partition --json` prints, and `run
--mode pipeline --json --trace trace_pipeline.json`. Where a trace holds a prediction and a run,
both are drawn on top of each other, and the five sub-graphs that are furthest from their prediction
are named, on the page and with --json. FOLDER may be what
`nnstretch simulate sweep --out` or `nnstretch accelerate --out` wrote, or a file with what
`nnstretch simulate --json` printed: latency against rate, policies, pools, queues; groups, memory,
engines, roofline.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BrokenFile
from nnstretch.files.read import as_path

if TYPE_CHECKING:
    from rich.console import Console

ALONE = ("journal.jsonl", "chip.json")
"""Files that make a page by themselves, in folders of `simulate sweep` and `accelerate`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    folder = (
        "folder with search.json and its neighbours, one trace, a sweep's journal, or a chip.json"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help=folder)
    out = "page to write (FOLDER/report.html; beside a file FILE.html)"
    parser.add_argument("--out", metavar="FILE.html", type=Path, help=out)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.report import write_report
    from nnstretch.report.load.trace_diff import largest

    as_path(args.folder, "FOLDER")
    out = default_page(args.folder) if args.out is None else args.out
    check_writable(out, args.folder, *readable_files(args.folder))
    source = story_of(args.folder)
    if source.is_file() and write_special(source, out):
        return {"report": str(out), "differences": []}
    report_data = write_report(args.folder, out)
    largest_differences = largest(report_data.timelines, report_data.runs)
    differences = [{**asdict(d), "ratio": d.ratio} for d in largest_differences]
    return {"report": str(out), "differences": differences}


def readable_files(source: Path) -> list[Path]:
    """Return files that a page of a folder or a file may be made of, there or not.

    A sweep's journal is read with the decision times beside it.
    """
    from nnstretch.report.load.folder import ALL_FILES
    from nnstretch.report.simulations.sweep_data import DECISIONS

    if source.is_file():
        return [source.with_name(DECISIONS)] if source.suffix == ".jsonl" else []
    return [source / name for name in (*ALL_FILES, *ALONE, DECISIONS)]


def default_page(source: Path) -> Path:
    """Return where the page of a folder or of a file goes where nobody says: in it, or beside."""
    return source / "report.html" if source.is_dir() else source.with_suffix(".html")


def story_of(folder: Path) -> Path:
    """Return the sweep's journal or the chip.json of a folder that holds nothing else to show."""
    from nnstretch.report.load.folder import FILES
    from nnstretch.report.load.pipeline import PIPELINE_FILES

    if any((folder / name).exists() for name in (*FILES, *PIPELINE_FILES)):
        return folder
    alone = (folder / name for name in ALONE)
    return next((path for path in alone if path.is_file()), folder)


def write_special(path: Path, out: Path) -> bool:
    """Write the page of a sweep's journal, of a simulation or of a chip; False for other files.

    Raises BrokenFile for a chip.json or a journal that is none.
    """
    from nnstretch.files.atomic import write_text
    from nnstretch.report.chips.chip_page import chip_page
    from nnstretch.report.chips.chip_view import ChipView
    from nnstretch.report.load.json_files import decode_at, read_json
    from nnstretch.report.simulations.simulation_page import simulation_page
    from nnstretch.report.simulations.sweep_data import read_sweep_data
    from nnstretch.report.simulations.sweep_page import sweep_page
    from nnstretch.report.simulations.views import SimulationView

    if path.suffix == ".jsonl":
        write_text(out, sweep_page(read_sweep_data(path)))
        return True
    document = read_json(path)
    if path.name == "chip.json" and not (isinstance(document, dict) and "chip" in document):
        raise BrokenFile(f"no chip, {path}, needed is what nnstretch accelerate --out writes")
    if not isinstance(document, dict):
        return False
    if {"chip", "engines", "buffers"} <= document.keys():
        chip_view: ChipView = decode_at(ChipView, document, str(path))
        write_text(out, chip_page(chip_view))
        return True
    if not {"apps", "policy"} <= document.keys():
        return False
    view: SimulationView = decode_at(SimulationView, document, str(path))
    write_text(out, simulation_page(view))
    return True


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    for d in result["differences"]:
        where = f"{d['subgraph']} on {d['processor']} ({d['network']})"
        predicted = f"predicted {d['predicted_ms']:.3f} ms"
        played = f"{d['timing']} {d['measured_ms']:.3f} ms"
        ratio = "" if d["ratio"] is None else f", {d['ratio']:.2f} times"
        _print(f"{where}: {predicted}, {played}{ratio}", console)
    _print(f"wrote {result['report']}", console)


def _print(line: str, console: Console) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
