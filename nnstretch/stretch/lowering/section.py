"""One section of a network at one depth, and the same section at another width."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from nnstretch.graph import Graph
from nnstretch.plan import Branch
from nnstretch.stretch.lowering.adapters import with_input_adapter
from nnstretch.stretch.lowering.channel_allocation import nearest_sum
from nnstretch.stretch.lowering.resize_graph import resize_graph
from nnstretch.stretch.lowering.width_scaling import (
    InnerGroup,
    WidthTarget,
    nearest_end,
    nearest_feasible_scale,
    output_dimension_of,
    scale_inner_groups,
    solve_end,
    wanted_width,
)
from nnstretch.structure.channel_groups import ChannelGroups, Dim


@dataclass(frozen=True, slots=True)
class FeasibleWidths:
    """Which widths a tensor of the network can have, wherever branches start and meet."""

    full: int
    settled: int
    """Channels that never scale."""
    steps: tuple[int, ...]
    """Smallest step of every group that scales; each group keeps at least one."""

    def nearest(self, wanted: int) -> int:
        """Return the nearest width that it can have; the smaller of two."""
        if not self.steps:
            return self.settled
        if len(self.steps) > 1:
            return self.settled + nearest_sum(self.steps, Fraction(wanted - self.settled))
        below = max(1, (wanted - self.settled) // self.steps[0]) * self.steps[0] + self.settled
        return below if wanted - below <= below + self.steps[0] - wanted else below + self.steps[0]

    def scaled_width(self, ratio: Fraction) -> int:
        """Return a share of the original width, on the hardware's granule."""
        return self.full if ratio == 1 else self.nearest(wanted_width(self.full, float(ratio)))


@dataclass(frozen=True, slots=True)
class InnerCut:
    """A cut inside a section that ends a block.

    Its width follows the end's, on the hardware's granule.
    """

    position: int
    """Index of the node that writes it."""
    dim: Dim
    reach: FeasibleWidths

    def width(self, ratio: Fraction) -> int:
        """Return the feasible width nearest to a ratio."""
        return self.reach.scaled_width(ratio)


@dataclass(frozen=True)
class Section:
    """One section at one depth, analysed: everything about it that does not depend on width."""

    graph: Graph
    channels: ChannelGroups
    axis_in: int
    axis_out: int
    interiors: tuple[InnerGroup, ...]
    waypoints: tuple[InnerCut, ...] = ()
    """Cuts inside the section whose width is settled on the way.

    Those that share all of the end's groups are not among them.
    """

    @property
    def input_dimension(self) -> Dim:
        """Return the channel dimension of the section's input."""
        return self.channels.shapes[self.graph.inputs[0].name][0][self.axis_in]

    @property
    def output_dimension(self) -> Dim:
        """Return the channel dimension of the section's output."""
        return self.channels.shapes[self.graph.outputs[0]][0][self.axis_out]

    @property
    def width_in(self) -> int:
        """Return the channels of the section's input."""
        return self.graph.inputs[0].spec.shape[self.axis_in]

    @property
    def width_out(self) -> int:
        """Return the channels of the section's output."""
        return self.graph.specs()[self.graph.outputs[0]].shape[self.axis_out]


def resize_section(
    section: Section, branch: Branch, width_in: int, width: int, where: str
) -> tuple[Graph, dict[int, Fraction]]:
    """Return the piece at a width, behind an adapter where its input cannot simply be read at
    `width_in`.
    """
    channels = section.channels
    into, scales = entry_scales(section, width_in, width)
    goals: list[WidthTarget] = []
    for point in section.waypoints:
        reached = point.width(Fraction(width, section.width_out))
        solve_end(point.dim, channels, scales, reached, where)
        goals.append(WidthTarget(point.position, reached, point.reach.full))
    solve_end(section.output_dimension, channels, scales, width, where)
    goals.append(WidthTarget(len(section.graph.nodes), width, section.width_out))
    scale_inner_groups(
        section.interiors,
        channels,
        scales,
        branch.inner_ratio,
        lambda at: next(goal for goal in goals if at <= goal.position),
    )
    graph = resize_graph(section.graph, channels, scales, branch.group_width)
    if into != width_in:
        graph = with_input_adapter(graph, section.graph.outputs[0], width_in, section.axis_in)
    return graph, scales


def nearest_width(section: Section, width_in: int, width: int) -> int:
    """Return the width nearest to the one asked for that a branch reading `width_in` channels can
    have.
    """
    return nearest_end(
        section.output_dimension, section.channels, entry_scales(section, width_in, width)[1], width
    )


def entry_scales(section: Section, width_in: int, width: int) -> tuple[int, dict[int, Fraction]]:
    """Return the width at which the piece itself is entered, and the scales that this and the
    pinned groups settle.
    """
    into = readable_width(section, width_in, width)
    scales = {root: Fraction(1) for root in section.channels.pinned}
    for root in section.channels.roots(section.input_dimension) - section.channels.pinned.keys():
        scales[root] = Fraction(into, section.width_in)
    return into, scales


def readable_width(section: Section, width_in: int, width: int) -> int:
    """Return `width_in` where the piece can be entered at it, else what an adapter must make of it.

    An input that is the whole end (a residual stage) must have the end's ratio, one that is a whole
    cut on the way that cut's. One that is a part of it (a concatenation) is read as it is, unless
    that would leave the rest less than half of its share.
    """
    channels = section.channels
    roots = channels.roots(section.input_dimension)
    if roots & channels.pinned.keys() or not roots:
        return section.width_in
    ratio = Fraction(width, section.width_out)
    for point in section.waypoints:
        if roots <= channels.roots(point.dim):
            inside = section.width_in * Fraction(point.width(ratio), point.reach.full)
            return int(inside) if inside.denominator == 1 else section.width_in
    if roots & channels.roots(section.output_dimension):
        end = output_dimension_of(
            section.output_dimension,
            channels,
            dict.fromkeys(channels.pinned, Fraction(1))
            | dict.fromkeys(roots, Fraction(width_in, section.width_in)),
        )
        if not end.free:
            return (
                int(section.width_in * ratio)
                if (section.width_in * ratio).denominator == 1
                else section.width_in
            )
        if 2 * end.ratio(width) < ratio:
            return nearest_whole_groups(section, roots, ratio)
    wanted = Fraction(width_in, section.width_in)
    if all((wanted * channels.granularity[root]).denominator == 1 for root in roots):
        return width_in
    return nearest_whole_groups(section, roots, wanted)


def nearest_whole_groups(section: Section, roots: set[int], ratio: Fraction) -> int:
    """Return the whole number of channels at which the input's groups stay whole, nearest to a
    ratio.
    """
    return int(
        nearest_feasible_scale(
            section.channels,
            min(roots, key=lambda root: section.channels.granularity[root]),
            section.width_in,
            ratio,
        )
        * section.width_in
    )
