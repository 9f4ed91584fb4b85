"""Plan + graph -> the stretched network as graphs: one for every branch, with its shapes and work.

Everything that costs, exports or trains starts from here, so the numbers that search compares are
the numbers of the network that is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, TensorSpec
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.lowering.activations import with_activation
from nnstretch.stretch.lowering.adapters import (
    ADAPTER_PREFIX,
    with_input_adapter,
    with_output_adapter,
)
from nnstretch.stretch.lowering.depth_scaling import local_stages, plan_depth, with_depth
from nnstretch.stretch.lowering.meeting_points import meeting_points
from nnstretch.stretch.lowering.section import (
    FeasibleWidths,
    InnerCut,
    Section,
    entry_scales,
    nearest_width,
    resize_section,
)
from nnstretch.stretch.lowering.width_scaling import (
    inner_groups,
    output_dimension_of,
    round_channels,
    wanted_width,
)
from nnstretch.structure.blocks import BlockStage, find_stages
from nnstretch.structure.channel_groups import ChannelGroups, analyze_channels
from nnstretch.structure.cuts import INPUT, OUTPUT, Cut, cut_named, find_cuts, section


@dataclass(frozen=True)
class LoweredBranch:
    """A branch as it will run."""

    branch: Branch
    """With every number filled in."""
    graph: Graph
    section: Section
    scales: Mapping[int, Fraction]

    @property
    def output(self) -> TensorSpec:
        """Return shape and dtype of the network's output."""
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


@dataclass(frozen=True)
class LoweredNetwork:
    """A stretched network, described: nothing in it is built yet."""

    plan: Plan
    graph: Graph
    segments: tuple[LoweredSegment, ...]

    @property
    def macs(self) -> int:
        """Return the MACs of all branches."""
        return sum(branch.graph.macs for segment in self.segments for branch in segment.branches)

    @property
    def params(self) -> int:
        """Return the parameters of all branches."""
        return sum(branch.graph.params for segment in self.segments for branch in segment.branches)


