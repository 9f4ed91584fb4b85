"""A search's result as tables."""

from __future__ import annotations

import math
from typing import Any

from nnstretch.cli.console import branches_text
from nnstretch.cli.loaded_model import show_notes
from nnstretch.cli.progress import show_machines, warn_uncalibrated
from nnstretch.cli.search.picture import NAMES

MIB = 2**20
MISSING = {
    "without": "no plan was found with",
    "unanswered": "time was over before any plan was met with",
}
"""What is said of a front's lower limits that have no point, by their field."""


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    original = result["original"]
    alone = ", ".join(f"{name} {ms:.2f} ms" for name, ms in original["latency_ms"].items())
    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}, predicted: original alone {alone}"
    )
    show_notes(result.get("notes", ()), console)
    show_progress_made(result, console)
    console.print(plans_table(result))
    show_best(result, console)
    show_unused(result, console)
    refused = ", ".join(f"{name} {count:,}" for name, count in result["space"]["refused"].items())
    for name, kind in result["fallbacks"].items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    if result.get("whole_branches"):
        console.print(whole_branches_table(result))
        show_machines(result, console)
    show_views(result, console)
    warn_uncalibrated(result, console)
    console.print(f"refused: {refused or 'nothing'}")
    console.print(f"source: {result['provenance']}")


def show_progress_made(result: dict[str, Any], console: Any) -> None:
    """Print how far the search came: what ended it early, and what is proven."""
    stop = "interrupted" if result["interrupted"] else ""
    stop = "the time limit has passed" if result["out_of_time"] else stop
    if stop and not result["space"]["log10_size"] and not result["lower_bound_ms"]:
        console.print(
            f"[yellow]{stop} after {result['search_s']:.1f} s, before the first plan was searched:"
            f" this is the original on {result['original']['fastest']}[/yellow]"
        )
        return
    if stop:
        console.print(f"[yellow]{stop}: this is the best so far[/yellow]")
    console.print(
        f"10^{result['space']['log10_size']:.1f} plans in {result['search_s']:.1f} s,"
        f" {proof_text(result)}"
    )


def proof_text(best: dict[str, Any]) -> str:
    """Return what is proven; a share that is rounded is rounded up, so that it stays true."""
    if best["optimal"]:
        return "proven optimal"
    if best["gap"] >= 1:
        return "nothing proven"
    return f"nothing can be more than {math.ceil(best['gap'] * 1000) / 10:.1f}% faster (proven)"


def short_proof_text(best: dict[str, Any]) -> str:
    """Return "optimal", or the gap that is left."""
    if best["optimal"]:
        return "optimal"
    return "-" if best["gap"] >= 1 else f"within {math.ceil(best['gap'] * 1000) / 10:.1f}%"


def plans_table(result: dict[str, Any]) -> Any:
    """Return the table of plans."""
    from rich.table import Table

    original = result["original"]
    table = Table(
        "plan",
        "ms",
        "± ms",
        "MACs",
        "params",
        "meetings",
        "vs fastest alone",
        "vs equal MACs",
        "of all rates",
    )
    for number, plan in enumerate(result["plans"], 1):
        table.add_row(
            str(number),
            f"{plan['latency_ms']:.2f}",
            f"{plan['error_ms']:.2f}",
            ratio_text(plan["macs"], original["macs"]),
            ratio_text(plan["params"], original["params"]),
            str(plan["meetings"]),
            f"{plan['speedup_vs_fastest']:.2f}x",
            f"{plan['speedup_vs_iso_mac']:.2f}x",
            "-" if plan["rates_share"] is None else f"{plan['rates_share']:.0%}",
        )
    return table


def ratio_text(count: int, original: int) -> str:
    """Return a count over the original's; "-" where the original has none."""
    return f"{count / original:.3f}x" if original else "-"


def show_best(result: dict[str, Any], console: Any) -> None:
    """Print the best plan and its distance from the limits."""
    best = result["plans"][0]
    for segment in best["segments"]:
        merge = f"  {segment['merge']}" if len(segment["branches"]) > 1 else ""
        console.print(
            f"  {segment['start']} -> {segment['end']}  [{branches_text(segment)}]{merge} "
            f" {segment['latency_ms']:.2f} ms"
        )
    if best["rates_limit"] is not None:
        names, ratio = "+".join(result["processors"]), best["macs"] / result["original"]["macs"]
        console.print(
            f"if {names} all worked all the time, each at its rate for the original:"
            f" {best['rates_limit']:.2f}x at {ratio:.3f}x MACs; reached"
            f" {best['speedup_vs_fastest']:.2f}x, {best['rates_share']:.0%}"
        )


