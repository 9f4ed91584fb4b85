"""One section of a network at one depth, and the same section at another width."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd

from nnstretch.graph import Graph, ValueRef
from nnstretch.plan import Branch
from nnstretch.stretch.lowering.adapters import with_input_adapter
from nnstretch.stretch.lowering.channel_allocation import nearest_sum
from nnstretch.stretch.lowering.resize_graph import check_group_width, resize_graph
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
from nnstretch.structure.channel_groups import ChannelGroups, Dim, ShortcutJunction


@dataclass(frozen=True, slots=True)
class FeasibleWidths:
    """Widths that a tensor of the network can have, wherever branches start and meet."""

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
        step = self.steps[0]
        below = max(1, (wanted - self.settled) // step) * step + self.settled
        return below if wanted - below <= below + step - wanted else below + step

    def scaled_width(self, ratio: Fraction) -> int:
        """Return the feasible width nearest to a share of the original's, on the granule."""
        return self.full if ratio == 1 else self.nearest(wanted_width(self.full, float(ratio)))


@dataclass(frozen=True, slots=True)
class InnerCut:
    """A cut inside a section that ends a block; its width follows the section's end."""

    position: int
    """Index of the node that writes it."""
    dim: Dim
    widths: FeasibleWidths


@dataclass(frozen=True)
class Section:
    """A section at one depth, analyzed: everything about it that does not depend on width."""

    graph: Graph
    channels: ChannelGroups
    axis_in: int
    axis_out: int
    inner_groups: tuple[InnerGroup, ...]
    inner_cuts: tuple[InnerCut, ...] = ()
    """Cuts inside the section, less those that share all of the end's groups."""

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

    def junction_ends(self, junction: ShortcutJunction) -> tuple[str, str]:
        """Return the names of the shortcut and of the main path that a junction adds."""
        args = next(node.args for node in self.graph.nodes if node.name == junction.node)
        shortcut, main = args[junction.argument], args[1 - junction.argument]
        assert isinstance(shortcut, ValueRef)
        assert isinstance(main, ValueRef)
        return shortcut.name, main.name

    def junction_dims(self, junction: ShortcutJunction) -> tuple[Dim, Dim]:
        """Return the dimensions of the shortcut and of the main path that meet at a junction."""
        shortcut, main = self.junction_ends(junction)
        shapes, axis = self.channels.shapes, junction.axis
        return shapes[shortcut][0][axis], shapes[main][0][axis]


def resize_section(
    section: Section, branch: Branch, width_in: int, width: int, where: str
) -> tuple[Graph, dict[int, Fraction]]:
    """Resize a section to `width`, behind an adapter where it cannot read `width_in` as it is.

    Returns the graph and the scale of every group. Raises BadPlan when the width or the group width
    cannot be had.
    """
    channels = section.channels
    inside, scales, targets = cut_scales(section, width_in, width, where)
    scale_inner_groups(section.inner_groups, channels, scales, branch.inner_ratio, targets)
    graph = section.graph
    if branch.group_width is not None:
        check_group_width(graph, channels, scales, branch.group_width, where)
    # What keeps its widths is not written anew: nothing can go wrong there.
    if branch.group_width is not None or any(scale != 1 for scale in scales.values()):
        graph = resize_graph(section.graph, channels, scales, branch.group_width)
    if inside != width_in:
        graph = with_input_adapter(graph, section.graph.outputs[0], width_in, section.axis_in)
    return graph, scales


def cut_scales(
    section: Section, width_in: int, width: int, where: str
) -> tuple[int, dict[int, Fraction], list[WidthTarget]]:
    """Return what a section reads, the scales of the groups at all its cuts, and its cuts' widths.

    Raises BadPlan when a cut or the end cannot have its width.
    """
    channels = section.channels
    inside, scales = entry_scales(section, width_in, width)
    targets: list[WidthTarget] = []
    for cut in section.inner_cuts:
        cut_width = cut.widths.scaled_width(Fraction(width, section.width_out))
        solve_end(cut.dim, channels, scales, cut_width, where)
        targets.append(WidthTarget(cut.position, cut_width, cut.widths.full))
    solve_end(section.output_dimension, channels, scales, width, where)
    targets.append(WidthTarget(len(section.graph.nodes), width, section.width_out))
    return inside, scales, targets


def nearest_width(section: Section, width_in: int, width: int) -> int:
    """Return the nearest feasible width of a branch that reads `width_in` channels."""
    _, scales = entry_scales(section, width_in, width)
    return nearest_end(section.output_dimension, section.channels, scales, width)


def entry_scales(section: Section, width_in: int, width: int) -> tuple[int, dict[int, Fraction]]:
    """Return the width that a section reads, and the scales of its input's and pinned groups."""
    inside = readable_width(section, width_in, width)
    scales = dict.fromkeys(section.channels.pinned, Fraction(1))
    for root in section.channels.roots(section.input_dimension) - section.channels.pinned.keys():
        scales[root] = Fraction(inside, section.width_in)
    return inside, scales


def readable_width(section: Section, width_in: int, width: int) -> int:
    """Return `width_in` where a section can read it, else what an adapter must make of it.

    An input that is the whole end (a residual stage) must have the end's ratio, one that is a whole
    inner cut that cut's. One that is a part of the end (a concatenation) is read as it is, unless
    that would leave the remaining channels less than half of their share.
    """
    channels = section.channels
    roots = channels.roots(section.input_dimension)
    if roots & channels.pinned.keys() or not roots:
        return section.width_in
    ratio = Fraction(width, section.width_out)
    for cut in section.inner_cuts:
        if roots <= channels.roots(cut.dim):
            share = Fraction(cut.widths.scaled_width(ratio), cut.widths.full)
            return nearest_share(section, roots, share)
    wanted = Fraction(width_in, section.width_in)
    if roots & channels.roots(section.output_dimension):
        settled = dict.fromkeys(channels.pinned, Fraction(1)) | dict.fromkeys(roots, wanted)
        end = output_dimension_of(section.output_dimension, channels, settled)
        if not end.free:
            return nearest_share(section, roots, ratio)
        if 2 * end.ratio(width) < ratio:
            return nearest_whole_groups(section, roots, ratio)
    if all((wanted * channels.granularity[root]).denominator == 1 for root in roots):
        return width_in
    return nearest_whole_groups(section, roots, wanted)


def nearest_share(section: Section, roots: set[int], ratio: Fraction) -> int:
    """Return the input width nearest to a ratio at which all its groups stay whole.

    Of two the smaller; each group keeps at least one step.
    """
    granularity = gcd(*(section.channels.granularity[root] for root in roots))
    steps = max(1, ceil(ratio * granularity - Fraction(1, 2)))
    return section.width_in * steps // granularity


def nearest_whole_groups(section: Section, roots: set[int], ratio: Fraction) -> int:
    """Return the input width nearest to a ratio at which its groups stay whole."""
    channels = section.channels
    coarsest = min(roots, key=lambda root: channels.granularity[root])
    return int(
        nearest_feasible_scale(channels, coarsest, section.width_in, ratio) * section.width_in
    )