@dataclass
class NetworkAnalysis:
    """One captured network, with what its plans have in common computed once."""

    graph: Graph
    sections: dict[tuple[object, ...], Section] = field(default_factory=dict)
    reaches: dict[int, FeasibleWidths] = field(default_factory=dict)

    @cached_property
    def stages(self) -> tuple[BlockStage, ...]:
        """Return the network's stages of repeated blocks."""
        return find_stages(self.graph)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Return the network's cuts in execution order."""
        return find_cuts(self.graph)

    @cached_property
    def whole_network(self) -> ChannelGroups:
        """Return the channel groups of the whole network."""
        return analyze_channels(self.graph)

    @cached_property
    def block_ends(self) -> tuple[Cut, ...]:
        """Return cuts that end a block, in execution order; the output is the last."""
        return meeting_points(self.graph, self.cuts, self.stages, self.whole_network)

    def cut(self, name: str) -> Cut:
        """Return the cut of that name. Raises BadPlan when the network has none."""
        for cut in self.cuts:
            if cut.name == name:
                return cut
        return cut_named(self.graph, name)

    def section(
        self, start: Cut, end: Cut, depth: int | None, activation: str | None = None
    ) -> Section:
        """Return the network between two cuts at a depth, analyzed once."""
        key = (start.position, end.position, depth, activation)
        if key not in self.sections:
            graph = with_depth(self.graph, self.stages, start, end, depth)
            if activation is not None:
                graph = with_activation(graph, activation)
            self.sections[key] = self.analyze_section(graph, start, end)
        return self.sections[key]

    def analyze_section(self, graph: Graph, start: Cut, end: Cut) -> Section:
        """Analyze the channels of a section."""
        channels = analyze_channels(graph)
        axis_in = (
            self.whole_network.axis(start.value) if start.name != INPUT else channels.input_dim
        )
        axis_out = self.whole_network.axis(end.value)
        outer = channels.roots(channels.shapes[graph.inputs[0].name][0][axis_in]) | channels.roots(
            channels.shapes[graph.outputs[0]][0][axis_out]
        )
        return Section(
            graph,
            channels,
            axis_in,
            axis_out,
            inner_groups(graph, channels, outer),
            self.inner_cuts(graph, channels, start, end),
        )

    def inner_cuts(
        self, graph: Graph, channels: ChannelGroups, start: Cut, end: Cut
    ) -> tuple[InnerCut, ...]:
        """Return ends of blocks inside a section that are still there at its depth.

        Where one cannot scale, the width there is not asked for.
        """
        position = {node.name: i for i, node in enumerate(graph.nodes)}
        last = channels.roots(
            channels.shapes[graph.outputs[0]][0][self.whole_network.axis(end.value)]
        )
        points = []
        for cut in self.block_ends:
            if not start.position < cut.position < end.position or cut.value not in position:
                continue
            dim = channels.shapes[cut.value][0][self.whole_network.axis(cut.value)]
            free = channels.roots(dim) - channels.pinned.keys()
            if free and not (free <= last):
                points.append(InnerCut(position[cut.value], dim, self.feasible_widths(cut)))
        return tuple(points)

    def feasible_widths(self, cut: Cut) -> FeasibleWidths:
        """Return widths that the tensor at a cut can have."""
        if cut.position not in self.reaches:
            dim = self.whole_network.shapes[cut.value][0][self.whole_network.axis(cut.value)]
            end = output_dimension_of(
                dim, self.whole_network, dict.fromkeys(self.whole_network.pinned, Fraction(1))
            )
            steps = tuple(
                size // self.whole_network.granularity[root] for root, size in end.free.items()
            )
            self.reaches[cut.position] = FeasibleWidths(
                sum(part.size for part in dim), int(end.settled), steps
            )
        return self.reaches[cut.position]

    def depth(self, start: Cut, end: Cut) -> int:
        """Return the number of blocks between two cuts."""
        return plan_depth(self.stages, start, end)

    def lower_branch(
        self, segment: Segment, branch: Branch, width_in: int, share: int | None = None
    ) -> LoweredBranch:
        """Return one branch reading `width_in` channels; `share` is what a `project` merge expects
        of it.

        Raises BadPlan where depth or width are impossible, with what is possible.
        """
        start, end = self.cut(segment.start), self.cut(segment.end)
        where = f"segment {segment.start} -> {segment.end} on {branch.processor}"
        section = self.section(start, end, branch.depth, branch.activation)  # type: ignore[arg-type]
        full = section.width_out
        width = full if branch.width is None else branch.width
        if width < 1:  # type: ignore[operator]
            raise BadPlan(
                f"width {width} is impossible, {where}, a branch needs at least one channel"
            )
        if segment.merge == "project":
            return self.lower_projected(
                segment,
                branch,
                section,
                width_in,
                width,  # type: ignore[arg-type]
                share or full,
                where,  # type: ignore[arg-type]
            )
        graph, scales = resize_section(section, branch, width_in, width, where)  # type: ignore[arg-type]
        done = replace(branch, depth=branch.depth or self.depth(start, end), width=width)
        return LoweredBranch(done, graph, section, scales)

    def lower_projected(
        self,
        segment: Segment,
        branch: Branch,
        section: Section,
        width_in: int,
        width: int,
        share: int,
        where: str,
    ) -> LoweredBranch:
        """Lower a branch behind 1x1 convolutions in and out that keep the original width (MB_VER 1
        of NN-Stretch).

        Raises BadPlan when the width cannot be had.
        """
        inside = branch.width_in or round_channels(width / section.width_out * width_in)
        into, _ = entry_scales(section, inside, width)
        if branch.width_in and into != inside:
            raise BadPlan(f"width_in {inside} is impossible, {where}, {into} is the nearest")
        inside = into
        graph, scales = resize_section(section, branch, inside, width, where)
        graph = with_input_adapter(graph, segment.end, width_in, section.axis_in)
        out = branch.width_out or share
        if graph.specs()[graph.outputs[0]].shape[section.axis_out] != out:
            graph = with_output_adapter(graph, segment.end, out, section.axis_out)
        depth = branch.depth or self.depth(self.cut(segment.start), self.cut(segment.end))
        return LoweredBranch(
            replace(branch, depth=depth, width=width, width_in=inside, width_out=out),
            graph,
            section,
            scales,
        )

    def resolve_ratios(self, segment: Segment, branch: Branch, width_in: int) -> Branch:
        """Return a branch whose depth and width are numbers.

        A ratio (`0.5x`) becomes the nearest that can be had.
        """
        start, end = self.cut(segment.start), self.cut(segment.end)
        depth, width = branch.depth, branch.width
        if isinstance(depth, str):
            fewest = max(1, len(local_stages(self.stages, start, end)))
            depth = max(fewest, int(self.depth(start, end) * parse_ratio(depth) + 0.5))
        if isinstance(width, str):
            section = self.section(start, end, depth, branch.activation)
            width = wanted_width(section.width_out, parse_ratio(width))
            inside = section.width_in if segment.merge == "project" else width_in
            width = nearest_width(section, inside, width)
        return replace(branch, depth=depth, width=width)

    def lower_segment(self, segment: Segment, entry: TensorSpec) -> LoweredSegment:
        """Lower a segment whose input has the given shape.

        Raises BadPlan when a branch cannot be.
        """
        start, end = self.cut(segment.start), self.cut(segment.end)
        original = section(self.graph, start, end)
        axis_in = self.section(start, end, None).axis_in
        axis = self.section(start, end, None).axis_out
        width_in = entry.shape[axis_in]
        full = (
            original.specs()[original.outputs[0]].shape[axis]
            if original.specs()[original.outputs[0]].shape
            else 1
        )
        segment = replace(
            segment,
            branches=tuple(
                self.resolve_ratios(segment, branch, width_in) for branch in segment.branches
            ),
        )
        shares = equal_slices(full, len(segment.branches))
        lowered = tuple(
            self.lower_branch(segment, b, width_in, share)
            for b, share in zip(segment.branches, shares, strict=True)
        )
        first = lowered[0].output
        width = sum(b.output.shape[axis] for b in lowered)
        shape = tuple(width if i == axis else d for i, d in enumerate(first.shape))
        return LoweredSegment(
            segment, lowered, entry, TensorSpec(shape, first.dtype), axis, original
        )


