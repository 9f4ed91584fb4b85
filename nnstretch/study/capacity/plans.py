"""The same two branches in every stage of a network, as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from nnstretch.errors import BadPlan, BrokenGraph, NoPlan
from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.depth_scaling import local_stages
from nnstretch.stretch.lowering.lower import (
    LoweredNetwork,
    LoweredSegment,
    NetworkAnalysis,
    lower,
    single_processor_plan,
)
from nnstretch.stretch.lowering.section import nearest_width
from nnstretch.stretch.lowering.two_branch_plan import resolution_boundaries
from nnstretch.stretch.lowering.width_scaling import wanted_width
from nnstretch.structure.cuts import INPUT
from nnstretch.study.capacity.bounds import BranchShape, BranchShare

MAIN_PROCESSOR, SECOND_PROCESSOR = "main", "second"
"""Names of processors in these plans: accuracy does not depend on which chip they are on."""
MAX_WIDTH_DEVIATION = 0.25
"""Of a stage's width: how far the nearest possible width may be from the one asked for."""


@dataclass(frozen=True)
class CapacityCandidate:
    """A network to train."""

    shape: BranchShape | None
    """None for the original."""
    stretched: LoweredNetwork
    refusals: tuple[str, ...] = ()
    """One line for each stage that stayed sequential because its branches are impossible."""

    @property
    def key(self) -> str:
        """Return the whole structure in one line: equal keys are equal networks.

        Its size is part of it: inner widths are not in a plan, and the rule that chooses them may
        change between versions.
        """
        plan = "; ".join(str(segment.segment) for segment in self.stretched.segments)
        return f"{plan}; {self.stretched.macs} MACs, {self.stretched.params} parameters"


def original_candidate(analysis: NetworkAnalysis, model: str) -> CapacityCandidate:
    """Return the original network as a candidate."""
    return CapacityCandidate(
        None, lower(analysis, single_processor_plan(analysis.graph, model, MAIN_PROCESSOR))
    )


def plan_candidates(
    analysis: NetworkAnalysis, model: str, wanted: Sequence[BranchShape]
) -> tuple[CapacityCandidate, ...]:
    """Return a plan of each shape.

    Of shapes that make the same network (few blocks, narrow stages) only the first.

    Raises NoPlan where no stage of the network can be branched.
    """
    candidates: dict[str, CapacityCandidate] = {}
    for shape in wanted:
        candidate = plan_candidate(analysis, model, shape)
        candidates.setdefault(candidate.key, candidate)
    return tuple(candidates.values())


def plan_candidate(analysis: NetworkAnalysis, model: str, shape: BranchShape) -> CapacityCandidate:
    """Return the plan of a shape as a candidate. Raises NoPlan when no stage can be branched so."""
    entry = analysis.graph.inputs[0].spec
    segments: list[Segment] = []
    refused: list[str] = []
    for start, end, wanted in branchable_stages(analysis):
        plain = Segment(start, end, (Branch(MAIN_PROCESSOR),))
        lowered, reason = (
            try_branching(analysis, plain, entry, shape)
            if wanted
            else (analysis.lower_segment(plain, entry), None)
        )
        segments.append(lowered.segment)
        refused += [reason] if reason else []
        entry = lowered.output
    if not any(segment.branched for segment in segments):
        raise NoPlan(
            f"no stage of {model} can be branched as {shape},"
            f" {refused[0] if refused else 'it has only one resolution'}"
        )
    plan = Plan(model, analysis.graph.inputs[0].spec.shape, tuple(segments))
    return CapacityCandidate(shape, lower(analysis, plan), tuple(refused))


def branchable_stages(analysis: NetworkAnalysis) -> list[tuple[str, str, bool]]:
    """Start and end of every stretch of one resolution, and whether it is to be branched.

    Those with more than one block are; where nothing repeats, all but the last. The last one keeps
    its width: it is the output.
    """
    ends = [cut.name for cut in resolution_boundaries(analysis)]
    pairs = list(zip([INPUT, *ends], ends, strict=False))
    deep = [analysis.depth(analysis.cut(start), analysis.cut(end)) > 1 for start, end in pairs[:-1]]
    wanted = deep if any(deep) else [True] * len(deep)
    return [
        (start, end, chosen) for (start, end), chosen in zip(pairs, [*wanted, False], strict=True)
    ]


def try_branching(
    analysis: NetworkAnalysis, plain: Segment, entry: TensorSpec, shape: BranchShape
) -> tuple[LoweredSegment, str | None]:
    """Return a branched segment; or a sequential one, and why."""
    try:
        branches = tuple(
            make_branch(analysis, plain, entry, share, name)
            for name, share in ((MAIN_PROCESSOR, shape.main), (SECOND_PROCESSOR, shape.second))
        )
        return analysis.lower_segment(replace(plain, branches=branches), entry), None
    except (
        BadPlan,
        BrokenGraph,
        AssertionError,
    ) as refusal:  # the last where a concatenation's width leaves part of a channel
        return analysis.lower_segment(plain, entry), f"{plain.start} -> {plain.end}: {refusal}"


def make_branch(
    analysis: NetworkAnalysis,
    plain: Segment,
    entry: TensorSpec,
    share: BranchShare,
    processor: str,
) -> Branch:
    """Return a branch; depths round up as those of search do; widths go to the nearest that can be
    had.

    Raises BadPlan.
    """
    start, end = analysis.cut(plain.start), analysis.cut(plain.end)
    fewest = max(1, len(local_stages(analysis.stages, start, end)))
    depth = max(fewest, ceil(analysis.depth(start, end) * share.depth - 1e-9))
    section = analysis.section(start, end, depth)
    wanted = wanted_width(section.width_out, share.width)
    width = nearest_width(section, entry.shape[section.axis_in], wanted)
    if abs(width - wanted) > MAX_WIDTH_DEVIATION * section.width_out:
        raise BadPlan(
            f"width {wanted} is impossible, {processor}, {width} of {section.width_out} is the"
            " nearest"
        )
    return Branch(processor, depth, width)
