"""`nnstretch profile --check FOLDER`: kernels measured again, then beside now, and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def check_json(folder: str) -> dict[str, Any]:
    """Check a profile and return the result as JSON data.

    Raises BadInput or BrokenFile for a folder that is no profile.
    """
    import numpy as np

    from nnstretch.cli.progress import progress_stages
    from nnstretch.profile.check_profile import FITS, check_profile

    with progress_stages() as progress:
        check = check_profile(Path(folder), progress)
    rows = [
        {
            "kernel": kernel.name,
            "then_us": kernel.then_us,
            "now_us": kernel.now_us,
            "ratio": kernel.ratio,
            "steady": kernel.steady,
        }
        for kernel in check.kernels
    ]
    return {
        "profile": folder,
        "kernels": rows,
        "median_ratio": float(np.median(check.ratios)) if check.ratios else None,
        "changed": list(check.changed),
        "verdict": check.verdict,
        "usable": check.verdict == FITS,
    }


def show_check(result: dict[str, Any], console: Any) -> None:
    """Print a check for people."""
    from rich.table import Table

    table = Table("kernel", "then us", "now us", "now / then")
    for row in result["kernels"]:
        ratio = f"{row['ratio']:.2f}" if row["steady"] else "disturbed"
        table.add_row(row["kernel"], f"{row['then_us']:.1f}", f"{row['now_us']:.1f}", ratio)
    console.print(table)
    for line in result["changed"]:
        console.print(f"[yellow]changed:[/yellow] {line}")
    steady = sum(row["steady"] for row in result["kernels"])
    median = "-" if result["median_ratio"] is None else f"{result['median_ratio']:.3f}"
    console.print(
        f"{result['profile']}: {result['verdict']}; {steady} of {len(result['kernels'])} kernels"
        f" undisturbed, median now / then {median}"
    )
