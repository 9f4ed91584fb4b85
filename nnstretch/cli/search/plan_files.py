"""Files of the plans that a search returns: the best, and a folder of all."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.output_path import check_replaceable
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.stretch.search.search_result import SearchResult

NUMBERED = re.compile(r"plan[1-9][0-9]*\.yaml")


def check_folder(args: argparse.Namespace) -> None:
    """Check the folder of --out-dir before any long work.

    Raises BadInput where it cannot be written, or holds plans that may not be replaced.
    """
    if args.out_dir is None:
        return
    folder: Path = args.out_dir
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cannot write {folder}, it is a file, name a folder")
    if not folder.exists() and not folder.parent.is_dir():
        raise BadInput(f"cannot write {folder}, no folder {folder.parent}, create it first")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise BadInput(f"cannot write {folder}, no permission, name another --out-dir")
    plans = [path.name for path in numbered_plans(folder)]
    if blocked := [path for path in numbered_plans(folder) if path.is_dir()]:
        raise BadInput(f"cannot write {blocked[0]}, it is a folder, name another --out-dir")
    check_replaceable(folder, ", ".join(plans[:3]) or None, args.overwrite, "--out-dir")


def numbered_plans(folder: Path) -> list[Path]:
    """Return the plans in a folder that bear a name of --out-dir."""
    return [path for path in sorted(folder.glob("plan*.yaml")) if NUMBERED.fullmatch(path.name)]


def plan_paths(folder: Path | None, count: int) -> list[Path]:
    """Return the files of the first plans in a folder of --out-dir; none without a folder."""
    return [] if folder is None else [folder / f"plan{n}.yaml" for n in range(1, count + 1)]


def write_plans(
    args: argparse.Namespace, graph: Graph, result: SearchResult, out: Path | None
) -> list[str]:
    """Write the best plan to a file, and the plans of --top to --out-dir, where asked for.

    Older plans in the folder go, so that none of another search stays among them; but a search
    that ended before its first plan leaves what is there. Return why so, a line for each place.
    """
    from nnstretch.files.plan_prediction import predicted_section
    from nnstretch.files.plan_yaml import write_plan
    from nnstretch.predict.load_soc import soc_sha256

    kept = kept_places(args.out_dir, result, out)
    files = [] if out is None or out in kept else [(out, result.plans[0])]
    if args.out_dir is not None and args.out_dir not in kept:
        args.out_dir.mkdir(exist_ok=True)
        for older in numbered_plans(args.out_dir):
            older.unlink()
        plans = result.plans[: args.top]
        files += zip(plan_paths(args.out_dir, len(plans)), plans, strict=True)
    for path, plan in files:
        predicted = None
        # Other verbs refuse kernels that were never measured.
        if args.fallback is None:
            predicted = predicted_section(plan.trial, graph, soc_sha256(args.soc))
        write_plan(path, plan.trial.plan, predicted)
    ended = "interrupted" if result.interrupted else "out of time"
    why = f"search of {graph.name}, {ended} before it met a plan"
    return [f"{place} stays as it was, {why}" for place in kept]


def kept_places(folder: Path | None, result: SearchResult, out: Path | None) -> list[Path]:
    """Return the file and folder whose older plans stay: the original is no reason to lose them."""
    if result.searched:
        return []
    kept = [] if out is None or not out.exists() else [out]
    return kept if folder is None or not numbered_plans(folder) else [*kept, folder]
