"""Width scaling: from a branch's width to the ratio of every channel group in it.

Rules, in order:
- pinned groups keep their size; the input group follows the tensor the branch reads;
- the end of the branch gets the width asked for;
- a middle that is squeezed between equals (squeeze-and-excitation, a bottleneck inside a residual
  block) follows them; a middle wider than its end follows its beginning (inverted bottleneck);
- a cut inside the branch gets its share of the width asked for, on the granule;
- everything else follows the next cut: its width over the original width there.
Ratios that leave a channel fractional go to the nearest multiple of the hardware's granule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, ValueRef
from nnstretch.stretch.lowering.channel_allocation import (
    CHANNEL_MULTIPLE,
    allocate_channels,
    nearest_sum,
)
from nnstretch.stretch.lowering.gates import attention_groups, gate_nodes, on_pooled_maps
from nnstretch.structure.channel_groups import ChannelGroups, ChannelSlice, Dim
from nnstretch.structure.macs import WEIGHTED


def round_channels(width: float, granule: int = CHANNEL_MULTIPLE) -> int:
    """Round to the nearest multiple, one more where that loses over a tenth, as NN-Stretch does."""
    rounded = max(granule, int(width + granule / 2) // granule * granule)
    return rounded + granule if rounded < 0.9 * width else rounded


def wanted_width(full: int, ratio: float) -> int:
    """Return a share of an original width, on the granule unless the width is narrow."""
    if full >= 2 * CHANNEL_MULTIPLE:
        return round_channels(full * ratio)
    return max(1, ceil(full * ratio))


@dataclass(frozen=True, slots=True)
class WidthTarget:
    """A cut or the end of a branch: its width, and its original width."""

    position: int
    """Index of the node that writes it."""
    width: int
    full: int


@dataclass(frozen=True, slots=True)
class WeightedLayer:
    """A layer with weights, and the roots of the channel groups at its two ends."""

    node: Node
    reads: set[int]
    writes: set[int]


@dataclass(frozen=True, slots=True)
class InnerGroup:
    """A free group inside a branch, and what its width follows."""

    root: int
    width: int
    follows: int | None
    """Root of another group, or None for the branch's own ratio."""
    direct: bool
    """Whether it is a bottleneck or expansion: of no gate, no pooled map, no attention."""
    expands: bool
    """Whether it is measured against the width that its block reads."""
    position: int
    """Index of the node that writes it first."""


def inner_groups(graph: Graph, channels: ChannelGroups, ends: set[int]) -> tuple[InnerGroup, ...]:
    """Return free groups that are neither the input's nor the output's, in execution order."""
    layers = weighted_layers(graph, channels)
    gates, attention = gate_nodes(graph), attention_groups(graph, channels)
    position = graph.positions()
    groups: dict[int, InnerGroup] = {}
    for layer in layers:
        for root in layer.writes - ends - channels.pinned.keys() - groups.keys():
            following: set[int] = set()
            for reader in layers:
                if root in reader.reads:
                    following |= reader.writes
            node = layer.node
            direct = node.name not in gates and not on_pooled_maps(node) and root not in attention
            groups[root] = inner_group(
                graph, channels, layer, root, following, direct, position[node.name]
            )
    return tuple(groups.values())


def inner_group(
    graph: Graph,
    channels: ChannelGroups,
    layer: WeightedLayer,
    root: int,
    following: set[int],
    direct: bool,
    position: int,
) -> InnerGroup:
    """Return a group that a layer writes; its readers write the groups `following`."""
    width = channel_width(channels, graph, root)
    if not layer.reads:
        return InnerGroup(root, width, None, direct, False, position)
    before = min(layer.reads)
    squeezed = before in following
    narrow = channel_width(channels, graph, before)
    wide = max((channel_width(channels, graph, r) for r in following), default=0)
    expands = not squeezed and width > wide > 0 and width > narrow > 0 and width % narrow == 0
    follows = before if squeezed or expands else None
    return InnerGroup(root, width, follows, direct, expands, position)


def weighted_layers(graph: Graph, channels: ChannelGroups) -> list[WeightedLayer]:
    """Return the layers with weights whose channels are tracked."""
    layers: list[WeightedLayer] = []
    for node in graph.nodes:
        weight = node.args[1] if node.kind in WEIGHTED else None
        if isinstance(weight, ValueRef) and weight.name in channels.shapes:
            dims = channels.shapes[weight.name][0]
            read = dims[int(weight.name not in channels.transposed)]
            written = channels.written(weight.name)
            layers.append(WeightedLayer(node, channels.roots(read), channels.roots(written)))
    return layers


def channel_width(channels: ChannelGroups, graph: Graph, root: int) -> int:
    """Return the channels of a group at the original size: what its first writer writes."""
    writers = channels.weights_of.get(root, ())
    if writers:
        return part_size(channels, writers[0], root)
    for dim in channels.shapes[graph.inputs[0].name][0]:
        for part in dim:
            if in_group(channels, part, root):
                return part.size
    return channels.granularity[root]


def part_size(channels: ChannelGroups, name: str, root: int) -> int:
    """Return the channels that a weight writes of a group."""
    return sum(p.size for p in channels.written(name) if in_group(channels, p, root))


def in_group(channels: ChannelGroups, part: ChannelSlice, root: int) -> bool:
    """Return whether a part of a dimension belongs to a group."""
    return part.group is not None and channels.root[part.group] == root


