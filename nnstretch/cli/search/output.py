"""What a search found, as the contract's JSON and as tables for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import warn_uncalibrated
from nnstretch.files.trial_json import segments_json

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.report.charts.pareto_chart import ParetoPanel
    from nnstretch.soc import Soc
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.explain import Explanation, SegmentVerdict
    from nnstretch.stretch.search.pareto import ParetoFront, ParetoPoint, SensitivityRow
    from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult

MIB = 2**20
NAMES = {"macs": "MACs", "params": "parameters"}


def as_json(
    result: SearchResult, analysis: NetworkAnalysis, soc: Soc, model: str
) -> dict[str, Any]:
    """Return a search's result as JSON data."""
    return {
        "model": model,
        "soc": soc.name,
        "processors": list(result.original_us),
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "original": {
            "macs": result.original.macs,
            "params": result.original.params,
            "latency_ms": {name: us / 1000 for name, us in result.original_us.items()},
            "error_ms": {name: us / 1000 for name, us in result.original_error_us.items()},
            "fastest": result.fastest,
        },
        "space": {"log10_size": result.log10_size, "refused": result.refused},
        "fallbacks": dict(result.fallbacks),
        "limits": {"alpha": result.limits.alpha, "beta": result.limits.beta},
        "optimal": result.optimal,
        "gap": result.gap,
        "interrupted": result.interrupted,
        "lower_bound_ms": result.lower_bound_us / 1000,
        "search_s": result.search_s,
        "plans": [plan_json(plan, result, analysis) for plan in result.plans],
    }


def plan_json(
    scored: ScoredPlan, result: SearchResult, analysis: NetworkAnalysis
) -> dict[str, Any]:
    """Return a plan with its predicted numbers as JSON data."""
    from nnstretch.stretch.lowering.lower import lower

    trial, speedup = scored.trial, result.original_us[result.fastest] / scored.trial.latency_us
    limit = rates_limit(result, trial.macs)
    return {
        "latency_ms": trial.latency_us / 1000,
        "error_ms": scored.error_us / 1000,
        "macs": trial.macs,
        "params": trial.params,
        "speedup_vs_fastest": speedup,
        "iso_mac_latency_ms": scored.iso_mac.latency_us / 1000,
        "iso_mac_processor": scored.iso_mac.processor,
        "speedup_vs_iso_mac": scored.iso_mac.latency_us / trial.latency_us,
        "rates_limit": limit,
        "rates_share": None if limit is None else speedup / limit,
        "segments": segments_json(trial, lower(analysis, trial.plan)),
    }


def rates_limit(result: SearchResult, macs: int) -> float | None:
    """Return the speed-up over the fastest processor if all worked all the time at the rates of the
    original, on this many MACs.
    """
    if not macs or not result.original.macs:
        return None
    rates = sum(result.original_us[result.fastest] / us for us in result.original_us.values())
    return rates / (macs / result.original.macs)


def explained_json(explanation: Explanation) -> list[dict[str, Any]]:
    """Return one entry a segment, processors and merge, in the order of `Explanation.lines`."""
    cut = explanation.cut
    if explanation.reason:
        return [
            {"end": cut, "allowed": False, "rule": "no_meeting_point", "line": explanation.lines[0]}
        ]
    idle = [
        {"start": start, "end": cut, "allowed": False, "rule": "no_weighted_work", "line": line}
        for start, line in zip(explanation.idle, explanation.lines, strict=False)
    ]
    return [*idle, *(verdict_json(verdict) for verdict in explanation.verdicts)]


def verdict_json(verdict: SegmentVerdict) -> dict[str, Any]:
    """Return why a segment may not branch, or how fast it can be, as JSON data."""
    row_json: dict[str, Any] = {
        "start": verdict.start,
        "end": verdict.end,
        "processors": list(verdict.processors),
        "merge": verdict.merge,
        "allowed": verdict.allowed,
        "original_ms": verdict.original_us / 1000,
        "line": str(verdict),
    }
    if broken := verdict.first_violation:
        demand = broken.demand if math.isfinite(broken.demand) else None
        return row_json | {
            "rule": broken.rule,
            "demand": demand,
            "limit": broken.limit,
            "unit": f"{broken.unit} at least" if broken.sense == "at least" else broken.unit,
            "sense": broken.sense,
        }
    row_json["branches_left"] = {
        side.processor: {"left": side.kept, "of": side.of} for side in verdict.left
    }
    if verdict.fastest_us is None:
        return row_json | {"rule": "all_together"}
    return row_json | {"rule": None, "fastest_ms": verdict.fastest_us / 1000}


