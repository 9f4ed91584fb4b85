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
from nnstretch.stretch.activations import with_activation
from nnstretch.stretch.adapters import MARK, with_back, with_front
from nnstretch.stretch.depth import depth_of, local_stages, with_depth
from nnstretch.stretch.meetings import ends_of_blocks
from nnstretch.stretch.pieces import Piece, Reach, Waypoint, entered, nearest_width, scaled
from nnstretch.stretch.scales import end_of, interiors, round_to_granule, wanted_width
from nnstretch.structure.blocks import Stage, stages
from nnstretch.structure.channels import Channels, channels
from nnstretch.structure.cuts import INPUT, OUTPUT, Cut, cut_named, cuts, section


@dataclass(frozen=True)
class LoweredBranch:
    """A branch as it will run."""

    branch: Branch
    """With every number filled in."""
    graph: Graph
    piece: Piece
    scales: Mapping[int, Fraction]

    @property
    def output(self) -> TensorSpec:
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
class Stretched:
    """A stretched network, described: nothing in it is built yet."""

    plan: Plan
    graph: Graph
    segments: tuple[LoweredSegment, ...]

    @property
    def macs(self) -> int:
        return sum(branch.graph.macs for segment in self.segments for branch in segment.branches)

    @property
    def params(self) -> int:
        return sum(branch.graph.params for segment in self.segments for branch in segment.branches)


