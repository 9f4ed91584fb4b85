"""A plain two-branch plan for any network: what can be stretched, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from nnstretch.errors import BadPlan, BrokenGraph
from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.depth_scaling import local_stages
from nnstretch.stretch.lowering.lower import LoweredSegment, NetworkAnalysis
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


def stage_boundaries(analysis: NetworkAnalysis) -> tuple[Cut, ...]:
    """Return the last cut of every resolution, then of every width; the output last."""
    specs = analysis.graph.specs()
    boundaries: list[Cut] = []
    for cut, following in zip(analysis.cuts, analysis.cuts[1:], strict=False):
        shape_before, shape_after = specs[cut.value].shape, specs[following.value].shape
        if (
            shape_before[2:] != shape_after[2:]
            or len(shape_before) != len(shape_after)
            or shape_before[1] != shape_after[1]
        ):
            boundaries.append(cut)
    return (*boundaries, analysis.cuts[-1])


def resolution_boundaries(analysis: NetworkAnalysis) -> tuple[Cut, ...]:
    """Return the boundaries at which the number of pixels changes, and the output."""
    specs = analysis.graph.specs()
    boundaries = stage_boundaries(analysis)
    after = {
        cut.position: following
        for cut, following in zip(analysis.cuts, analysis.cuts[1:], strict=False)
    }
    pixels = [
        specs[cut.value].shape[2:] != specs[after[cut.position].value].shape[2:]
        for cut in boundaries[:-1]
    ]
    return (
        *(cut for cut, differs in zip(boundaries[:-1], pixels, strict=True) if differs),
        boundaries[-1],
    )


def two_branches(
    analysis: NetworkAnalysis,
    model: str,
    processors: tuple[str, str],
    depths: tuple[float, float],
    width: float,
) -> CoveragePlan:
    """Return every stretch of one resolution as two branches where the rules allow it, else its
    stretches of one width.
    """
    request = TwoBranchRequest(analysis, processors, depths, width)
    fine = [cut.name for cut in stage_boundaries(analysis)]
    entry = analysis.graph.inputs[0].spec
    segments: list[Segment] = []
    refused: list[str] = []
    macs = 0
    start = INPUT
    for coarse in resolution_boundaries(analysis):
        whole = request.attempt(start, coarse.name, entry)
        inner = fine[fine.index(start) + 1 if start in fine else 0 : fine.index(coarse.name) + 1]
        tried = [whole]
        if whole.reason and len(inner) > 1:
            tried = []
            for end in inner:
                tried.append(
                    request.attempt(start, end, tried[-1].lowered.output if tried else entry)
                )
                start = end
        segments += [attempt.lowered.segment for attempt in tried]
        refused += [attempt.reason for attempt in tried if attempt.reason]
        macs += sum(attempt.lowered.original.macs for attempt in tried if not attempt.reason)
        entry, start = tried[-1].lowered.output, coarse.name
    plan = Plan(model, analysis.graph.inputs[0].spec.shape, tuple(segments))
    return CoveragePlan(plan, macs, tuple(refused))


def nearest_branch(
    analysis: NetworkAnalysis,
    segment: Segment,
    entry: TensorSpec,
    processor: str,
    depth_share: float,
    width: Callable[[int], int],
) -> Branch:
    """Return the branch nearest to a share of the depth and to `width(original width)`.

    Depths round up to what the stages allow, as those of search do. Raises BadPlan when no width
    is near.
    """
    start, end = analysis.cut(segment.start), analysis.cut(segment.end)
    fewest = max(1, len(local_stages(analysis.stages, start, end)))
    depth = max(fewest, ceil(analysis.depth(start, end) * depth_share - 1e-9))
    section = analysis.section(start, end, depth)
    wanted = width(section.width_out)
    nearest = nearest_width(section, entry.shape[section.axis_in], wanted)
    if abs(nearest - wanted) > MAX_WIDTH_DEVIATION * section.width_out:
        raise BadPlan(
            f"width {wanted} is impossible, {processor}, {nearest} of {section.width_out} is the"
            " nearest"
        )
    return Branch(processor, depth, nearest)


def lower_branches(
    analysis: NetworkAnalysis,
    sequential: Segment,
    entry: TensorSpec,
    branches: Callable[[], tuple[Branch, ...]],
) -> SegmentAttempt:
    """Lower a segment with branches, or sequential where they are impossible."""
    try:
        segment = replace(sequential, branches=branches())
        return SegmentAttempt(analysis.lower_segment(segment, entry), "")
    # The last where a concatenation's width leaves part of a channel.
    except (BadPlan, BrokenGraph, AssertionError) as refusal:
        reason = f"{sequential.start} -> {sequential.end}: {refusal}"
        return SegmentAttempt(analysis.lower_segment(sequential, entry), reason)


@dataclass(frozen=True, slots=True)
class SegmentAttempt:
    """Lowered segment of two branches, or why it stayed sequential."""

    lowered: LoweredSegment
    """Branched, or sequential where there is a reason."""
    reason: str


@dataclass(frozen=True, slots=True)
class TwoBranchRequest:
    """What every segment is asked for."""

    analysis: NetworkAnalysis
    processors: tuple[str, str]
    depths: tuple[float, float]
    width: float

    def attempt(self, start: str, end: str, entry: TensorSpec) -> SegmentAttempt:
        """Lower two branches between two cuts, or the original layers and why."""
        plain = Segment(start, end, (Branch(self.processors[0]),))
        sequential = self.analysis.lower_segment(plain, entry)
        last = self.analysis.cut(end) == self.analysis.cuts[-1]
        if sequential.original.macs == 0:
            return SegmentAttempt(sequential, f"{start} -> {end}: no weighted work to share")
        if last and sequential.original.macs < OUTPUT_SHARE * self.analysis.graph.macs:
            return SegmentAttempt(sequential, f"{start} -> {end}: the output keeps its width")
        attempt = lower_branches(
            self.analysis, plain, entry, lambda: self.branches(plain, entry, last)
        )
        if last and attempt.lowered.output.shape != sequential.output.shape:
            return SegmentAttempt(sequential, f"{start} -> {end}: the output keeps its width")
        return attempt

    def branches(self, plain: Segment, entry: TensorSpec, last: bool) -> tuple[Branch, ...]:
        """Return two branches; those of the last segment share its width."""
        return tuple(
            nearest_branch(
                self.analysis,
                plain,
                entry,
                processor,
                depth,
                partial(half_width, number) if last else partial(wanted_width, ratio=self.width),
            )
            for number, (processor, depth) in enumerate(
                zip(self.processors, self.depths, strict=True)
            )
        )


def half_width(number: int, full: int) -> int:
    """Return the channels of branch `number` where two share all of them."""
    return (full + 1 - number) // 2