def show_unused(result: dict[str, Any], console: Any) -> None:
    """Print which processor sets limits of segments although the best plan does without it."""
    if (unused := result.get("unused_fastest")) is not None:
        besides = ",".join(unused["besides"])
        console.print(
            f"[yellow]note:[/yellow] {unused['processor']} computes the original fastest"
            f" ({unused['compute_ms']:.3g} ms without copies) and the plan does not use it; alpha"
            f" and beta are taken from it, --processors {besides} searches without it"
        )


def whole_branches_table(result: dict[str, Any]) -> Any:
    """Return the best plans by kernels and by whole branches, in the order of the latter."""
    from rich.table import Table

    title = "whole branches as scheduled (modelled)"
    table = Table("plan", "kernels ms", "whole ms", "difference", title=title)
    for row in result["whole_branches"]:
        if row["whole_ms"] is None:
            shown = ("-", row["refused"])
        else:
            share = row["difference_ms"] / row["kernels_ms"]
            shown = (f"{row['whole_ms']:.2f}", f"{share:+.1%}")
        table.add_row(str(row["plan"]), f"{row['kernels_ms']:.2f}", *shown)
    return table


def show_views(result: dict[str, Any], console: Any) -> None:
    """Print fronts, sensitivity and explanation."""
    for entry in result.get("explained", ()):
        console.print(entry["line"], markup=False, highlight=False, soft_wrap=True)
    if result.get("sensitivity"):
        console.print(sensitivity_table(result["sensitivity"]))
    for front in result.get("pareto", ()):
        console.print(front_table(front))
        for name, said in MISSING.items():
            if front[name]:
                asked = ", ".join(asked_text(front, share) for share in front[name])
                console.print(f"{said} {NAMES[front['measure']]} from {asked} on")
        if front["points"] and not any("energy_mj" in point for point in front["points"]):
            console.print(
                "no column for energy: soc.json of this chip does not say `power_w` of every"
                " processor"
            )


def sensitivity_table(rows: list[dict[str, Any]]) -> Any:
    """Return the table of constraints and the latency without each."""
    from rich.table import Table

    table = Table(
        "alpha",
        "beta",
        "best ms",
        "branched segments",
        "refused",
        "proven",
        title="what the limits change",
    )
    for row in rows:
        limits = (f"{row['alpha']:g}", f"{row['beta']:g}")
        if row["latency_ms"] is None:
            why = "out of time" if row["out_of_time"] else "no plan"
            table.add_row(*limits, "-", "-", "-", why)
        else:
            table.add_row(
                *limits,
                f"{row['latency_ms']:.2f}",
                str(row["branched"]),
                f"{row['refused']:,}",
                short_proof_text(row),
            )
    return table


def asked_text(front: dict[str, Any], asked: float) -> str:
    """Return a lower limit of a front in words."""
    return f"{asked:g}" if front["measure"] == "meetings" else f"{asked:.2f}x"


def front_table(front: dict[str, Any]) -> Any:
    """Return the table of a front."""
    from rich.table import Table

    known = any("energy_mj" in point for point in front["points"])
    columns = (
        "from",
        "ms",
        "MACs",
        "params",
        "meetings",
        "vs alone",
        "equal MACs ms",
        "weights MiB",
        "largest",
        *(("mJ",) if known else ()),
        "proven",
    )
    table = Table(*columns, title=f"latency against {NAMES[front['measure']]}")
    for point in front["points"]:
        largest = max(point["weight_bytes"], key=point["weight_bytes"].get)
        table.add_row(
            asked_text(front, point["asked"]),
            f"{point['latency_ms']:.2f}",
            "-" if point["macs_ratio"] is None else f"{point['macs_ratio']:.3f}x",
            "-" if point["params_ratio"] is None else f"{point['params_ratio']:.3f}x",
            str(point["meetings"]),
            f"{point['speedup_vs_fastest']:.2f}x",
            f"{point['iso_mac_latency_ms']:.2f}",
            f"{point['weight_bytes_total'] / MIB:.2f}",
            f"{largest} {point['weight_bytes_largest'] / MIB:.2f}",
            *((f"{point['energy_mj']:.1f}" if "energy_mj" in point else "-",) if known else ()),
            short_proof_text(point),
        )
    return table
