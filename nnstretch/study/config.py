"""Settings of a study, and the proven optimum, both kept as attributes of the study."""

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

    from nnstretch.stretch.search.search_result import SearchResult

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
CONFIG_KEY = "made_for"
"""Attribute of a study that holds its configuration."""
HASHES = ("soc_sha256", "network_sha256")
"""Settings that studies of before do not say: these go on without."""
EXACT_OPTIMUM_KEY = "exact"
"""Attribute of a study that holds the result of the exact search."""


@dataclass(frozen=True)
class StudyConfig:
    """Settings that must be equal for workers, or runs, to share a study."""

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
    """SHA-256 of the weights that branches inherit; None where they inherit none."""
    repeat: int | None = None
    """Runs behind one measured latency."""
    soc_sha256: str | None = None
    network_sha256: str | None = None
    """Of the captured network; its weights are no part of it."""

    @property
    def uses_predicted_latency(self) -> bool:
        """Return whether predicted latency, which the exact search minimizes, is an objective."""
        return self.objective in ("latency", "both")

    def to_flat_json(self) -> dict[str, Any]:
        """Return the configuration as JSON, one level deep; an absent bound is null."""
        pairs = flatten_mapping(asdict(self), "")
        # It follows from the chip.
        pairs.pop("bounds.max_held", None)
        # Studies from before these limits go on where the limits are not asked for.
        for key, unlimited in (("limits.max_fork", 1.0), ("bounds.min_meetings", 0)):
            if pairs.get(key) == unlimited:
                del pairs[key]
        for key, value in pairs.items():
            if isinstance(value, float) and math.isinf(value):
                pairs[key] = None
        return dict(json.loads(json.dumps(pairs)))


def flatten_mapping(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return nested settings by dotted key."""
    pairs: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            pairs |= flatten_mapping(value, f"{prefix}{key}.")
        else:
            pairs[f"{prefix}{key}"] = value
    return pairs


def open_study(
    storage: BaseStorage, name: str, config: StudyConfig, sampler: Any = None, pruner: Any = None
) -> Study:
    """Open a new study, or the one of this name if it has the same configuration.

    Raises BadInput that names what differs.
    """
    import optuna

    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=DIRECTIONS[config.objective],
        load_if_exists=True,
        sampler=sampler,
        pruner=pruner,
    )
    if CONFIG_KEY not in study.user_attrs:
        store_config(study, name, config)
    now = config.to_flat_json()
    before = study.user_attrs[CONFIG_KEY]
    differing: list[str] = []
    for key in sorted({*now, *before}):
        if now.get(key) != before.get(key) and (key in before or key not in HASHES):
            differing.append(f"{key}, {before.get(key, 'none')} and not {now.get(key, 'none')}")
    if differing:
        raise BadInput(
            f"study {name!r} was made for another {'; '.join(differing)[:300]}, give another --name"
        )
    return study


def store_config(study: Study, name: str, config: StudyConfig) -> None:
    """Store the configuration in a new study. Raises BadInput where another program made it."""
    import optuna

    if study.get_trials(deepcopy=False):
        raise BadInput(
            f"study {name!r} was not made by nnstretch, its trials are of another kind, give"
            " another --name"
        )
    study.set_user_attr(CONFIG_KEY, config.to_flat_json())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(METRICS[config.objective])


def exact_optimum_json(result: SearchResult) -> dict[str, Any]:
    """Return the exact search's result as JSON data."""
    return {
        "latency_ms": result.plans[0].trial.latency_us / 1000,
        "optimal": result.optimal,
        "lower_bound_ms": result.lower_bound_us / 1000,
    }


def search_optimum(
    config: StudyConfig, analysis: NetworkAnalysis, soc: Soc, top: int
) -> SearchResult | None:
    """Search the `top` best plans; None where neither they nor the optimum are wanted.

    Raises what the search raises, BadInput where no plan is inside the bounds.
    """
    from nnstretch.stretch.search.search import search

    if not (config.uses_predicted_latency or top):
        return None
    return search(
        analysis,
        soc,
        config.processors,
        config.limits,
        top=max(top, 1),
        fallback=config.fallback,
        merges=("concat",),
        min_macs=config.bounds.min_macs,
        max_macs=config.bounds.max_macs,
        min_params=config.bounds.min_params,
        min_meetings=config.bounds.min_meetings,
    )


def lacks_optimum(study: Study) -> bool:
    """Return whether nobody has stored the result of the exact search."""
    return EXACT_OPTIMUM_KEY not in study.user_attrs


def store_exact_optimum(
    study: Study, space: PlanSpace, result: SearchResult | None, top: int
) -> None:
    """Store the optimum once per study, and enqueue the `top` plans as first trials."""
    if result is None or not lacks_optimum(study):
        return
    for rank, scored in enumerate(result.plans[:top]):
        study.add_trial(warm_start_trial(parameters_from_plan(space, scored.trial.plan), rank))
    study.set_user_attr(EXACT_OPTIMUM_KEY, exact_optimum_json(result))
