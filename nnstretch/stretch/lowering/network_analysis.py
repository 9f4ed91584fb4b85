"""One captured network, with what all its plans have in common computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from nnstretch.graph import Graph
from nnstretch.stretch.lowering.activations import with_activation
from nnstretch.stretch.lowering.depth_scaling import plan_depth, with_depth
from nnstretch.stretch.lowering.meeting_points import meeting_points
from nnstretch.stretch.lowering.section import FeasibleWidths, InnerCut, Section
from nnstretch.stretch.lowering.width_scaling import inner_groups, output_dimension_of
from nnstretch.structure.blocks import BlockStage, find_stages
from nnstretch.structure.channel_groups import ChannelGroups, analyze_channels
from nnstretch.structure.cuts import Cut, cut_named, find_cuts


@dataclass
class NetworkAnalysis:
    """A captured network with its stages, cuts, channel groups and sections."""

    graph: Graph
    section_cache: dict[tuple[object, ...], Section] = field(default_factory=dict)
    widths_cache: dict[int, FeasibleWidths] = field(default_factory=dict)
    """Position of a cut -> widths of its tensor."""

    @cached_property
    def stages(self) -> tuple[BlockStage, ...]:
        """Return the network's stages of repeated blocks."""
        return find_stages(self.graph)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Return the network's cuts in execution order; none where its end has no dimensions.

        A single number has no channels that branches could share.
        """
        specs = self.graph.specs()
        if any(not specs[name].shape for name in self.graph.outputs):
            return ()
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

    def depth(self, start: Cut, end: Cut) -> int:
        """Return the number of blocks between two cuts."""
        return plan_depth(self.stages, start, end)

    def section(
        self, start: Cut, end: Cut, depth: int | None, activation: str | None = None
    ) -> Section:
        """Return the network between two cuts at a depth, analyzed once."""
        key = (start.position, end.position, depth, activation)
        if key not in self.section_cache:
            graph = with_depth(self.graph, self.stages, start, end, depth)
            if activation is not None:
                graph = with_activation(graph, activation)
            self.section_cache[key] = self.analyze_section(graph, start, end)
        return self.section_cache[key]

    def analyze_section(self, graph: Graph, start: Cut, end: Cut) -> Section:
        """Analyze the channels of a section."""
        axis_out = self.whole_network.axis(end.value)
        channels = analyze_channels(graph, axis_out)
        # A section may end before anything in it reads channels, so the whole network says where.
        axis_in = self.whole_network.axis(start.value)
        entry = channels.roots(channels.shapes[graph.inputs[0].name][0][axis_in])
        last = channels.roots(channels.shapes[graph.outputs[0]][0][axis_out])
        return Section(
            graph,
            channels,
            axis_in,
            axis_out,
            inner_groups(graph, channels, entry | last),
            self.inner_cuts(graph, channels, start, end, last),
        )

    def inner_cuts(
        self, graph: Graph, channels: ChannelGroups, start: Cut, end: Cut, last: set[int]
    ) -> tuple[InnerCut, ...]:
        """Return inner ends of blocks with widths of their own, which `last` groups do not decide.

        Of cuts of the same groups, the last alone: a depthwise convolution with more outputs than
        inputs makes them wider, but they scale by one ratio. Of cuts that never scale, all: what
        lies before each keeps its width, too.
        """
        position = graph.positions()
        cuts: list[InnerCut] = []
        seen: list[set[int]] = []
        for cut in reversed(self.block_ends):
            if not start.position < cut.position < end.position or cut.value not in position:
                continue
            dim = channels.shapes[cut.value][0][self.whole_network.axis(cut.value)]
            free = channels.roots(dim) - channels.pinned.keys()
            if not free or (not free <= last and free not in seen):
                cuts.append(InnerCut(position[cut.value], dim, self.feasible_widths(cut)))
                seen.append(free)
        return tuple(reversed(cuts))

    def feasible_widths(self, cut: Cut) -> FeasibleWidths:
        """Return the widths that the tensor at a cut can have."""
        if cut.position not in self.widths_cache:
            channels = self.whole_network
            dim = channels.shapes[cut.value][0][channels.axis(cut.value)]
            pinned = dict.fromkeys(channels.pinned, Fraction(1))
            end = output_dimension_of(dim, channels, pinned)
            full = sum(part.size for part in dim)
            widths = FeasibleWidths(full, int(end.settled), end.steps(channels))
            self.widths_cache[cut.position] = widths
        return self.widths_cache[cut.position]
