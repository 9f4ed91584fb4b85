"""The contract's JSON of a search."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nnstretch.files.trial_json import segments_json
from nnstretch.soc import host_of
from nnstretch.structure.arguments import shared_weights

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.explain import Explanation, SegmentVerdict
    from nnstretch.stretch.search.pareto import ParetoFront, ParetoPoint, SensitivityRow
    from nnstretch.stretch.search.search_result import ScoredPlan, SearchResult
    from nnstretch.trial import Trial


UNLIMITED_PARAMS = "layers share weights, so nothing limits the parameters of a plan"


def as_json(
    result: SearchResult, analysis: NetworkAnalysis, soc: Soc, model: str
) -> dict[str, Any]:
    """Return a search's result as JSON data."""
    notes = (UNLIMITED_PARAMS,) if shared_weights(analysis.graph) else ()
    return ({"notes": list(notes)} if notes else {}) | {
        "model": model,
        "soc": soc.name,
        "processors": list(result.original_us),
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
        "original": {
            "macs": result.original.macs,
            "params": result.original.params,
            "latency_ms": {name: us / 1000 for name, us in result.original_us.items()},
            "error_ms": {name: us / 1000 for name, us in result.original_error_us.items()},
            "fastest": result.fastest,
        },
        "space": {"log10_size": result.log10_size, "refused": result.refused},
        "fallbacks": dict(result.fallbacks),
        "limits": {
            "alpha": result.limits.alpha,
            "beta": result.limits.beta,
            "max_fork": result.limits.max_fork,
        },
        "optimal": result.optimal,
        "gap": result.gap,
        "interrupted": result.interrupted,
        "out_of_time": result.out_of_time,
        "lower_bound_ms": result.lower_bound_us / 1000,
        "search_s": result.search_s,
        "plans": [
            plan_json(plan, result, analysis) | interval_json(plan.trial, soc)
            for plan in result.plans
        ],
        **unused_json(result),
    }


def unused_json(result: SearchResult) -> dict[str, Any]:
    """Return the fastest processor that the best plan does without, and which there are besides.

    Nothing where it is used, where branches need it, and before the search is over.
    """
    unused, compute_us = result.unused_faster, result.original_compute_us
    besides = [name for name in compute_us if name not in unused]
    if not unused or len(besides) < 2 or result.interrupted or result.out_of_time:
        return {}
    fastest = min(unused, key=lambda name: compute_us[name])
    compute_ms = compute_us[fastest] / 1000
    return {"unused_fastest": {"processor": fastest, "compute_ms": compute_ms, "besides": besides}}


def plan_json(
    scored: ScoredPlan, result: SearchResult, analysis: NetworkAnalysis
) -> dict[str, Any]:
    """Return a plan with its predicted numbers as JSON data."""
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.search.constraints import branched_segments

    trial, speedup = scored.trial, result.original_us[result.fastest] / scored.trial.latency_us
    limit = rates_limit(result, trial.macs)
    return {
        "latency_ms": trial.latency_us / 1000,
        "error_ms": scored.error_us / 1000,
        "macs": trial.macs,
        "params": trial.params,
        "meetings": len(branched_segments(trial)),
        "speedup_vs_fastest": speedup,
        "iso_mac_latency_ms": scored.iso_mac.latency_us / 1000,
        "iso_mac_processor": scored.iso_mac.processor,
        "speedup_vs_iso_mac": scored.iso_mac.latency_us / trial.latency_us,
        "rates_limit": limit,
        "rates_share": None if limit is None else speedup / limit,
        "segments": segments_json(trial, lower(analysis, trial.plan)),
    }


def interval_json(trial: Trial, soc: Soc) -> dict[str, Any]:
    """Return within what 90% of networks like a branched plan lie; nothing where unmeasured."""
    if soc.branched_error is None or not any(s.branched for s in trial.plan.segments):
        return {}
    factor, latency_ms = soc.branched_error.interval_factor, trial.latency_us / 1000
    return {"interval_ms": [latency_ms / factor, latency_ms * factor]}


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
    row_json["out_of_time"] = row.out_of_time
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
        "unanswered": list(front.unanswered),
        "interrupted": front.interrupted,
        "points": [point_json(point, result, soc) for point in front.points],
    }


def point_json(point: ParetoPoint, result: SearchResult, soc: Soc) -> dict[str, Any]:
    """Return a point of a front as JSON data."""
    from nnstretch.files.plan_yaml import plan_text

    trial, original = point.trial, result.original
    held_bytes, energy = trial.weight_bytes(soc.element_bytes), energy_mj(trial, soc)
    return {
        "asked": point.asked,
        "latency_ms": trial.latency_us / 1000,
        "macs_ratio": trial.macs / original.macs if original.macs else None,
        "params_ratio": trial.params / original.params if original.params else None,
        "meetings": point.measured("meetings"),
        "speedup_vs_fastest": result.original_us[result.fastest] / trial.latency_us,
        "iso_mac_latency_ms": point.found.iso_mac.latency_us / 1000,
        "weight_bytes": held_bytes,
        "weight_bytes_largest": max(held_bytes.values()),
        "weight_bytes_total": sum(held_bytes.values()),
        "optimal": point.optimal,
        "gap": point.gap,
        "plan": plan_text(trial.plan),
    } | ({} if energy is None else {"energy_mj": energy})


def energy_mj(trial: Trial, soc: Soc) -> float | None:
    """Return what processors use above the idle chip, mJ; None where a power is not known.

    While they are busy, as in a simulation: computing, copying, merging and synchronizing.
    """
    from nnstretch.schedule.task_graph import durations_of_trial

    host = host_of(soc.processors) or soc.processors[0].name
    energy = 0.0
    for (_, name), busy_us in durations_of_trial(trial, host).items():
        power_w = soc.processor(name).power_w
        if power_w is None:
            return None
        energy += power_w * busy_us / 1000
    return energy
