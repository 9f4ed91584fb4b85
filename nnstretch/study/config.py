"""Everything one study depends on, written into the study itself, and the proven optimum
beside it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput
from nnstretch.soc import Soc
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.study.parameters import PlanSpace, parameters_from_plan
from nnstretch.study.trial_leases import warm_start_trial

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study

    from nnstretch.stretch.search.search import SearchResult

OBJECTIVES = ("latency", "measured", "accuracy", "both")
DIRECTIONS: dict[str, list[Any]] = {
    "latency": ["minimize"],
    "measured": ["minimize"],
    "accuracy": ["maximize"],
    "both": ["minimize", "maximize"],
}
METRICS = {
    "latency": ["latency_ms"],
    "measured": ["measured_ms"],
    "accuracy": ["accuracy"],
    "both": ["latency_ms", "accuracy"],
}
CONFIG_KEY, EXACT_OPTIMUM_KEY = "made_for", "exact"
"""Attributes of a study: its setting, and what the exact search found."""


@dataclass(frozen=True)
class StudyConfig:
    """What must be equal for two workers, or two runs, to share a study."""

    model: str
    input_shape: tuple[int, ...]
    soc: str
    processors: tuple[str, ...]
    objective: str
    limits: SegmentLimits
    bounds: NetworkLimits
    fallback: str | None = None
    recipe: Mapping[str, Any] | None = None
    """The resolved training recipe, where accuracy is an objective."""
    weights: str | None = None
    """sha256 of the weights that branches inherit, where any were given."""
    repeat: int | None = None
    """Runs behind one measured latency."""

    @property
    def uses_predicted_latency(self) -> bool:
        """Return whether predicted latency is among the objectives, so that the exact optimum is
        one of theirs.
        """
        return self.objective in ("latency", "both")

    def to_flat_json(self) -> dict[str, Any]:
        """Return the configuration as JSON, one level deep; an absent bound is null."""
        pairs: dict[str, Any] = {}
        for key, value in asdict(self).items():
            pairs |= flatten_mapping(value, f"{key}.") if isinstance(value, dict) else {key: value}
        finite = {
            key: None if isinstance(value, float) and math.isinf(value) else value
            for key, value in pairs.items()
            if key != "bounds.max_held"  # follows from the chip
        }
        return dict(json.loads(json.dumps(finite)))


def flatten_mapping(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return nested settings as pairs of dotted key and value."""
    pairs: dict[str, Any] = {}
    for key, value in tree.items():
        pairs |= (
            flatten_mapping(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return pairs


def open_study(
    storage: BaseStorage, name: str, setting: StudyConfig, sampler: Any = None, pruner: Any = None
) -> Study:
    """Open a new study, or the one of this name if it was made for the same setting.

    Raises BadInput naming what differs.
    """
    import optuna

    directions = DIRECTIONS[setting.objective]
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=directions,
        load_if_exists=True,
        sampler=sampler,
        pruner=pruner,
    )
    now, before = setting.to_flat_json(), study.user_attrs.get(CONFIG_KEY)
    if before is None:
        if study.get_trials(deepcopy=False):
            raise BadInput(
                f"study {name!r} was not made by nnstretch, its trials are of another kind, give"
                " another --name"
            )
        study.set_user_attr(CONFIG_KEY, now)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(METRICS[setting.objective])
        before = study.user_attrs[CONFIG_KEY]
    for key in sorted({*now, *before}):
        if now.get(key) != before.get(key):
            raise BadInput(
                f"study {name!r} was made for another {key}, {before.get(key)} and not"
                f" {now.get(key)}, give another --name"
            )
    return study


def exact_optimum_json(result: SearchResult) -> dict[str, Any]:
    """Return the exact search's result as JSON data."""
    best_us = result.plans[0].trial.latency_us
    return {
        "latency_ms": best_us / 1000,
        "optimal": result.optimal,
        "lower_bound_ms": result.lower_bound_us / 1000,
    }


def store_exact_optimum(
    study: Study,
    setting: StudyConfig,
    analysis: NetworkAnalysis,
    soc: Soc,
    space: PlanSpace,
    top: int,
) -> None:
    """Search once a study: its optimum becomes an attribute, its `top` plans the first trials.

    Raises what search raises.
    """
    from nnstretch.stretch.search.search import search

    if EXACT_OPTIMUM_KEY in study.user_attrs or not (setting.uses_predicted_latency or top):
        return
    result = search(
        analysis,
        soc,
        setting.processors,
        setting.limits,
        top=max(top, 1),
        fallback=setting.fallback,
        merges=("concat",),
        min_macs=setting.bounds.min_macs,
        max_macs=setting.bounds.max_macs,
        min_params=setting.bounds.min_params,
    )
    for rank, scored in enumerate(result.plans[:top]):
        study.add_trial(warm_start_trial(parameters_from_plan(space, scored.trial.plan), rank))
    study.set_user_attr(EXACT_OPTIMUM_KEY, exact_optimum_json(result))
