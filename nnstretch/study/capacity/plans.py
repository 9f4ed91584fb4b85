"""The same two branches in every stage of a network, as a plan."""

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

MAIN_PROCESSOR, SECOND_PROCESSOR = "main", "second"
"""Names of processors in these plans: accuracy does not depend on which chip they are on."""


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
        attempt = (
            try_branching(analysis, plain, entry, shape)
            if wanted
            else SegmentAttempt(lower_segment(analysis, plain, entry), "")
        )
        segments.append(attempt.lowered.segment)
        refused += [attempt.reason] if attempt.reason else []
        entry = attempt.lowered.output
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
) -> SegmentAttempt:
    """Lower the two branches of a shape, or the original layers and why."""
    requests: list[BranchRequest] = []
    for name, share in ((MAIN_PROCESSOR, shape.main), (SECOND_PROCESSOR, shape.second)):
        width = partial(wanted_width, ratio=share.width)
        requests.append(BranchRequest(name, share.depth, width))
    return lower_branches(analysis, plain, entry, requests)
