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

from collections.abc import Callable, Mapping
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
from nnstretch.structure.channel_groups import ChannelGroups, ChannelSlice, Dim
from nnstretch.structure.macs import WEIGHTED


@dataclass(frozen=True, slots=True)
class InnerGroup:
    """A free group inside a branch, and what its width follows."""

    root: int
    width: int
    follows: int | None
    """Another root, or None for the branch's own ratio."""
    direct: bool
    """Whether it is a bottleneck or expansion over pixels, not the squeeze of a gate."""
    expands: bool
    """Whether it is measured against its beginning."""
    at: int = 0
    """Index of the node that writes it first."""


def round_channels(width: float, granule: int = CHANNEL_MULTIPLE) -> int:
    """Round to the nearest multiple, at least one.

    One more where rounding lost over a tenth (`round_channels` of NN-Stretch).
    """
    rounded = max(granule, int(width + granule / 2) // granule * granule)
    return rounded + granule if rounded < 0.9 * width else rounded


def wanted_width(full: int, ratio: float) -> int:
    """Return a share of an original width on the granule; narrow ones are too few for that."""
    return (
        round_channels(full * ratio) if full >= 2 * CHANNEL_MULTIPLE else max(1, ceil(full * ratio))
    )


@dataclass(frozen=True, slots=True)
class WidthTarget:
    """A cut or the end of a branch: its width, and its original width."""

    position: int
    width: int
    full: int


def inner_groups(graph: Graph, channels: ChannelGroups, ends: set[int]) -> tuple[InnerGroup, ...]:
    """Return free groups that are neither the input's nor the output's, in execution order."""
    writers, readers = weighted_layers(graph, channels)
    groups: dict[int, InnerGroup] = {}
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    for node, source, target in writers:
        for root in target - ends - channels.pinned.keys() - groups.keys():
            width = channel_width(channels, graph, root)
            next_roots = (
                set().union(*(out for _, into, out in readers if root in into))
                if readers
                else set()
            )
            before = next(iter(sorted(source)), None)
            squeezed = before is not None and before in next_roots
            wide = max((channel_width(channels, graph, r) for r in next_roots), default=0)
            narrow = channel_width(channels, graph, before) if before is not None else 0
            expands = (
                before is not None
                and width > wide > 0
                and narrow > 0
                and width % narrow == 0
                and width > narrow
            )
            pixels = len(node.output.shape) == 4 and max(node.output.shape[2:]) > 1
            groups[root] = InnerGroup(
                root,
                width,
                before if squeezed or expands else None,
                pixels,
                expands and not squeezed,
                position[node.name],
            )
    return tuple(groups.values())


def weighted_layers(
    graph: Graph, channels: ChannelGroups
) -> tuple[list[tuple[Node, set[int], set[int]]], list[tuple[Node, set[int], set[int]]]]:
    """Return layers with the roots of what they read and write."""
    rows: list[tuple[Node, set[int], set[int]]] = []
    for node in graph.nodes:
        if (
            node.kind not in WEIGHTED
            or not isinstance(node.args[1], ValueRef)
            or node.args[1].name not in channels.shapes
        ):
            continue
        weight = channels.shapes[node.args[1].name][0]
        rows.append((node, channels.roots(weight[1]), channels.roots(weight[0])))
    return rows, rows


def channel_width(channels: ChannelGroups, graph: Graph, root: int) -> int:
    """Return channels of a group at the original size: what its first writer writes."""
    for name in channels.weights_of.get(root, ()):
        return sum(
            p.size
            for p in channels.shapes[name][0][0]
            if p.group is not None and channels.root[p.group] == root
        )
    entry = channels.shapes[graph.inputs[0].name][0]
    for dim in entry:
        for part in dim:
            if part.group is not None and channels.root[part.group] == root:
                return part.size
    return channels.granularity[root]


def nearest_feasible_scale(
    channels: ChannelGroups, root: int, width: int, ratio: Fraction
) -> Fraction:
    """Return the feasible scale nearest to `ratio`.

    Exact where every part stays whole, else on the granule.
    """
    quanta = channels.granularity[root]
    exact = ratio * quanta
    if exact.denominator == 1 and exact > 0:
        return ratio
    step = Fraction(width, quanta)
    unit = (
        lcm(int(step), CHANNEL_MULTIPLE)
        if step.denominator == 1 and width * ratio >= 2 * CHANNEL_MULTIPLE
        else step
    )
    count = max(1, round(width * ratio / unit))
    return Fraction(count * unit) / width


@dataclass(frozen=True, slots=True)
class OutputDimension:
    """A branch's last dimension: what of it is settled, and the groups that still scale."""

    settled: Fraction
    free: Mapping[int, int]
    """Root -> channels at the original size."""

    def ratio(self, width: int) -> Fraction:
        """Return the factor of the free groups that gives a width."""
        return (width - self.settled) / sum(self.free.values())


def output_dimension_of(
    dim: Dim, channels: ChannelGroups, scales: Mapping[int, Fraction]
) -> OutputDimension:
    """Divide an output dimension into channels that are settled and groups that may scale."""
    settled = Fraction(0)
    free: dict[int, int] = {}
    for part in dim:
        root = None if part.group is None else channels.root[part.group]
        if root is None or root in channels.pinned or root in scales:
            settled += part.size * (Fraction(1) if root is None else scales.get(root, Fraction(1)))
        else:
            free[root] = free.get(root, 0) + part.size
    return OutputDimension(settled, free)


def nearest_end(
    dim: Dim, channels: ChannelGroups, scales: Mapping[int, Fraction], width: int
) -> int:
    """Return the width nearest to the one asked for that the end can have."""
    end = output_dimension_of(dim, channels, scales)
    steps_ = [size // channels.granularity[root] for root, size in end.free.items()]
    return int(end.settled) + (nearest_sum(steps_, width - end.settled) if steps_ else 0)


def solve_end(
    dim: Dim, channels: ChannelGroups, scales: dict[int, Fraction], width: int, where: str
) -> None:
    """Give the end's free groups scales that sum to `width`.

    Raise BadPlan with what is reachable.
    """
    end = output_dimension_of(dim, channels, scales)
    if not end.free:
        if end.settled != width:
            raise BadPlan(
                f"width {width} is impossible, {where}, its width is {end.settled} and"
                f" {why_fixed(dim, channels)}"
            )
        return
    if width <= end.settled:
        nearest = nearest_end(dim, channels, scales, width)
        raise BadPlan(
            f"width {width} is impossible, {where}, {end.settled} of its channels do not scale,"
            f" {nearest} is the nearest"
        )
    chosen = allocate_channels(end.free, channels, width - end.settled, end.ratio(width))
    if end.settled + sum(end.free[r] * s for r, s in chosen.items()) != width:
        nearest = nearest_end(dim, channels, scales, width)
        raise BadPlan(
            f"width {width} is impossible, {where}, channels come in whole groups, {nearest} is the"
            " nearest"
        )
    scales.update(chosen)


def why_fixed(dim: Dim, channels: ChannelGroups) -> str:
    """Return why a dimension cannot scale."""
    reasons = [
        channels.pinned[channels.root[p.group]]
        for p in dim
        if p.group is not None and channels.root[p.group] in channels.pinned
    ]
    return reasons[0] if reasons else "nothing in it scales"


def scale_inner_groups(
    groups: tuple[InnerGroup, ...],
    channels: ChannelGroups,
    scales: dict[int, Fraction],
    inner: float | None,
    leads_to: Callable[[int], WidthTarget],
) -> None:
    """Return scales of the interior groups; `inner` overrides the bottleneck or expansion factor.

    `leads_to` tells where a node's work ends.
    """
    for interior in groups:
        if interior.root in scales:
            continue
        goal = leads_to(interior.at)
        ratio, width = Fraction(goal.width, goal.full), goal.width
        base = scales.get(interior.follows, ratio) if interior.follows is not None else ratio
        if inner is not None and interior.direct:
            wanted = reference_width(interior, channels, scales, width) * inner
            base = Fraction(round(wanted), interior.width)
        scales[interior.root] = nearest_feasible_scale(
            channels, interior.root, interior.width, base
        )


def reference_width(
    interior: InnerGroup, channels: ChannelGroups, scales: Mapping[int, Fraction], width: int
) -> Fraction:
    """Return what an overriding factor multiplies.

    The beginning's width for an expansion, else the branch's.
    """
    if not interior.expands or interior.follows is None:
        return Fraction(width)
    root = interior.follows
    size = max(
        (part_size(channels, name, root) for name in channels.weights_of.get(root, ())), default=0
    )
    return (size or widest_part(channels, root)) * scales.get(root, Fraction(1))


def widest_part(channels: ChannelGroups, root: int) -> int:
    """Return the largest stretch of any dimension that belongs to a group."""
    dims = [dim for shapes in channels.shapes.values() for shape in shapes for dim in shape]
    return max(part.size for dim in dims for part in dim if is_multiple(channels, part, root))


def part_size(channels: ChannelGroups, name: str, root: int) -> int:
    """Return the channels of a value that belong to a group."""
    return sum(p.size for p in channels.shapes[name][0][0] if is_multiple(channels, p, root))


def is_multiple(channels: ChannelGroups, part: ChannelSlice, root: int) -> bool:
    """Return whether a part of a dimension belongs to a group."""
    return part.group is not None and channels.root[part.group] == root
