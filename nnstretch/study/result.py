"""The best trials of a study, and how far they are from the proven optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optuna.study import StudyDirection
from optuna.trial import TrialState

from nnstretch.files.plan_yaml import parse_plan, segment_data
from nnstretch.study.config import EXACT_OPTIMUM_KEY
from nnstretch.study.trial_leases import abandoned_trials, finished_trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

MAX_LISTED_TRIALS = 5
"""Trials listed where one objective orders them; of two, the whole front is."""
METRIC_NAMES = ("latency_ms", "measured_ms", "accuracy", "macs", "params")


def feasible_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Complete trials that keep every limit."""
    return [
        t
        for t in trials
        if t.state == TrialState.COMPLETE and all(v <= 0 for v in t.constraints.values())
    ]


def dominates(
    first: Sequence[float], two: Sequence[float], directions: Sequence[StudyDirection]
) -> bool:
    """Return whether values `one` dominate `two`: nowhere worse, somewhere better."""
    signed = [
        (-a, -b) if d == StudyDirection.MAXIMIZE else (a, b)
        for a, b, d in zip(first, two, directions, strict=True)
    ]
    return all(a <= b for a, b in signed) and any(a < b for a, b in signed)


def best_trials(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[FrozenTrial]:
    """Return the best few of one objective, the front of two.

    Equal plans once, the first reported.
    """
    once = {t.user_attrs.get("plan", t.number): t for t in reversed(feasible_trials(trials))}
    best = [
        t
        for t in once.values()
        if len(directions) == 1
        or not any(dominates(o.values, t.values, directions) for o in once.values())
    ]
    sign = -1 if directions[0] == StudyDirection.MAXIMIZE else 1
    best.sort(key=lambda t: (sign * t.values[0], t.number))
    return best[:MAX_LISTED_TRIALS] if len(directions) == 1 else best


def optimality_gap(
    trials: Sequence[FrozenTrial], exact: dict[str, Any] | None, predicts: bool
) -> float | None:
    """Return best predicted latency over the proven optimum, less one.

    None without an optimum, a proof or a feasible trial.
    """
    latencies_ms = [
        t.user_attrs["latency_ms"] for t in feasible_trials(trials) if "latency_ms" in t.user_attrs
    ]
    if not predicts or exact is None or not exact["optimal"] or not latencies_ms:
        return None
    return float(min(latencies_ms) / exact["latency_ms"] - 1)


def trial_json(trial: FrozenTrial) -> dict[str, Any]:
    """Return a finished trial as JSON data."""
    plan = parse_plan(trial.user_attrs["plan"], f"trial {trial.number}")
    numbers = {name: trial.user_attrs[name] for name in METRIC_NAMES if name in trial.user_attrs}
    return {
        "trial": trial.number,
        **numbers,
        "segments": [segment_data(segment) for segment in plan.segments],
    }


def result_json(study: Study, predicts: bool) -> dict[str, Any]:
    """Return the study as the command line's JSON."""
    trials, exact = study.get_trials(deepcopy=False), study.user_attrs.get(EXACT_OPTIMUM_KEY)
    done = finished_trials(trials)
    return {
        "trials": len(done),
        "complete": sum(t.state == TrialState.COMPLETE for t in done),
        "pruned": sum(t.state == TrialState.PRUNED for t in done),
        "feasible": len(feasible_trials(trials)),
        "repeated": sum("retry_history" in t.system_attrs for t in done),
        "given_up": len(abandoned_trials(trials)),
        "best": [trial_json(t) for t in best_trials(trials, study.directions)],
        "optimum": exact,
        "gap_to_optimum": optimality_gap(trials, exact, predicts),
    }
