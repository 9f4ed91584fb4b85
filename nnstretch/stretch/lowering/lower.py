"""Plan + graph -> the stretched network as graphs: one for every branch, with its shapes and work.

Everything that costs, exports or trains starts from here, so the numbers that search compares are
the numbers of the network that is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.adapters import with_input_adapter, with_output_adapter
from nnstretch.stretch.lowering.depth_scaling import local_stages
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.section import (
    Section,
    entry_scales,
    nearest_width,
    resize_section,
)
from nnstretch.stretch.lowering.width_scaling import round_channels, wanted_width
from nnstretch.structure.cuts import INPUT, OUTPUT, section


@dataclass(frozen=True)
class LoweredBranch:
    """A branch as it will run."""

    branch: Branch
    """With every number filled in."""
    graph: Graph
    section: Section
    scales: Mapping[int, Fraction]
    """Root of a channel group -> its width over the original's."""

    @property
    def output(self) -> TensorSpec:
        """Return shape and dtype of the branch's output."""
        return self.graph.specs()[self.graph.outputs[0]]


@dataclass(frozen=True)
class LoweredSegment:
    """Branches, and the tensor in which they meet."""

    segment: Segment
    branches: tuple[LoweredBranch, ...]
    input: TensorSpec
    output: TensorSpec
    axis: int
    """Dimension along which outputs are concatenated."""
    original: Graph

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processor of each branch."""
        return tuple(branch.branch.processor for branch in self.branches)


@dataclass(frozen=True)
class LoweredNetwork:
    """A stretched network as graphs; nothing in it is built yet."""

    plan: Plan
    graph: Graph
    """The original network."""
    segments: tuple[LoweredSegment, ...]

    @property
    def branches(self) -> tuple[LoweredBranch, ...]:
        """Return the branches of all segments in order."""
        return tuple(chain.from_iterable(segment.branches for segment in self.segments))

    @property
    def macs(self) -> int:
        """Return the MACs of all branches."""
        return sum(branch.graph.macs for branch in self.branches)

    @property
    def params(self) -> int:
        """Return the parameters of all branches."""
        return sum(branch.graph.params for branch in self.branches)


def lower(graph: Graph | NetworkAnalysis, plan: Plan) -> LoweredNetwork:
    """Lower a plan. Raises BadPlan where plan and network disagree."""
    analysis = graph if isinstance(graph, NetworkAnalysis) else NetworkAnalysis(graph)
    if len(analysis.graph.inputs) != 1 or not analysis.cuts:
        counts = f"{len(analysis.graph.inputs)} inputs and {len(analysis.cuts)} cuts"
        raise BadPlan(
            f"cannot stretch {plan.model}, it has {counts}, one input and one output are needed"
        )
    check_chain(analysis, plan)
    entry = analysis.graph.inputs[0].spec
    lowered: list[LoweredSegment] = []
    for segment in plan.segments:
        lowered.append(lower_segment(analysis, segment, entry))
        entry = lowered[-1].output
    check_output(analysis.graph, entry, plan)
    return LoweredNetwork(plan, analysis.graph, tuple(lowered))


def check_chain(analysis: NetworkAnalysis, plan: Plan) -> None:
    """Check that segments follow each other from input to output. Raises BadPlan for a gap."""
    if not plan.segments:
        raise BadPlan(f"empty plan, {plan.model}, it needs at least one segment up to 'output'")
    at = INPUT
    for number, segment in enumerate(plan.segments):
        if segment.start != at and analysis.cut(segment.start) != analysis.cut(at):
            raise BadPlan(
                f"segment {number} starts at {segment.start!r}, plan of {plan.model}, the one"
                f" before ends at {at!r}"
            )
        if analysis.cut(segment.start).position >= analysis.cut(segment.end).position:
            raise BadPlan(
                f"segment {number} ends at {segment.end!r}, plan of {plan.model}, which is not"
                f" after its start {segment.start!r}"
            )
        check_processors(segment)
        at = segment.end
    if analysis.cut(at).name != OUTPUT:
        raise BadPlan(f"plan ends at {at!r}, plan of {plan.model}, it must end at 'output'")


def check_processors(segment: Segment) -> None:
    """Check that no two branches share a processor. Raises BadPlan when they do."""
    processors = segment.processors
    if len(set(processors)) != len(processors):
        raise BadPlan(
            f"segment {segment.start} -> {segment.end} has two branches on one processor,"
            f" {', '.join(processors)}, they would run in turn"
        )


def check_output(graph: Graph, output: TensorSpec, plan: Plan) -> None:
    """Check that a lowered network keeps the original's output shape. Raises BadPlan when not."""
    expected = graph.specs()[graph.outputs[0]]
    if output.shape != expected.shape:
        raise BadPlan(
            f"output becomes {output}, plan of {plan.model}, the network's is {expected}; the last"
            " segment keeps its width"
        )