@dataclass
class Stretcher:
    """One captured network, with what its plans have in common computed once."""

    graph: Graph
    pieces: dict[tuple[object, ...], Piece] = field(default_factory=dict)
    reaches: dict[int, Reach] = field(default_factory=dict)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return stages(self.graph)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        return cuts(self.graph)

    @cached_property
    def whole(self) -> Channels:
        return channels(self.graph)

    @cached_property
    def block_ends(self) -> tuple[Cut, ...]:
        """Cuts that end a block, in execution order; the output is the last."""
        return ends_of_blocks(self.graph, self.cuts, self.stages, self.whole)

    def cut(self, name: str) -> Cut:
        for cut in self.cuts:
            if cut.name == name:
                return cut
        return cut_named(self.graph, name)

    def piece(self, start: Cut, end: Cut, depth: int | None, activation: str | None = None) -> Piece:
        key = (start.position, end.position, depth, activation)
        if key not in self.pieces:
            graph = with_depth(self.graph, self.stages, start, end, depth)
            if activation is not None:
                graph = with_activation(graph, activation)
            self.pieces[key] = self.analysed(graph, start, end)
        return self.pieces[key]

    def analysed(self, graph: Graph, start: Cut, end: Cut) -> Piece:
        found = channels(graph)
        axis_in = self.whole.axis(start.value) if start.name != INPUT else found.input_dim
        axis_out = self.whole.axis(end.value)
        outer = found.roots(found.shapes[graph.inputs[0].name][0][axis_in]) | found.roots(found.shapes[graph.outputs[0]][0][axis_out])
        return Piece(graph, found, axis_in, axis_out, interiors(graph, found, outer), self.waypoints(graph, found, start, end))

    def waypoints(self, graph: Graph, found: Channels, start: Cut, end: Cut) -> tuple[Waypoint, ...]:
        """Ends of blocks inside a section that are still there at its depth; where one cannot scale, the width there is not asked for."""
        position = {node.name: i for i, node in enumerate(graph.nodes)}
        last = found.roots(found.shapes[graph.outputs[0]][0][self.whole.axis(end.value)])
        points = []
        for cut in self.block_ends:
            if not start.position < cut.position < end.position or cut.value not in position:
                continue
            dim = found.shapes[cut.value][0][self.whole.axis(cut.value)]
            free = found.roots(dim) - found.pinned.keys()
            if free and not (free <= last):
                points.append(Waypoint(position[cut.value], dim, self.reach(cut)))
        return tuple(points)

    def reach(self, cut: Cut) -> Reach:
        """Widths that the tensor at a cut can have."""
        if cut.position not in self.reaches:
            dim = self.whole.shapes[cut.value][0][self.whole.axis(cut.value)]
            end = end_of(dim, self.whole, dict.fromkeys(self.whole.pinned, Fraction(1)))
            steps = tuple(size // self.whole.quanta[root] for root, size in end.free.items())
            self.reaches[cut.position] = Reach(sum(part.size for part in dim), int(end.settled), steps)
        return self.reaches[cut.position]

    def depth(self, start: Cut, end: Cut) -> int:
        return depth_of(self.stages, start, end)

    def branch(self, segment: Segment, branch: Branch, width_in: int, share: int | None = None) -> LoweredBranch:
        """One branch reading `width_in` channels; `share` is what a `project` merge expects of it.

        Raises BadPlan where depth or width are impossible, with what is possible.
        """
        start, end = self.cut(segment.start), self.cut(segment.end)
        where = f"segment {segment.start} -> {segment.end} on {branch.processor}"
        piece = self.piece(start, end, branch.depth, branch.activation)
        full = piece.width_out
        width = full if branch.width is None else branch.width
        if width < 1:
            raise BadPlan(f"width {width} is impossible, {where}, a branch needs at least one channel")
        if segment.merge == "project":
            return self.projected(segment, branch, piece, width_in, width, share or full, where)
        graph, scales = scaled(piece, branch, width_in, width, where)
        done = replace(branch, depth=branch.depth or self.depth(start, end), width=width)
        return LoweredBranch(done, graph, piece, scales)

    def projected(self, segment: Segment, branch: Branch, piece: Piece, width_in: int, width: int, share: int, where: str) -> LoweredBranch:
        """1x1 convolutions in and out keep the original width (MB_VER 1 of NN-Stretch)."""
        inside = branch.width_in or round_to_granule(width / piece.width_out * width_in)
        into, _ = entered(piece, inside, width)
        if branch.width_in and into != inside:
            raise BadPlan(f"width_in {inside} is impossible, {where}, {into} is the nearest")
        inside = into
        graph, scales = scaled(piece, branch, inside, width, where)
        graph = with_front(graph, segment.end, width_in, piece.axis_in)
        out = branch.width_out or share
        if graph.specs()[graph.outputs[0]].shape[piece.axis_out] != out:
            graph = with_back(graph, segment.end, out, piece.axis_out)
        depth = branch.depth or self.depth(self.cut(segment.start), self.cut(segment.end))
        return LoweredBranch(replace(branch, depth=depth, width=width, width_in=inside, width_out=out), graph, piece, scales)

    def absolute(self, segment: Segment, branch: Branch, width_in: int) -> Branch:
        """A branch whose depth and width are numbers: a ratio (`0.5x`) becomes the nearest that can be had."""
        start, end = self.cut(segment.start), self.cut(segment.end)
        depth, width = branch.depth, branch.width
        if isinstance(depth, str):
            fewest = max(1, len(local_stages(self.stages, start, end)))
            depth = max(fewest, int(self.depth(start, end) * share(depth) + 0.5))
        if isinstance(width, str):
            piece = self.piece(start, end, depth, branch.activation)
            width = wanted_width(piece.width_out, share(width))
            inside = piece.width_in if segment.merge == "project" else width_in
            width = nearest_width(piece, inside, width)
        return replace(branch, depth=depth, width=width)

    def segment(self, segment: Segment, entry: TensorSpec) -> LoweredSegment:
        start, end = self.cut(segment.start), self.cut(segment.end)
        original = section(self.graph, start, end)
        axis_in = self.piece(start, end, None).axis_in
        axis = self.piece(start, end, None).axis_out
        width_in = entry.shape[axis_in]
        full = original.specs()[original.outputs[0]].shape[axis] if original.specs()[original.outputs[0]].shape else 1
        segment = replace(segment, branches=tuple(self.absolute(segment, branch, width_in) for branch in segment.branches))
        shares = equal_shares(full, len(segment.branches))
        lowered = tuple(self.branch(segment, b, width_in, share) for b, share in zip(segment.branches, shares, strict=True))
        first = lowered[0].output
        width = sum(b.output.shape[axis] for b in lowered)
        shape = tuple(width if i == axis else d for i, d in enumerate(first.shape))
        return LoweredSegment(segment, lowered, entry, TensorSpec(shape, first.dtype), axis, original)


def share(ratio: str) -> float:
    return float(ratio.removesuffix("x"))


def equal_shares(width: int, branches: int) -> list[int]:
    """Slices of the original width; the first ones take what does not divide."""
    return [width // branches + (i < width % branches) for i in range(branches)]


def check_chain(stretcher: Stretcher, plan: Plan) -> None:
    """Segments must follow each other from the input to the output; raise BadPlan that names the gap."""
    if not plan.segments:
        raise BadPlan(f"empty plan, {plan.model}, it needs at least one segment up to 'output'")
    at = INPUT
    for number, segment in enumerate(plan.segments):
        if segment.start != at and stretcher.cut(segment.start) != stretcher.cut(at):
            raise BadPlan(f"segment {number} starts at {segment.start!r}, plan of {plan.model}, the one before ends at {at!r}")
        if stretcher.cut(segment.start).position >= stretcher.cut(segment.end).position:
            raise BadPlan(f"segment {number} ends at {segment.end!r}, plan of {plan.model}, which is not after its start {segment.start!r}")
        used = [branch.processor for branch in segment.branches]
        if len(set(used)) != len(used):
            names = ", ".join(used)
            raise BadPlan(f"segment {segment.start} -> {segment.end} has two branches on one processor, {names}, they would run in turn")
        at = segment.end
    if stretcher.cut(at).name != OUTPUT:
        raise BadPlan(f"plan ends at {at!r}, plan of {plan.model}, it must end at 'output'")


def lower(graph: Graph | Stretcher, plan: Plan) -> Stretched:
    """Raises BadPlan where plan and network disagree."""
    stretcher = graph if isinstance(graph, Stretcher) else Stretcher(graph)
    if len(stretcher.graph.inputs) != 1 or not stretcher.cuts:
        counts = f"{len(stretcher.graph.inputs)} inputs and {len(stretcher.cuts)} cuts"
        raise BadPlan(f"cannot stretch {plan.model}, it has {counts}, one input and one output are needed")
    check_chain(stretcher, plan)
    entry = stretcher.graph.inputs[0].spec
    lowered: list[LoweredSegment] = []
    for segment in plan.segments:
        lowered.append(stretcher.segment(segment, entry))
        entry = lowered[-1].output
    check_output(stretcher.graph, entry, plan)
    return Stretched(plan, stretcher.graph, tuple(lowered))


def check_output(graph: Graph, entry: TensorSpec, plan: Plan) -> None:
    expected = graph.specs()[graph.outputs[0]]
    if entry.shape != expected.shape:
        raise BadPlan(f"output becomes {entry}, plan of {plan.model}, the network's is {expected}; the last segment keeps its width")


def unbranched(graph: Graph, model: str, processor: str) -> Plan:
    """The plan that branches nothing."""
    shape = graph.inputs[0].spec.shape
    return Plan(model, shape, (Segment(INPUT, OUTPUT, (Branch(processor),)),))


__all__ = ["MARK", "LoweredBranch", "LoweredSegment", "Piece", "Stretched", "Stretcher", "lower", "nearest_width", "scaled", "unbranched"]
