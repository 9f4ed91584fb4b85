"""The section `predicted` of a plan file: its trial, and hashes of what it was computed from."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from nnstretch.graph import Graph
from nnstretch.plan import Plan
from nnstretch.predictor import Estimate
from nnstretch.trial import SegmentCost, Trial

FORMULA = 1
"""Raised whenever the rules of predicted cost change, so that older trials are stale."""


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """A trial without its plan; stale as soon as one of the hashes differs."""

    soc_sha256: str
    """Of the chip's and its predictors' files."""
    network_sha256: str
    """Of the captured network, the plan and the rules of cost."""
    macs: int
    params: int
    segments: tuple[SegmentCost, ...]
    alternatives: tuple[tuple[dict[str, Estimate], ...], ...] = ()

    def trial(self, plan: Plan, graph: Graph, soc_sha256: str) -> Trial | None:
        """Return the trial of a plan of this network on this chip; None if it is stale."""
        hashes = soc_sha256, network_sha256(plan, graph)
        if (self.soc_sha256, self.network_sha256) != hashes or not self.fits(plan):
            return None
        return Trial(plan, self.segments, self.macs, self.params, self.alternatives)

    def fits(self, plan: Plan) -> bool:
        """Return whether the numbers are of the plan's segments, branches and merges."""
        placed = [segment.processors for segment in plan.segments]
        if [segment.processors for segment in self.segments] != placed:
            return False
        rows = [len(names) + (len(names) > 1) for names in placed]
        return [len(segment) for segment in self.alternatives] == rows

    def as_data(self) -> dict[str, Any]:
        """Return the section as YAML has it."""
        data = asdict(self)
        data["segments"] = list(data["segments"])
        for segment in data["segments"]:
            segment["branches"] = list(segment["branches"])
        data["alternatives"] = [
            [{name: estimate_data(row[name]) for name in row} for row in segment]
            for segment in self.alternatives
        ]
        return data


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as YAML has it."""
    data: dict[str, Any] = {"latency_us": estimate.latency_us, "error_us": estimate.error_us}
    if estimate.interval_us is not None:
        data["interval_us"] = list(estimate.interval_us)
    return data


def predicted_section(trial: Trial, graph: Graph, soc_sha256: str) -> PlanPrediction:
    """Return what a plan file remembers of a trial of this network on this chip."""
    return PlanPrediction(
        soc_sha256,
        network_sha256(trial.plan, graph),
        trial.macs,
        trial.params,
        trial.segments,
        tuple(tuple(dict(row) for row in segment) for segment in trial.alternatives),
    )


def graph_sha256(graph: Graph) -> str:
    """Return the hash of a captured network, whatever it is called."""
    return hashlib.sha256(f"{replace(graph, name='')!r}".encode()).hexdigest()


def network_sha256(plan: Plan, graph: Graph) -> str:
    """Return the hash of a plan and the network it stretches, whatever the network is called."""
    text = f"{FORMULA} {plan!r} {replace(graph, name='')!r}"
    return hashlib.sha256(text.encode()).hexdigest()