def nearest_feasible_scale(
    channels: ChannelGroups, root: int, width: int, ratio: Fraction
) -> Fraction:
    """Return `ratio` where every part stays whole, else the nearest scale on the granule."""
    granularity = channels.granularity[root]
    if ratio > 0 and (ratio * granularity).denominator == 1:
        return ratio
    step = Fraction(width, granularity)
    if step.denominator == 1 and width * ratio >= 2 * CHANNEL_MULTIPLE:
        step = Fraction(lcm(int(step), CHANNEL_MULTIPLE))
    count = max(1, round(width * ratio / step))
    return count * step / width


@dataclass(frozen=True, slots=True)
class OutputDimension:
    """A branch's last dimension: how many channels are settled, and the groups that still scale."""

    settled: Fraction
    free: Mapping[int, int]
    """Root -> channels at the original size."""

    def ratio(self, width: int) -> Fraction:
        """Return the factor of the free groups that gives a width."""
        return (width - self.settled) / sum(self.free.values())

    def steps(self, channels: ChannelGroups) -> tuple[int, ...]:
        """Return the smallest step of every free group."""
        return tuple(size // channels.granularity[root] for root, size in self.free.items())


def output_dimension_of(
    dim: Dim, channels: ChannelGroups, scales: Mapping[int, Fraction]
) -> OutputDimension:
    """Divide an output dimension into channels that are settled and groups that may scale."""
    settled = Fraction(0)
    free: dict[int, int] = {}
    for part in dim:
        root = None if part.group is None else channels.root[part.group]
        if root is None:
            settled += part.size
        elif root in channels.pinned or root in scales:
            settled += part.size * scales.get(root, Fraction(1))
        else:
            free[root] = free.get(root, 0) + part.size
    return OutputDimension(settled, free)


def nearest_end(
    dim: Dim, channels: ChannelGroups, scales: Mapping[int, Fraction], width: int
) -> int:
    """Return the nearest width that an output dimension can have."""
    end = output_dimension_of(dim, channels, scales)
    settled = int(end.settled)
    if not end.free:
        return settled
    return settled + nearest_sum(end.steps(channels), width - end.settled)


def solve_end(
    dim: Dim, channels: ChannelGroups, scales: dict[int, Fraction], width: int, where: str
) -> None:
    """Add scales of the free groups that sum to `width`. Raises BadPlan with what is reachable."""
    end = output_dimension_of(dim, channels, scales)
    if not end.free and end.settled == width:
        return
    reason = ""
    if not end.free:
        reason = why_settled(dim, channels, end.settled)
    elif width <= end.settled:
        nearest = nearest_end(dim, channels, scales, width)
        reason = f"{end.settled} of its channels do not scale, {nearest} is the nearest"
    else:
        chosen = allocate_channels(end.free, channels, width - end.settled, end.ratio(width))
        if end.settled + sum(end.free[root] * scale for root, scale in chosen.items()) == width:
            scales.update(chosen)
            return
        nearest = nearest_end(dim, channels, scales, width)
        reason = f"channels come in whole groups, {nearest} is the nearest"
    raise BadPlan(f"width {width} is impossible, {where}, {reason}")


def why_settled(dim: Dim, channels: ChannelGroups, width: Fraction) -> str:
    """Return why a dimension of which no group is free has its width."""
    for part in dim:
        if part.group is not None and channels.root[part.group] in channels.pinned:
            return f"its width is {width} and {channels.pinned[channels.root[part.group]]}"
    if not channels.roots(dim):
        return f"its width is {width} and nothing in it scales"
    return f"channels come in whole groups, {width} is the nearest"


def scale_inner_groups(
    groups: Sequence[InnerGroup],
    channels: ChannelGroups,
    scales: dict[int, Fraction],
    inner_ratio: float | None,
    targets: Sequence[WidthTarget],
) -> None:
    """Add scales of the inner groups; `inner_ratio` overrides the bottleneck or expansion factor.

    A group follows the first of `targets` behind it, unless it follows another group.
    """
    for group in groups:
        if group.root in scales:
            continue
        target = next(target for target in targets if group.position <= target.position)
        ratio = Fraction(target.width, target.full)
        if inner_ratio is not None and group.direct:
            wanted = reference_width(group, channels, scales, target.width) * inner_ratio
            ratio = Fraction(round(wanted), group.width)
        elif group.follows is not None:
            ratio = scales.get(group.follows, ratio)
        scales[group.root] = nearest_feasible_scale(channels, group.root, group.width, ratio)


def reference_width(
    group: InnerGroup, channels: ChannelGroups, scales: Mapping[int, Fraction], width: int
) -> Fraction:
    """Return the width that an inner ratio multiplies: of the block's input for an expansion."""
    if not group.expands or group.follows is None:
        return Fraction(width)
    root = group.follows
    sizes = [part_size(channels, name, root) for name in channels.weights_of.get(root, ())]
    size = max(sizes, default=0) or widest_part(channels, root)
    return size * scales.get(root, Fraction(1))


def widest_part(channels: ChannelGroups, root: int) -> int:
    """Return the largest stretch of any dimension that belongs to a group."""
    sizes: list[int] = []
    for shapes in channels.shapes.values():
        for shape in shapes:
            for dim in shape:
                sizes += [part.size for part in dim if in_group(channels, part, root)]
    return max(sizes)
