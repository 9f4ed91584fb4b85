"""What a segment costs: the one formula that plans, op lists and the search share.

A segment is `max over branches (copy in + contention x compute + copy out) + synchronise + merge`.
Data lies on the host after a meeting point. Where two neighbouring segments run alone on one
processor it stays there, so a network on one accelerator crosses to it and back only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nnstretch.errors import BadPlan
from nnstretch.soc import Link, Processor, Soc
from nnstretch.trial import BranchCost, SegmentCost


@dataclass(frozen=True, slots=True)
class BranchDemand:
    """What one branch asks of its processor, before it is known what runs beside it."""

    processor: str
    compute_us: float
    """Sum over its kernels, alone on the chip."""
    error_us: float
    bytes_in: float
    """The tensor it starts from, in the chip's element type."""
    bytes_out: float
    macs: int = 0
    params: int = 0


@dataclass(frozen=True, slots=True)
class Residency:
    """Which edges of a segment need no crossing, because its neighbour runs alone on the same
    processor.
    """

    before: bool = False
    after: bool = False


CROSSES = Residency()
FREE = Link()


def residencies(placements: Sequence[Sequence[str]]) -> tuple[Residency, ...]:
    """Return one `Stay` per segment, from the processors of each segment in order."""
    edges = [len(step) == len(two) == 1 and step[0] == two[0] for step, two in pairwise(placements)]
    return (
        tuple(
            Residency(before, after)
            for before, after in zip([False, *edges], [*edges, False], strict=True)
        )
        if placements
        else ()
    )


def segment_cost(
    soc: Soc,
    branches: Sequence[BranchDemand],
    stay: Residency = CROSSES,
    *,
    start: str = "",
    end: str = "",
    original_us: float = 0.0,
    original_macs: int = 0,
) -> SegmentCost:
    """Price one segment on a chip.

    A processor that shares the host's memory has links that cost nothing.
    """
    names = frozenset(branch.processor for branch in branches)
    check(names, branches, stay, f"segment {start} -> {end}")
    processors = [soc.processor(branch.processor) for branch in branches]
    slowdown = soc.contention_factor(names) if len(names) > 1 else 1.0
    sync_us = 0.0 if stay.after else max(processor.sync_us for processor in processors)
    merge_us = (
        soc.merge.cost_us(sum(branch.bytes_out for branch in branches))
        if len(branches) > 1
        else 0.0
    )
    priced = tuple(
        branch_cost(branch, processor, slowdown, stay)
        for branch, processor in zip(branches, processors, strict=True)
    )
    return SegmentCost(start, end, priced, sync_us, merge_us, original_us, original_macs)


def branch_cost(
    branch: BranchDemand, processor: Processor, slowdown: float, stay: Residency
) -> BranchCost:
    """Return the terms of one branch, contention included."""
    copy_in, copy_out = (
        (FREE if stay.before else processor.copy_in),
        (FREE if stay.after else processor.copy_out),
    )
    return BranchCost(
        branch.processor,
        copy_in.cost_us(branch.bytes_in),
        slowdown * branch.compute_us,
        copy_out.cost_us(branch.bytes_out),
        slowdown * branch.error_us,
        branch.macs,
        branch.params,
    )


def check(
    names: frozenset[str], branches: Sequence[BranchDemand], stay: Residency, where: str
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
    if len(branches) > 1 and (stay.before or stay.after):
        raise BadPlan(
            f"data cannot stay on one processor, {where}, it has {len(branches)} branches that meet"
            " on the host"
        )