def sensitivity_json(row: SensitivityRow) -> dict[str, Any]:
    """Return a row of the sensitivity table as JSON data."""
    row_json: dict[str, Any] = {"alpha": row.alpha, "beta": row.beta}
    if row.found is None:
        return row_json | {
            "latency_ms": None,
            "branched": None,
            "refused": None,
            "optimal": None,
            "gap": None,
        }
    from nnstretch.stretch.search.constraints import SEGMENT_RULES

    result = row.found
    best = result.plans[0].trial
    return row_json | {
        "latency_ms": best.latency_us / 1000,
        "branched": sum(len(segment.branches) > 1 for segment in best.segments),
        "refused": sum(result.refused.get(rule.name, 0) for rule in SEGMENT_RULES),
        "optimal": result.optimal,
        "gap": result.gap,
    }


def front_json(front: ParetoFront, result: SearchResult, soc: Soc) -> dict[str, Any]:
    """Return a Pareto front as JSON data."""
    return {
        "measure": front.measure,
        "without": list(front.without),
        "interrupted": front.interrupted,
        "points": [point_json(point, result, soc) for point in front.points],
    }


def point_json(point: ParetoPoint, result: SearchResult, soc: Soc) -> dict[str, Any]:
    """Return a point of a front as JSON data."""
    from nnstretch.files.plan_yaml import plan_text
    from nnstretch.stretch.search.pareto import energy_mj

    trial, original = point.trial, result.original
    held_bytes, energy = trial.weight_bytes(soc.element_bytes), energy_mj(trial, soc)
    return {
        "asked": point.asked,
        "latency_ms": trial.latency_us / 1000,
        "macs_ratio": trial.macs / original.macs,
        "params_ratio": trial.params / original.params,
        "speedup_vs_fastest": result.original_us[result.fastest] / trial.latency_us,
        "iso_mac_latency_ms": point.found.iso_mac.latency_us / 1000,
        "weight_bytes": held_bytes,
        "weight_bytes_largest": max(held_bytes.values()),
        "weight_bytes_total": sum(held_bytes.values()),
        "optimal": point.optimal,
        "gap": point.gap,
        "plan": plan_text(trial.plan),
    } | ({} if energy is None else {"energy_mj": energy})


def panel_of(front: ParetoFront, result: SearchResult, graph: Graph) -> ParetoPanel:
    """Return a front as a panel of the picture."""
    from nnstretch.report.charts.pareto_chart import ParetoMark, ParetoPanel
    from nnstretch.report.format_numbers import amount

    total = getattr(graph, front.measure)
    name = NAMES[front.measure]
    marks = tuple(
        ParetoMark(
            p.measured(front.measure) / total,
            p.trial.latency_us / 1000,
            p.found.iso_mac.latency_us / 1000,
            p.optimal,
        )
        for p in front.points
    )
    title = f"{graph.name}: latency against {name}"
    return ParetoPanel(
        title, name, amount(total), result.fastest, result.original_us[result.fastest] / 1000, marks
    )


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    original = result["original"]
    alone = ", ".join(f"{name} {ms:.2f} ms" for name, ms in original["latency_ms"].items())
    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}, predicted: original alone {alone}"
    )
    if result["interrupted"]:
        console.print("[yellow]interrupted: this is the best so far[/yellow]")
    console.print(
        f"10^{result['space']['log10_size']:.1f} plans in {result['search_s']:.1f} s,"
        f" {proof_text(result)}"
    )
    console.print(plans_table(result))
    show_best(result, console)
    refused = ", ".join(f"{name} {count:,}" for name, count in result["space"]["refused"].items())
    for name, kind in result["fallbacks"].items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    show_views(result, console)
    warn_uncalibrated(result, console)
    console.print(f"refused: {refused or 'nothing'}\nsource: {result['provenance']}")


