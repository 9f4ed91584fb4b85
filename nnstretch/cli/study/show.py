"""A study's result as tables."""

from __future__ import annotations

from typing import Any

from nnstretch.cli.console import branches_text
from nnstretch.cli.progress import warn_uncalibrated


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}, study {result['name']} of"
        f" {result['objective']}"
    )
    console.print(
        f"{result['trials']} trials, {result['feasible']} feasible, {result['pruned']} pruned,"
        f" {result['repeated']} run again"
    )
    if result["given_up"]:
        console.print(
            f"[yellow]{result['given_up']} trials were given up: their workers died or failed again"
            " and again[/yellow]"
        )
    console.print(best_table(result["best"]))
    for segment in result["best"][0]["segments"] if result["best"] else ():
        console.print(f"  {segment['start']} -> {segment['end']}  [{branches_text(segment)}]")
    if result["gap_to_optimum"] is not None:
        console.print(
            f"{result['gap_to_optimum']:.2%} above the proven optimum of"
            f" {result['optimum']['latency_ms']:.3f} ms among plans whose merges concatenate;"
            " nnstretch search projects, too, and may find a faster one"
        )
    warn_uncalibrated(result, console)
    console.print(f"kept in {result['folder']}", soft_wrap=True)


def best_table(best_trials: list[dict[str, Any]]) -> Any:
    """Return the table of the best trials."""
    from rich.table import Table

    table = Table("trial", "predicted ms", "measured ms", "accuracy", "MACs", "parameters")
    for best in best_trials:
        numbers = [
            f"{best[key]:.3f}" if key in best else "-" for key in ("latency_ms", "measured_ms")
        ]
        accuracy = f"{best['accuracy']:.2%}" if "accuracy" in best else "-"
        table.add_row(
            str(best["trial"]),
            *numbers,
            accuracy,
            f"{best['macs'] / 1e6:.0f} M",
            f"{best['params'] / 1e6:.2f} M",
        )
    return table