def lower_segment(analysis: NetworkAnalysis, segment: Segment, entry: TensorSpec) -> LoweredSegment:
    """Lower a segment that reads a tensor. Raises BadPlan when a branch cannot be."""
    start = analysis.cut(segment.start)
    end = analysis.cut(segment.end)
    whole = analysis.section(start, end, None)
    original = section(analysis.graph, start, end)
    axis = whole.axis_out
    width_in = entry.shape[whole.axis_in]
    shape = original.specs()[original.outputs[0]].shape
    shares = equal_slices(shape[axis] if shape else 1, len(segment.branches))
    branches = tuple(resolve_ratios(analysis, segment, b, width_in) for b in segment.branches)
    segment = replace(segment, branches=branches)
    lowered = tuple(
        lower_branch(analysis, segment, branch, width_in, share)
        for branch, share in zip(branches, shares, strict=True)
    )
    output = lowered[0].output
    merged = list(output.shape)
    if merged:
        merged[axis] = sum(branch.output.shape[axis] for branch in lowered)
    return LoweredSegment(
        segment, lowered, entry, TensorSpec(tuple(merged), output.dtype), axis, original
    )


def resolve_ratios(
    analysis: NetworkAnalysis, segment: Segment, branch: Branch, width_in: int
) -> Branch:
    """Replace the ratios of a branch (`0.5x`) by the nearest depth and width that can be had."""
    start = analysis.cut(segment.start)
    end = analysis.cut(segment.end)
    depth = branch.depth
    width = branch.width
    if isinstance(depth, str):
        fewest = max(1, len(local_stages(analysis.stages, start, end)))
        depth = max(fewest, int(analysis.depth(start, end) * parse_ratio(depth) + 0.5))
    if isinstance(width, str):
        section = analysis.section(start, end, depth, branch.activation)
        wanted = wanted_width(section.width_out, parse_ratio(width))
        inside = section.width_in if segment.merge == "project" else width_in
        width = nearest_width(section, inside, wanted)
    return replace(branch, depth=depth, width=width)


def parse_ratio(ratio: str) -> float:
    """Return the number of a ratio such as `0.5x`."""
    return float(ratio.removesuffix("x"))


def equal_slices(width: int, branches: int) -> list[int]:
    """Divide a width over branches; the first ones take what does not divide."""
    return [width // branches + (i < width % branches) for i in range(branches)]


def lower_branch(
    analysis: NetworkAnalysis,
    segment: Segment,
    branch: Branch,
    width_in: int,
    share: int | None = None,
) -> LoweredBranch:
    """Lower a branch, ratios resolved, that reads `width_in` channels.

    `share` is the width at the meeting point that a `project` merge expects, None the original's.
    Raises BadPlan where depth or width are impossible, with what is possible.
    """
    start = analysis.cut(segment.start)
    end = analysis.cut(segment.end)
    where = f"segment {segment.start} -> {segment.end} on {branch.processor}"
    assert not isinstance(branch.depth, str)
    assert not isinstance(branch.width, str)
    section = analysis.section(start, end, branch.depth, branch.activation)
    width = section.width_out if branch.width is None else branch.width
    if width < 1:
        raise BadPlan(f"width {width} is impossible, {where}, a branch needs at least one channel")
    if segment.merge != "project":
        check_no_projection(branch, where)
    depth = branch.depth or analysis.depth(start, end)
    branch = replace(branch, depth=depth, width=width)
    if segment.merge == "project":
        out = branch.width_out or share or section.width_out
        return lower_projected(segment, branch, section, width_in, width, out, where)
    graph, scales = resize_section(section, branch, width_in, width, where)
    return LoweredBranch(branch, graph, section, scales)


def check_no_projection(branch: Branch, where: str) -> None:
    """Check that a branch says nothing of 1x1 convolutions it has not. Raises BadPlan."""
    for name in ("width_in", "width_out"):
        if (width := getattr(branch, name)) is not None:
            raise BadPlan(f"{name} is {width}, {where}, only branches of a project merge have it")


def lower_projected(
    segment: Segment,
    branch: Branch,
    section: Section,
    width_in: int,
    width: int,
    width_out: int,
    where: str,
) -> LoweredBranch:
    """Lower a branch between 1x1 convolutions that map from and to the widths outside.

    As MB_VER 1 of NN-Stretch does. Raises BadPlan when the width cannot be had.
    """
    wanted = branch.width_in or round_channels(width / section.width_out * width_in)
    inside, _ = entry_scales(section, wanted, width)
    if branch.width_in and inside != wanted:
        raise BadPlan(f"width_in {wanted} is impossible, {where}, {inside} is the nearest")
    graph, scales = resize_section(section, branch, inside, width, where)
    graph = with_input_adapter(graph, segment.end, width_in, section.axis_in)
    if graph.specs()[graph.outputs[0]].shape[section.axis_out] != width_out:
        graph = with_output_adapter(graph, segment.end, width_out, section.axis_out)
    branch = replace(branch, width_in=inside, width_out=width_out)
    return LoweredBranch(branch, graph, section, scales)


def single_processor_plan(graph: Graph, model: str, processor: str) -> Plan:
    """Return the plan that branches nothing."""
    spec = graph.inputs[0].spec
    segments = (Segment(INPUT, OUTPUT, (Branch(processor),)),)
    return Plan(model, spec.shape, segments, input_dtype=spec.unusual_dtype)
