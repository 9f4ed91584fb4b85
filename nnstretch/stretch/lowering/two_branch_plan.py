"""A plain two-branch plan for any network: what can be stretched, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from nnstretch.errors import BadPlan, BrokenGraph
from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.depth_scaling import local_stages
from nnstretch.stretch.lowering.lower import LoweredSegment, lower_segment
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.section import nearest_width
from nnstretch.stretch.lowering.width_scaling import wanted_width
from nnstretch.structure.cuts import INPUT, Cut

MAX_WIDTH_DEVIATION = 0.25
"""Of a section's width: how far the nearest possible width may be from the one asked for."""
OUTPUT_SHARE = 0.1
"""Of the MACs: a last segment that holds less is sequential, whatever is in it."""


@dataclass(frozen=True, slots=True)
class CoveragePlan:
    """A plan that branches every stage it can."""

    plan: Plan
    branched_macs: int
    """MACs of the original inside branched segments."""
    refused: tuple[str, ...]
    """One line for each stage that stays sequential."""


@dataclass(frozen=True, slots=True)
class SegmentAttempt:
    """Lowered segment of two branches, or why it stayed sequential."""

    lowered: LoweredSegment
    """Branched, or sequential where there is a reason."""
    reason: str


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """A branch relative to the original layers."""

    processor: str
    depth: float
    """Share of the original depth."""
    width: Callable[[int], int]
    """Original width -> width."""


def stage_boundaries(analysis: NetworkAnalysis) -> tuple[Cut, ...]:
    """Return the cuts behind which resolution or width changes; the output is the last."""
    specs = analysis.graph.specs()
    boundaries: list[Cut] = []
    for cut, following in zip(analysis.cuts, analysis.cuts[1:], strict=False):
        if specs[cut.value].shape[1:] != specs[following.value].shape[1:]:
            boundaries.append(cut)
    return (*boundaries, analysis.cuts[-1])


def resolution_boundaries(analysis: NetworkAnalysis) -> tuple[Cut, ...]:
    """Return the cuts behind which the number of pixels changes; the output is the last."""
    specs = analysis.graph.specs()
    boundaries: list[Cut] = []
    for cut, following in zip(analysis.cuts, analysis.cuts[1:], strict=False):
        if specs[cut.value].shape[2:] != specs[following.value].shape[2:]:
            boundaries.append(cut)
    return (*boundaries, analysis.cuts[-1])


def two_branches(
    analysis: NetworkAnalysis,
    model: str,
    processors: tuple[str, str],
    depths: tuple[float, float],
    width: float,
) -> CoveragePlan:
    """Plan two branches for every resolution where the rules allow it, else for its stages."""
    request = TwoBranchRequest(analysis, processors, depths, width)
    stages = [cut.name for cut in stage_boundaries(analysis)]
    entry = analysis.graph.inputs[0].spec
    start = INPUT
    attempts: list[SegmentAttempt] = []
    for boundary in resolution_boundaries(analysis):
        first = stages.index(start) + 1 if start in stages else 0
        ends = stages[first : stages.index(boundary.name) + 1]
        attempts += request.attempt_resolution(start, ends, entry)
        entry = attempts[-1].lowered.output
        start = boundary.name
    branched = [attempt.lowered for attempt in attempts if not attempt.reason]
    segments = tuple(attempt.lowered.segment for attempt in attempts)
    return CoveragePlan(
        Plan(model, analysis.graph.inputs[0].spec.shape, segments),
        sum(lowered.original.macs for lowered in branched),
        tuple(attempt.reason for attempt in attempts if attempt.reason),
    )


@dataclass(frozen=True, slots=True)
class TwoBranchRequest:
    """Two branches that every segment is asked for."""

    analysis: NetworkAnalysis
    processors: tuple[str, str]
    depths: tuple[float, float]
    width: float

    def attempt_resolution(
        self, start: str, ends: Sequence[str], entry: TensorSpec
    ) -> list[SegmentAttempt]:
        """Lower one segment up to the last of `ends`, or one up to each where that is refused."""
        whole = self.attempt(start, ends[-1], entry)
        if not whole.reason or len(ends) == 1:
            return [whole]
        attempts: list[SegmentAttempt] = []
        for end in ends:
            attempts.append(self.attempt(start, end, entry))
            entry = attempts[-1].lowered.output
            start = end
        return attempts

    def attempt(self, start: str, end: str, entry: TensorSpec) -> SegmentAttempt:
        """Lower two branches between two cuts, or the original layers and why."""
        plain = Segment(start, end, (Branch(self.processors[0]),))
        sequential = lower_segment(self.analysis, plain, entry)
        macs = sequential.original.macs
        last = self.analysis.cut(end) == self.analysis.cuts[-1]
        if macs == 0:
            return SegmentAttempt(sequential, f"{start} -> {end}: no weighted work to share")
        keeps_width = SegmentAttempt(sequential, f"{start} -> {end}: the output keeps its width")
        if last and macs < OUTPUT_SHARE * self.analysis.graph.macs:
            return keeps_width
        attempt = lower_branches(self.analysis, plain, entry, self.branches(last))
        if last and attempt.lowered.output.shape != sequential.output.shape:
            return keeps_width
        return attempt

    def branches(self, last: bool) -> list[BranchRequest]:
        """Return the two branches; those of the last segment divide its width."""
        branches: list[BranchRequest] = []
        for number, processor in enumerate(self.processors):
            width = partial(wanted_width, ratio=self.width)
            if last:
                width = partial(half_width, number)
            branches.append(BranchRequest(processor, self.depths[number], width))
        return branches


def half_width(number: int, full: int) -> int:
    """Return the channels of branch `number` where two share all of them."""
    return (full + 1 - number) // 2


def lower_branches(
    analysis: NetworkAnalysis,
    sequential: Segment,
    entry: TensorSpec,
    requests: Sequence[BranchRequest],
) -> SegmentAttempt:
    """Lower a segment with the branches nearest to `requests`, sequential where impossible."""
    try:
        branches = tuple(nearest_branch(analysis, sequential, entry, r) for r in requests)
        branched = replace(sequential, branches=branches)
        return SegmentAttempt(lower_segment(analysis, branched, entry), "")
    # An AssertionError where a concatenation's width leaves part of a channel.
    except (BadPlan, BrokenGraph, AssertionError) as refusal:
        reason = f"{sequential.start} -> {sequential.end}: {refusal}"
        return SegmentAttempt(lower_segment(analysis, sequential, entry), reason)


def nearest_branch(
    analysis: NetworkAnalysis, segment: Segment, entry: TensorSpec, request: BranchRequest
) -> Branch:
    """Return the branch nearest to a request, its depth rounded up to what the stages allow.

    Raises BadPlan when no width is near.
    """
    start = analysis.cut(segment.start)
    end = analysis.cut(segment.end)
    fewest = max(1, len(local_stages(analysis.stages, start, end)))
    depth = max(fewest, ceil(analysis.depth(start, end) * request.depth - 1e-9))
    section = analysis.section(start, end, depth)
    wanted = request.width(section.width_out)
    nearest = nearest_width(section, entry.shape[section.axis_in], wanted)
    full = section.width_out
    if abs(nearest - wanted) > MAX_WIDTH_DEVIATION * full:
        raise BadPlan(
            f"width {wanted} is impossible, {request.processor}, {nearest} of {full} is the nearest"
        )
    return Branch(request.processor, depth, nearest)
