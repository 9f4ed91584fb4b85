"""Plans with the same two branches in every stage of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nnstretch.errors import NoPlan
from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.lower import (
    LoweredNetwork,
    lower,
    lower_segment,
    single_processor_plan,
)
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.two_branch_plan import (
    BranchRequest,
    SegmentAttempt,
    lower_branches,
    resolution_boundaries,
)
from nnstretch.stretch.lowering.width_scaling import wanted_width
from nnstretch.structure.cuts import INPUT
from nnstretch.study.capacity.bounds import BranchShape

MAIN_PROCESSOR = "main"
SECOND_PROCESSOR = "second"
"""Names that stand for any processors: accuracy does not depend on the chip."""


@dataclass(frozen=True)
class CapacityCandidate:
    """A network to train."""

    shape: BranchShape | None
    """None for the original."""
    stretched: LoweredNetwork
    refusals: tuple[str, ...] = ()
    """One line for each stage that cannot have this shape and stayed sequential."""

    @property
    def key(self) -> str:
        """Return the whole structure in one line: equal keys are equal networks."""
        # The size stands for inner widths, which are not in a plan and may change with a version.
        plan = "; ".join(str(segment.segment) for segment in self.stretched.segments)
        return f"{plan}; {self.stretched.macs} MACs, {self.stretched.params} parameters"


def original_candidate(analysis: NetworkAnalysis, model: str) -> CapacityCandidate:
    """Return the original network as a candidate."""
    plan = single_processor_plan(analysis.graph, model, MAIN_PROCESSOR)
    return CapacityCandidate(None, lower(analysis, plan))


def plan_candidates(
    analysis: NetworkAnalysis, model: str, shapes: Sequence[BranchShape]
) -> tuple[CapacityCandidate, ...]:
    """Return the different networks of the shapes. Raises NoPlan where no stage can be branched."""
    candidates: dict[str, CapacityCandidate] = {}
    for shape in shapes:
        candidate = plan_candidate(analysis, model, shape)
        candidates.setdefault(candidate.key, candidate)
    return tuple(candidates.values())


def plan_candidate(analysis: NetworkAnalysis, model: str, shape: BranchShape) -> CapacityCandidate:
    """Return the plan of a shape as a candidate. Raises NoPlan when no stage can be branched so."""
    entry = analysis.graph.inputs[0].spec
    segments: list[Segment] = []
    refusals: list[str] = []
    for start, end, branches in branchable_stages(analysis):
        plain = Segment(start, end, (Branch(MAIN_PROCESSOR),))
        if branches:
            attempt = try_branching(analysis, plain, entry, shape)
        else:
            attempt = SegmentAttempt(lower_segment(analysis, plain, entry), "")
        segments.append(attempt.lowered.segment)
        if attempt.reason:
            refusals.append(attempt.reason)
        entry = attempt.lowered.output
    if not any(segment.branched for segment in segments):
        reason = refusals[0] if refusals else "it has only one resolution"
        raise NoPlan(f"no stage of {model} can be branched as {shape}, {reason}")
    plan = Plan(model, analysis.graph.inputs[0].spec.shape, tuple(segments))
    return CapacityCandidate(shape, lower(analysis, plan), tuple(refusals))


def branchable_stages(analysis: NetworkAnalysis) -> list[tuple[str, str, bool]]:
    """Return start and end of every stage of one resolution, and whether it is branched.

    Stages of more than one block are, or all where none has more; but never the last, the output.
    """
    ends = [cut.name for cut in resolution_boundaries(analysis)]
    starts = [INPUT, *ends[:-1]]
    stages = list(zip(starts, ends, strict=True))
    cuts = [(analysis.cut(start), analysis.cut(end)) for start, end in stages[:-1]]
    repeats = [analysis.depth(start, end) > 1 for start, end in cuts]
    branches = repeats if any(repeats) else [True] * len(repeats)
    return list(zip(starts, ends, [*branches, False], strict=True))


def try_branching(
    analysis: NetworkAnalysis, plain: Segment, entry: TensorSpec, shape: BranchShape
) -> SegmentAttempt:
    """Lower the two branches of a shape, or the original layers with the reason."""
    requests: list[BranchRequest] = []
    for name, share in ((MAIN_PROCESSOR, shape.main), (SECOND_PROCESSOR, shape.second)):
        width = partial(wanted_width, ratio=share.width)
        requests.append(BranchRequest(name, share.depth, width))
    return lower_branches(analysis, plain, entry, requests)
