"""Trial -> JSON of the contract, microseconds -> milliseconds."""

from __future__ import annotations

from typing import Any

from nnstretch.plan import Branch
from nnstretch.trial import BranchCost, SegmentCost, Trial


def segments_json(trial: Trial, lowered: Any) -> list[dict[str, Any]]:
    """Return the segments; `lowered` is the plan's network, whose branches have every number."""
    pairs = zip(trial.segments, lowered.segments, strict=True)
    return [_segment_json(cost, segment) for cost, segment in pairs]


def _segment_json(cost: SegmentCost, lowered: Any) -> dict[str, Any]:
    branches = zip(cost.branches, lowered.branches, strict=True)
    return {
        "start": cost.start,
        "end": cost.end,
        "merge": lowered.segment.merge,
        "latency_ms": cost.latency_us / 1000,
        "sync_ms": cost.sync_us / 1000,
        "merge_ms": cost.merge_us / 1000,
        "original_ms": cost.original_us / 1000,
        "original_macs": cost.original_macs,
        "branches": [_branch_json(branch_cost, b.branch) for branch_cost, b in branches],
    }


def _branch_json(cost: BranchCost, branch: Branch) -> dict[str, Any]:
    return {
        "processor": cost.processor,
        "depth": branch.depth,
        "width": branch.width,
        "macs": cost.macs,
        "params": cost.params,
        "compute_ms": cost.compute_us / 1000,
        "transfer_in_ms": cost.transfer_in_us / 1000,
        "transfer_out_ms": cost.transfer_out_us / 1000,
        "latency_ms": cost.latency_us / 1000,
        "error_ms": cost.error_us / 1000,
    }
