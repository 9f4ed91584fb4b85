"""A prediction as tables."""

from __future__ import annotations

from typing import Any

from nnstretch.cli.progress import show_machines, warn_uncalibrated
from nnstretch.errors import name_first


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    if "plans" in result:
        table = Table("configuration", "predicted ms")
        for name, ms in result["plans"].items():
            table.add_row(name, f"{ms:.2f}")
        console.print(table)
    elif "plan_latency_ms" in result:
        show_segments(result, console)
    else:
        table = Table("processor", "predicted ms", "± ms")
        for name, ms in result["latency_ms"].items():
            error_ms = result["error_ms"][name]
            table.add_row(name, *(("-", "-") if ms is None else (f"{ms:.2f}", f"{error_ms:.2f}")))
        console.print(table)
    show_doubts(result, console)
    for name, kind in result.get("fallbacks", {}).items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    show_machines(result, console)
    warn_uncalibrated(result, console)
    console.print(f"source: {result['provenance']}")


def show_segments(result: dict[str, Any], console: Any) -> None:
    """Print a plan's latency and its terms, segment by segment."""
    from rich.table import Table

    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}: {result['plan_latency_ms']:.2f} ms"
        f" ± {result['error_ms']:.2f} predicted"
    )
    table = Table("segment", "ms", "sync", "merge", "branches (in + compute + out, ms)")
    for segment in result["segments"]:
        branches: list[str] = []
        for branch in segment["branches"]:
            terms = (branch[f"{term}_ms"] for term in ("transfer_in", "compute", "transfer_out"))
            branches.append(branch["processor"] + " " + " + ".join(f"{ms:.2f}" for ms in terms))
        times = (f"{segment[f'{term}_ms']:.2f}" for term in ("latency", "sync", "merge"))
        table.add_row(f"{segment['start']} -> {segment['end']}", *times, "  |  ".join(branches))
    console.print(table)


def show_doubts(result: dict[str, Any], console: Any) -> None:
    """Print what speaks against a plan, and kernels without a price or outside of the measured."""
    for doubt in result.get("doubts", ()):
        console.print(f"[yellow]note:[/yellow] {doubt}")
    doubts: dict[tuple[str, str, str], list[str]] = {}
    for row in result.get("outside", ()):
        what, _, numbers = row["reason"].partition(" ")
        key = row["processor"], row["kind"], what if numbers[:1].isdigit() else row["reason"]
        doubts.setdefault(key, []).append(f"{row['name']} ({row['reason']})")
    for processor, names in result.get("unpriced", {}).items():
        console.print(f"[red]no price on {processor}, never measured:[/red] {', '.join(names)}")
    if doubts:
        console.print("[yellow]outside of what was measured, so errors are wider:[/yellow]")
    for (processor, kind, _), kernels in doubts.items():
        console.print(f"  {processor}: {kind} {name_first(kernels)}")
