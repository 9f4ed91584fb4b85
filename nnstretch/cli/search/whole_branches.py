"""Plans priced again with whole branches as they are scheduled on described accelerators.

The search adds up kernels, so that it stays exact; inside an accelerator the kernels of a branch
overlap, stay on chip or leave it together. Both figures stand beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadPlan, UnsupportedOp

if TYPE_CHECKING:
    from nnstretch.accelerate.pricing.whole_branch import BranchScheduler
    from nnstretch.predict.described import DescribedAccelerator
    from nnstretch.soc import Soc
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.search_result import ScoredPlan
    from nnstretch.trial import Trial

PLANS = 10
"""Plans of a search that are priced again."""


def described_processors(soc: Soc, names: Sequence[str]) -> dict[str, DescribedAccelerator]:
    """Return the predictors of those processors that are described accelerators."""
    from nnstretch.predict.described import DescribedAccelerator

    described: dict[str, DescribedAccelerator] = {}
    for name in names:
        predictor = soc.predictors[name]
        if isinstance(predictor, DescribedAccelerator):
            described[name] = predictor
    return described


def whole_branches_json(
    plans: Sequence[ScoredPlan],
    analysis: NetworkAnalysis,
    cost_model: CostModel,
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Return each plan's latency by kernels and by whole branches, in the order of the latter.

    `cost_model` prices what lies on other processors, as it did for the search.
    A plan that the accelerator cannot carry out comes last, with the reason.
    """
    from nnstretch.accelerate.pricing.whole_branch import BranchScheduler

    described = described_processors(cost_model.soc, names)
    schedulers = {name: BranchScheduler(item.rates) for name, item in described.items()}
    rows: list[dict[str, Any]] = []
    for number, scored in enumerate(plans[:PLANS], 1):
        kernels_us = scored.trial.latency_us
        row: dict[str, Any] = {"plan": number, "kernels_ms": kernels_us / 1000}
        try:
            whole_us = whole_latency_us(scored.trial, analysis, cost_model, schedulers)
        except (BadPlan, UnsupportedOp) as refusal:
            rows.append(row | {"whole_ms": None, "difference_ms": None, "refused": str(refusal)})
            continue
        whole = {"whole_ms": whole_us / 1000, "difference_ms": (whole_us - kernels_us) / 1000}
        rows.append(row | whole)
    rows.sort(key=lambda row: (row["whole_ms"] is None, row["whole_ms"] or 0.0))
    return rows


def whole_latency_us(
    trial: Trial,
    analysis: NetworkAnalysis,
    cost_model: CostModel,
    schedulers: dict[str, BranchScheduler],
) -> float:
    """Return a plan's latency with whole branches as scheduled. Raises BadPlan, UnsupportedOp."""
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.structure.segment_cost import residencies, segment_cost

    lowered = lower(analysis, trial.plan)
    stays = residencies([segment.processors for segment in lowered.segments])
    total_us = 0.0
    for segment, stay in zip(lowered.segments, stays, strict=True):
        demands = []
        for branch in segment.branches:
            demand = cost_model.branch_demand(branch, segment.processors)
            scheduler = schedulers.get(branch.branch.processor)
            if scheduler is not None:
                schedule = scheduler.schedule(branch.graph)
                demand = replace(demand, compute_us=schedule.latency_us)
            demands.append(demand)
        total_us += segment_cost(cost_model.soc, demands, stay).latency_us
    return total_us
