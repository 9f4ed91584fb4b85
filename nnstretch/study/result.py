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
"""Length of the list of best trials of one objective; of two, the whole Pareto front is listed."""
METRIC_NAMES = ("latency_ms", "measured_ms", "accuracy", "macs", "params")


def feasible_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return complete trials that keep every limit."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return [t for t in complete if all(violation <= 0 for violation in t.constraints.values())]


def dominates(
    first: Sequence[float], second: Sequence[float], directions: Sequence[StudyDirection]
) -> bool:
    """Return whether the first values dominate: nowhere worse, somewhere better."""
    is_better = False
    for mine, theirs, direction in zip(first, second, directions, strict=True):
        sign = -1 if direction == StudyDirection.MAXIMIZE else 1
        if not sign * mine <= sign * theirs:
            return False
        is_better = is_better or mine != theirs
    return is_better


def best_trials(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[FrozenTrial]:
    """Return the best few of one objective, the Pareto front of two; of equal plans the first."""
    by_plan = {t.user_attrs.get("plan", t.number): t for t in reversed(feasible_trials(trials))}
    sign = -1 if directions[0] == StudyDirection.MAXIMIZE else 1
    ordered = sorted(by_plan.values(), key=lambda t: (sign * t.values[0], t.number))
    if len(directions) == 1:
        return ordered[:MAX_LISTED_TRIALS]
    front: list[FrozenTrial] = []
    for trial in ordered:
        if not any(dominates(rival.values, trial.values, directions) for rival in ordered):
            front.append(trial)
    return front


def optimality_gap(
    trials: Sequence[FrozenTrial], exact: dict[str, Any] | None, predicts: bool
) -> float | None:
    """Return the best predicted latency over the proven optimum, less one; None without either."""
    if not predicts or exact is None or not exact["optimal"]:
        return None
    attributes = [trial.user_attrs for trial in feasible_trials(trials)]
    latencies_ms = [known["latency_ms"] for known in attributes if "latency_ms" in known]
    if not latencies_ms:
        return None
    return float(min(latencies_ms) / exact["latency_ms"] - 1)


def trial_json(trial: FrozenTrial) -> dict[str, Any]:
    """Return a finished trial as JSON data."""
    plan = parse_plan(trial.user_attrs["plan"], f"trial {trial.number}")
    numbers = {name: trial.user_attrs[name] for name in METRIC_NAMES if name in trial.user_attrs}
    segments = [segment_data(segment) for segment in plan.segments]
    return {"trial": trial.number, **numbers, "segments": segments}


def result_json(study: Study, predicts: bool) -> dict[str, Any]:
    """Return the study as the command line's JSON."""
    trials = study.get_trials(deepcopy=False)
    exact = study.user_attrs.get(EXACT_OPTIMUM_KEY)
    finished = finished_trials(trials)
    return {
        "trials": len(finished),
        "complete": sum(t.state == TrialState.COMPLETE for t in finished),
        "pruned": sum(t.state == TrialState.PRUNED for t in finished),
        "feasible": len(feasible_trials(trials)),
        "repeated": sum("retry_history" in t.system_attrs for t in finished),
        "given_up": len(abandoned_trials(trials)),
        "best": [trial_json(t) for t in best_trials(trials, study.directions)],
        "optimum": exact,
        "gap_to_optimum": optimality_gap(trials, exact, predicts),
    }
