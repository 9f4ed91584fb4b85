"""The result of a study of capacity as text."""

from __future__ import annotations

from itertools import chain
from typing import Any


def verdict(result: dict[str, Any]) -> str:
    """Return one line: what the bounds are, and what supports them."""
    depth = result["min_depth"]
    width = result["min_width"]
    margin = f"{result['margin']:.2f} points"
    if not result["inside"]:
        return (
            "no share of depth or width holds: with any of them some variant loses more than"
            f" {margin}, so both bounds are 1.0"
        )
    claim = (
        f"all {result['inside']} variants with at least these shares are within {margin} of the"
        " original"
    )
    return (
        f"depth at least {depth:g}, width at least {width:g}: {claim};"
        f" {explain_bound(result, 'depth', 'width')}, {explain_bound(result, 'width', 'depth')}"
    )


def explain_bound(result: dict[str, Any], name: str, another: str) -> str:
    """Return why a bound is not lower."""
    for row in result["variants"]:
        if row[name] < result[f"min_{name}"] and row[another] >= result[f"min_{another}"]:
            return f"a smaller {name} does not hold"
    return f"no smaller {name} was tried at this {another}"


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    first = result["original"]
    console.print(
        f"[bold]{result['model']}[/bold] from {result['start']}, {first['epochs']} epochs,"
        f" seeds: {result['seeds']}"
    )
    console.print(variants_table(result))
    if first["accuracy"] < min(2 * result["chance"], (1 + result["chance"]) / 2):
        console.print(
            "[yellow]the original itself has hardly learnt anything, so the bounds mean nothing:"
            " more epochs[/yellow]"
        )
    widened = result["margin"] - result["tolerance"]
    console.print(
        f"margin {result['margin']:.2f} points: tolerance {result['tolerance']:g} + {widened:.2f},"
        f" one standard error over the seeds; one of {result['images']} held-out images is"
        f" {100 / result['images']:.2f} points"
    )
    for line in sorted(set(chain.from_iterable(row["sequential"] for row in result["variants"]))):
        console.print(f"[yellow]not branched:[/yellow] {line}")
    console.print(verdict(result))
    console.print(result["search"], markup=False, soft_wrap=True)


def variants_table(result: dict[str, Any]) -> Any:
    """Return the table of the original and its variants."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    first = result["original"]
    table = Table(
        "(depth, width) of branches",
        "accuracy",
        "±",
        "points",
        "MACs",
        "params",
        "s",
        "holds",
        box=SIMPLE_HEAD,
    )
    table.add_row(
        "original",
        f"{first['accuracy']:.2%}",
        spread(first),
        "",
        "1.000x",
        "1.000x",
        f"{first['seconds']:.0f}",
        "",
    )
    for row in result["variants"]:
        table.add_row(
            " + ".join(f"({b['depth']:g}, {b['width']:g})" for b in row["branches"]),
            f"{row['accuracy']:.2%}",
            spread(row),
            f"{(row['accuracy'] - first['accuracy']) * 100:+.2f}",
            f"{row['macs'] / first['macs']:.3f}x",
            f"{row['params'] / first['params']:.3f}x",
            f"{row['seconds']:.0f}",
            "yes" if row["holds"] else "no",
        )
    return table


def spread(row: dict[str, Any]) -> str:
    """Return the spread over seeds in points, "-" with one seed."""
    return f"{row['spread'] * 100:.2f}" if len(row["accuracies"]) > 1 else "-"