def proof_text(best: dict[str, Any]) -> str:
    """Return what is proven; a share that is rounded is rounded up, so that it stays true."""
    if best["optimal"]:
        return "proven optimal"
    return f"nothing can be more than {math.ceil(best['gap'] * 1000) / 10:.1f}% faster (proven)"


def short_proof_text(best: dict[str, Any]) -> str:
    """Return "optimal", or the gap that is left."""
    return "optimal" if best["optimal"] else f"within {math.ceil(best['gap'] * 1000) / 10:.1f}%"


def plans_table(result: dict[str, Any]) -> Any:
    """Return the table of plans."""
    from rich.table import Table

    original = result["original"]
    table = Table(
        "plan",
        "ms",
        "± ms",
        "MACs",
        "parameters",
        "vs fastest alone",
        "vs equal MACs",
        "of all rates",
    )
    for number, plan in enumerate(result["plans"], 1):
        table.add_row(
            str(number),
            f"{plan['latency_ms']:.2f}",
            f"{plan['error_ms']:.2f}",
            f"{plan['macs'] / original['macs']:.3f}x",
            f"{plan['params'] / original['params']:.3f}x",
            f"{plan['speedup_vs_fastest']:.2f}x",
            f"{plan['speedup_vs_iso_mac']:.2f}x",
            "-" if plan["rates_share"] is None else f"{plan['rates_share']:.0%}",
        )
    return table


def show_best(result: dict[str, Any], console: Any) -> None:
    """Print the best plan and its distance from the limits."""
    best = result["plans"][0]
    for segment in best["segments"]:
        branches = " | ".join(
            f"{b['processor']} {b['depth']} x {b['width']}" for b in segment["branches"]
        )
        merge = f"  {segment['merge']}" if len(segment["branches"]) > 1 else ""
        console.print(
            f"  {segment['start']} -> {segment['end']}  \\[{branches}]{merge} "
            f" {segment['latency_ms']:.2f} ms"
        )
    if best["rates_limit"] is not None:
        names, ratio = "+".join(result["processors"]), best["macs"] / result["original"]["macs"]
        console.print(
            f"if {names} all worked all the time, each at its rate for the original:"
            f" {best['rates_limit']:.2f}x at {ratio:.3f}x MACs; reached"
            f" {best['speedup_vs_fastest']:.2f}x, {best['rates_share']:.0%}"
        )


def show_views(result: dict[str, Any], console: Any) -> None:
    """Print fronts, sensitivity and explanation."""
    for entry in result.get("explained", ()):
        console.print(entry["line"], markup=False, highlight=False, soft_wrap=True)
    if result.get("sensitivity"):
        console.print(sensitivity_table(result["sensitivity"]))
    for front in result.get("pareto", ()):
        console.print(front_table(front))
        if front["without"]:
            asked = ", ".join(f"{share:.2f}x" for share in front["without"])
            console.print(
                f"no plan was found with {asked} of the original's {NAMES[front['measure']]}"
            )
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
            table.add_row(*limits, "-", "-", "-", "no plan")
        else:
            table.add_row(
                *limits,
                f"{row['latency_ms']:.2f}",
                str(row["branched"]),
                f"{row['refused']:,}",
                short_proof_text(row),
            )
    return table


def front_table(front: dict[str, Any]) -> Any:
    """Return the table of a front."""
    from rich.table import Table

    known = any("energy_mj" in point for point in front["points"])
    columns = (
        "from",
        "ms",
        "MACs",
        "params",
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
            f"{point['asked']:.2f}x",
            f"{point['latency_ms']:.2f}",
            f"{point['macs_ratio']:.3f}x",
            f"{point['params_ratio']:.3f}x",
            f"{point['speedup_vs_fastest']:.2f}x",
            f"{point['iso_mac_latency_ms']:.2f}",
            f"{point['weight_bytes_total'] / MIB:.2f}",
            f"{largest} {point['weight_bytes_largest'] / MIB:.2f}",
            *((f"{point['energy_mj']:.1f}" if "energy_mj" in point else "-",) if known else ()),
            short_proof_text(point),
        )
    return table
