"""What a segment costs: the one formula that plans, op lists and the search share.

A segment is `max over branches (copy in + contention x compute + copy out) + synchronise + merge`.
Data lies on the host after a meeting point. Where two neighbouring segments run alone on one
processor it stays there, so a network on one accelerator crosses to it and back only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nnstretch.errors import BadPlan
from nnstretch.soc import Link, Processor, Soc
from nnstretch.trial import BranchCost, SegmentCost


@dataclass(frozen=True, slots=True)
class BranchDemand:
    """Demand of one branch on its processor."""

    processor: str
    compute_us: float
    """Sum over its kernels, beside what the other branches of its segment run on."""
    error_us: float
    bytes_in: float
    """The tensor it starts from, in the chip's element type."""
    bytes_out: float
    macs: int = 0
    params: int = 0


@dataclass(frozen=True, slots=True)
class Residency:
    """Edges of a segment without a crossing: its neighbour runs alone on the same processor."""

    before: bool = False
    after: bool = False


CROSSES = Residency()
FREE = Link()


def residencies(placements: Sequence[Sequence[str]]) -> tuple[Residency, ...]:
    """Return the residency of each segment, from the processors of each segment in order."""
    if not placements:
        return ()
    edges = [len(a) == len(b) == 1 and a[0] == b[0] for a, b in pairwise(placements)]
    return tuple(map(Residency, [False, *edges], [*edges, False]))


def segment_cost(
    soc: Soc,
    branches: Sequence[BranchDemand],
    residency: Residency = CROSSES,
    *,
    start: str = "",
    end: str = "",
    original_us: float = 0.0,
    original_macs: int = 0,
) -> SegmentCost:
    """Price one segment on a chip; a processor that shares the host's memory has free links.

    Raises BadPlan where the formula does not cover the branches.
    """
    names = frozenset(branch.processor for branch in branches)
    check_branches(names, branches, residency, f"segment {start} -> {end}")
    several = len(branches) > 1
    processors = [soc.processor_among(branch.processor, names) for branch in branches]
    slowdown = soc.contention_factor(names) if several else 1.0
    sync_us = 0.0 if residency.after else max(processor.sync_us for processor in processors)
    bytes_out = sum(branch.bytes_out for branch in branches)
    priced = tuple(
        branch_cost(branch, processor, slowdown, residency)
        for branch, processor in zip(branches, processors, strict=True)
    )
    merge_us = soc.merge.cost_us(bytes_out) if several else 0.0
    if several and soc.branched_error is not None:
        share = soc.branched_error.relative_error
        times_us = [share * (cost.latency_us + sync_us + merge_us) for cost in priced]
        priced = tuple(replace(c, error_us=us) for c, us in zip(priced, times_us, strict=True))
    return SegmentCost(start, end, priced, sync_us, merge_us, original_us, original_macs)


def branch_cost(
    branch: BranchDemand, processor: Processor, slowdown: float, residency: Residency
) -> BranchCost:
    """Return the terms of one branch, contention included."""
    copy_in = FREE if residency.before else processor.copy_in
    copy_out = FREE if residency.after else processor.copy_out
    return BranchCost(
        branch.processor,
        copy_in.cost_us(branch.bytes_in),
        slowdown * branch.compute_us,
        copy_out.cost_us(branch.bytes_out),
        slowdown * branch.error_us,
        branch.macs,
        branch.params,
    )


def check_branches(
    names: frozenset[str], branches: Sequence[BranchDemand], residency: Residency, where: str
) -> None:
    """Refuse branches that the formula does not cover. Raises BadPlan."""
    if not branches:
        raise BadPlan(f"no branch, {where}, a segment needs at least 1")
    if len(names) != len(branches):
        used = ", ".join(branch.processor for branch in branches)
        raise BadPlan(
            f"{len(branches)} branches on {len(names)} processors ({used}), {where}, one branch per"
            " processor"
        )
    if len(branches) > 1 and (residency.before or residency.after):
        raise BadPlan(
            f"data cannot stay on one processor, {where}, it has {len(branches)} branches that meet"
            " on the host"
        )
