"""The result of `nnstretch partition` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import warn_uncalibrated

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    console.print(stage_table(result))
    for line in [*balance_lines(result), *limit_lines(result), *candidate_lines(result)]:
        console.print(line)
    if result["bundle"] is not None:
        error = f"{result['max_abs_error']:.2g}"
        console.print(f"{result['bundle']} written, largest difference from the network {error}")
    for name, kind in result["fallbacks"].items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    warn_uncalibrated(result, console)
    console.print(f"source: {result['provenance']}")


def stage_table(result: dict[str, Any]) -> Table:
    """Return a table of the stages."""
    from rich.table import Table

    columns = ("stage", "from", "to", "MMACs", "processor", "latency ms", "transfer ms", "± ms")
    table = Table(*columns, title=f"{result['model']} on {result['soc']}")
    for number, stage in enumerate(result["stages"]):
        transfer_ms = stage["transfer_in_ms"] + stage["transfer_out_ms"]
        table.add_row(
            str(number),
            stage["start"],
            stage["end"],
            f"{stage['macs'] / 1e6:,.1f}",
            " | ".join(stage["processors"]),
            f"{stage['latency_ms']:.2f}",
            f"{transfer_ms:.2f}",
            f"{stage['error_ms']:.2f}",
        )
    return table


def balance_lines(result: dict[str, Any]) -> list[str]:
    """Return lines about the bottleneck, predicted and measured, and about balance."""
    from nnstretch.report.chapters.pipeline import best_of

    proven = best_of(result["split_at"])
    if result["why_open"]:
        proven = f"not proven best: {result['why_open']}"
    bound_ms = result["bound_ms"]
    limit = f"; no split between layers beats {bound_ms:.2f} ms" if bound_ms is not None else ""
    lines = [f"a result every {result['bottleneck_ms']:.2f} ms predicted ({proven}){limit}"]
    if "measured_ms" in result:
        error = result["bottleneck_ms"] / result["measured_ms"] - 1
        lines.append(
            f"a result every {result['measured_ms']:.2f} ms measured here, {error:+.1%} predicted"
        )
    lines.append(
        f"balance {result['balance']:.3f}, one item takes {result['latency_ms']:.2f} ms,"
        f" {result['throughput_per_s'] or 0:.1f} items/s"
    )
    return lines


def limit_lines(result: dict[str, Any]) -> list[str]:
    """Return lines that compare with single processors and with the ideal."""
    lines = []
    if (speedup := result["speedup_vs_fastest"]) is not None:
        lines.append(f"{speedup:.2f}x the throughput of {result['fastest']} alone")
    if (share := result["share_of_ideal"]) is not None:
        lines.append(
            f"{share:.1%} of the rates of all its processors added up ({result['ideal_ms']:.2f} ms)"
        )
    return lines


def candidate_lines(result: dict[str, Any]) -> list[str]:
    """Return a line for each candidate behind the best."""
    lines = []
    for rank, candidate in enumerate(result["candidates"][1:], 2):
        stages = candidate["stages"]
        ends = ", ".join(f"{stage['processor']} to {stage['end']}" for stage in stages)
        measured = ""
        if "measured_ms" in candidate:
            measured = f"{candidate['measured_ms']:.2f} ms measured, "
        lines.append(
            f"candidate {rank}: {measured}{candidate['bottleneck_ms']:.2f} ms,"
            f" balance {candidate['balance']:.3f}, {ends} {candidate['bundle'] or ''}"
        )
    return lines
