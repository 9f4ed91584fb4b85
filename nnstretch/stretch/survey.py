"""A plain two-branch plan for any network: what can be stretched, and why the rest cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from nnstretch.errors import BadPlan, BrokenGraph
from nnstretch.graph import TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.depth import local_stages
from nnstretch.stretch.lower import LoweredSegment, Stretcher
from nnstretch.stretch.scales import round_to_granule
from nnstretch.structure.cuts import INPUT, Cut


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan that branches every stage it can."""

    plan: Plan
    branched_macs: int
    """MACs of the original inside branched segments."""
    refused: tuple[str, ...]
    """One line for each stage that stays sequential."""


def boundaries(stretcher: Stretcher) -> tuple[Cut, ...]:
    """The last cut of every resolution, then of every width; the output last."""
    specs = stretcher.graph.specs()
    found: list[Cut] = []
    for cut, following in zip(stretcher.cuts, stretcher.cuts[1:], strict=False):
        here, there = specs[cut.value].shape, specs[following.value].shape
        if here[2:] != there[2:] or len(here) != len(there) or here[1] != there[1]:
            found.append(cut)
    return (*found, stretcher.cuts[-1])


def two_branches(stretcher: Stretcher, model: str, processors: tuple[str, str], depths: tuple[float, float], width: float) -> Survey:
    """Every stretch between neighbouring boundaries as two branches where the rules allow it."""
    entry = stretcher.graph.inputs[0].spec
    segments: list[Segment] = []
    refused: list[str] = []
    macs = 0
    start = INPUT
    for end in boundaries(stretcher):
        plain = Segment(start, end.name, (Branch(processors[0]),))
        chosen, lowered, reason = attempt(stretcher, plain, entry, processors, depths, width)
        if reason:
            refused.append(reason)
        else:
            macs += lowered.original.macs
        segments.append(chosen)
        entry, start = lowered.output, end.name
    plan = Plan(model, stretcher.graph.inputs[0].spec.shape, tuple(segments))
    return Survey(plan, macs, tuple(refused))


def attempt(
    stretcher: Stretcher, plain: Segment, entry: TensorSpec, processors: tuple[str, str], depths: tuple[float, float], width: float
) -> tuple[Segment, LoweredSegment, str]:
    sequential = stretcher.segment(plain, entry)
    if stretcher.cut(plain.end) == stretcher.cuts[-1]:
        return plain, sequential, f"{plain.start} -> {plain.end}: the output keeps its width"
    if sequential.original.macs == 0:
        return plain, sequential, f"{plain.start} -> {plain.end}: no weighted work to share"
    start, end = stretcher.cut(plain.start), stretcher.cut(plain.end)
    full, fewest = stretcher.depth(start, end), max(1, len(local_stages(stretcher.stages, start, end)))
    try:
        piece = stretcher.piece(start, end, None)
        target = round_to_granule(piece.width_out * width) if piece.width_out >= 16 else max(1, ceil(piece.width_out * width))
        branches = tuple(
            Branch(p, max(fewest, ceil(full * d)), target) for p, d in zip(processors, depths, strict=True)
        )
        segment = replace(plain, branches=branches)
        return segment, stretcher.segment(segment, entry), ""
    except (BadPlan, BrokenGraph) as refusal:
        return plain, sequential, f"{plain.start} -> {plain.end}: {refusal}"