def parse_ratio(ratio: str) -> float:
    """Return the number of a ratio such as `0.5x`."""
    return float(ratio.removesuffix("x"))


def equal_slices(width: int, branches: int) -> list[int]:
    """Return slices of the original width; the first ones take what does not divide."""
    return [width // branches + (i < width % branches) for i in range(branches)]


def check_chain(analysis: NetworkAnalysis, plan: Plan) -> None:
    """Check that segments follow each other from the input to the output.

    Raise BadPlan that names the gap.
    """
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
        used = [branch.processor for branch in segment.branches]
        if len(set(used)) != len(used):
            names = ", ".join(used)
            raise BadPlan(
                f"segment {segment.start} -> {segment.end} has two branches on one processor,"
                f" {names}, they would run in turn"
            )
        at = segment.end
    if analysis.cut(at).name != OUTPUT:
        raise BadPlan(f"plan ends at {at!r}, plan of {plan.model}, it must end at 'output'")


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
        lowered.append(analysis.lower_segment(segment, entry))
        entry = lowered[-1].output
    check_output(analysis.graph, entry, plan)
    return LoweredNetwork(plan, analysis.graph, tuple(lowered))


def check_output(graph: Graph, entry: TensorSpec, plan: Plan) -> None:
    """Check that the lowered network's output has the original's shape. Raises BadPlan when not."""
    expected = graph.specs()[graph.outputs[0]]
    if entry.shape != expected.shape:
        raise BadPlan(
            f"output becomes {entry}, plan of {plan.model}, the network's is {expected}; the last"
            " segment keeps its width"
        )


def single_processor_plan(graph: Graph, model: str, processor: str) -> Plan:
    """Return the plan that branches nothing."""
    shape = graph.inputs[0].spec.shape
    return Plan(model, shape, (Segment(INPUT, OUTPUT, (Branch(processor),)),))


__all__ = [
    "ADAPTER_PREFIX",
    "LoweredBranch",
    "LoweredNetwork",
    "LoweredSegment",
    "NetworkAnalysis",
    "Section",
    "lower",
    "nearest_width",
    "resize_section",
    "single_processor_plan",
]
