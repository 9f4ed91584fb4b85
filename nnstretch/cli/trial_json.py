"""Trials as the JSON that the contract names.

Microseconds become milliseconds here and nowhere else.
"""

from __future__ import annotations

from typing import Any

from nnstretch.trial import SegmentCost, Trial


def segment_json(cost: SegmentCost, branches: tuple[Any, ...], merge: str) -> dict[str, Any]:
    """Return a segment's predicted latency and its terms as JSON data."""
    return {
        "start": cost.start,
        "end": cost.end,
        "merge": merge,
        "latency_ms": cost.latency_us / 1000,
        "sync_ms": cost.sync_us / 1000,
        "merge_ms": cost.merge_us / 1000,
        "original_ms": cost.original_us / 1000,
        "original_macs": cost.original_macs,
        "branches": [
            {
                "processor": b.processor,
                "depth": branch.depth,
                "width": branch.width,
                "macs": b.macs,
                "params": b.params,
                "compute_ms": b.compute_us / 1000,
                "transfer_in_ms": b.transfer_in_us / 1000,
                "transfer_out_ms": b.transfer_out_us / 1000,
                "latency_ms": b.latency_us / 1000,
                "error_ms": b.error_us / 1000,
            }
            for b, branch in zip(cost.branches, branches, strict=True)
        ],
    }


def segments_json(trial: Trial, lowered: Any) -> list[dict[str, Any]]:
    """Return the segments as JSON data; `lowered` is of the same plan, whose branches have every
    number filled in.
    """
    return [
        segment_json(cost, tuple(b.branch for b in segment.branches), segment.segment.merge)
        for cost, segment in zip(trial.segments, lowered.segments, strict=True)
    ]
