"""Channel groups: sets of dimensions that must stay equal when a network's width changes.

Every dimension of every tensor is a sequence of slices, and each slice belongs to a group (or to
none, if its size is a fact of the input image or of the operator). Operators tie groups together:
an addition ties its operands, a depthwise or grouped convolution its two ends, batch norm its
parameters to its input; concatenation lays slices side by side, `chunk` and `split` cut them,
`flatten` multiplies them, a channel shuffle interleaves them. Groups that are tied scale by one
common ratio. What an operator cannot follow is pinned to its size, with the reason.

A weight whose channels are cut later (`x[:, :64]` and `x[:, 64:]` go different ways) is first taken
for one group; then the walk is done again with the weight in two groups, which scale apart unless
something ties them, and the finer answer is kept if it pins nothing more.

The walk is in channel_analysis.py, the rules of the single operators in channel_rules/.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.structure.channel_analysis import ChannelAnalysis
from nnstretch.structure.channel_rules.channel_axes import channel_axes
from nnstretch.structure.channel_rules.table import apply_rule
from nnstretch.structure.channel_slices import (
    ChannelSlice,
    Dim,
    SameChannels,
    Shape,
    ShortcutJunction,
    fixed_shape,
    groups_in,
    positioned,
)
from nnstretch.structure.cuts import depends_on_input
from nnstretch.structure.macs import CONVOLUTIONS, TRANSPOSED

MAX_WALKS = 4
"""Times the walk is repeated at most; a finer split may uncover another."""


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """What may scale in a graph, and what must scale together."""

    shapes: Mapping[str, tuple[Shape, ...]]
    """Value or weight -> the slices of each dimension, per output."""
    root: tuple[int, ...]
    """Group -> the representative of all that are tied to it."""
    granularity: Mapping[int, int]
    """Root -> indivisible steps at the original size; a scale keeps a whole number of them."""
    pinned: Mapping[int, str]
    """Root -> why it keeps its size."""
    junctions: tuple[ShortcutJunction, ...]
    consumed: frozenset[int]
    """Roots that a layer reads as channels."""
    weights_of: Mapping[int, tuple[str, ...]]
    """Root -> the weights that write these channels."""
    transposed: frozenset[str]
    """Weights of transposed convolutions, which write their second dimension."""
    numbered: int
    """Channels that have a number (`ChannelSlice.first`)."""
    same: tuple[SameChannels, ...]
    """Which numbers are kept or dropped together."""
    ranges: tuple[ChannelSlice, ...]
    """Channels that a scale keeps its share of, wherever they lie."""
    axes: Mapping[str, int]
    """Tensor -> the dimension that the nearest layer reads or writes as channels."""

    def axis(self, value: str) -> int:
        """Return which dimension of a tensor holds channels."""
        dim = consumed_dim(self.shapes[value][0], self.root, self.consumed)
        return self.axes.get(value, usual_axis(self.shapes[value][0])) if dim is None else dim

    def written(self, weight: str) -> Dim:
        """Return the dimension of a weight that holds the channels that it writes."""
        return self.shapes[weight][0][int(weight in self.transposed)]

    def roots(self, dim: Dim) -> set[int]:
        """Return the roots of the groups in a dimension."""
        return {self.root[group] for group in groups_in(dim)}


def analyze_channels(graph: Graph, output_axis: int | None = None) -> ChannelGroups:
    """Analyze one graph, usually a section between two cuts.

    Its end may change along `output_axis` only, the dimension that holds its channels where None.
    """
    walk = propagate_channels(graph, {}, output_axis)
    for _ in range(MAX_WALKS):
        splits = refine_groups(walk)
        if splits == walk.splits:
            break
        finer = propagate_channels(graph, splits, output_axis)
        if not pinned_weights(finer) <= pinned_weights(walk):
            break
        walk = finer
    return solve_groups(walk)


def propagate_channels(
    graph: Graph, splits: Mapping[tuple[str, int], frozenset[int]], output_axis: int | None
) -> ChannelAnalysis:
    """Apply every node's rule in execution order."""
    walk = ChannelAnalysis(
        graph,
        specs=graph.specs(),
        carriers=depends_on_input(graph),
        trainable={weight.name for weight in graph.weights if weight.trainable},
        splits=splits,
    )
    for value in graph.inputs:
        sizes = value.spec.shape
        shape = (*fixed_shape(sizes[:1]), *(walk.new_group(size) for size in sizes[1:]))
        walk.shapes[value.name] = (shape,)
        for dim in shape:
            walk.inputs.update(groups_in(dim))
    for name in kernel_weights(graph):
        walk.pin(walk.shape_of(name)[2:], "window of a convolution")
    for node in graph.nodes:
        walk.shapes[node.name] = apply_rule(walk, node)
    pin_beside_channels(walk, output_axis)
    return walk


def pin_beside_channels(walk: ChannelAnalysis, output_axis: int | None) -> None:
    """Keep the size of the end's dimensions that hold no channels: nothing could restore it.

    A detector's end is 1 x (4 + classes) x places: were its classes counted as channels, a narrower
    branch would find other ones.
    """
    root = tuple(walk.find(group) for group in range(len(walk.parent)))
    consumed = frozenset(root[group] for group in walk.consumed)
    for name in walk.graph.outputs:
        end = walk.shape_of(name)
        axis = output_axis
        if axis is None:
            axis = consumed_dim(end, root, consumed)
        if axis is None:
            axis = channel_axes(walk.graph).get(name, usual_axis(end))
        walk.pin([dim for i, dim in enumerate(end) if i != axis], "beside the end's channels")


def kernel_weights(graph: Graph, kinds: Container[str] = CONVOLUTIONS) -> Iterator[str]:
    """Yield weights that operators turn into the kernels of layers (weight standardization)."""
    weights = {weight.name: weight.spec.shape for weight in graph.weights}
    writers = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if node.kind not in kinds or len(node.inputs) < 2 or node.inputs[1] not in writers:
            continue
        rank = len(writers[node.inputs[1]].output.shape)
        todo = [node.inputs[1]]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if len(weights.get(name, ())) == rank:
                yield name
            if name in writers and name not in seen:
                seen.add(name)
                todo += writers[name].inputs


def kernels_of(graph: Graph, kinds: Container[str]) -> Iterator[str]:
    """Yield weights that layers of some kinds read as kernels, at once or behind operators."""
    weights = {weight.name for weight in graph.weights}
    for node in graph.nodes:
        if node.kind in kinds and len(node.inputs) > 1 and node.inputs[1] in weights:
            yield node.inputs[1]
    yield from kernel_weights(graph, kinds)


def refine_groups(walk: ChannelAnalysis) -> Mapping[tuple[str, int], frozenset[int]]:
    """Return where weights begin new groups, when every group that was cut becomes two."""
    cuts: dict[tuple[int, int], set[int]] = {}
    for group, offset in walk.marks:
        cuts.setdefault((walk.find(group), walk.base[group]), set()).add(offset)
    splits = dict(walk.splits)
    for name, axis, dim in weight_dims(walk):
        for start, part in positioned(dim):
            if part.group is None:
                continue
            offsets = cuts.get((walk.find(part.group), part.size), set())
            if offsets:
                borders = {start + offset for offset in offsets}
                splits[name, axis] = splits.get((name, axis), frozenset()) | borders
    return splits


def weight_dims(walk: ChannelAnalysis) -> Iterator[tuple[str, int, Dim]]:
    """Yield every dimension of every weight that was read: name, axis, slices."""
    for name in walk.weights & walk.shapes.keys():
        for axis, dim in enumerate(walk.shapes[name][0]):
            yield name, axis, dim


def pinned_weights(walk: ChannelAnalysis) -> set[tuple[str, int]]:
    """Return weights and axes with a group that is pinned."""
    pinned: set[tuple[str, int]] = set()
    for name, axis, dim in weight_dims(walk):
        if any(walk.is_pinned(group) for group in groups_in(dim)):
            pinned.add((name, axis))
    return pinned


def solve_groups(walk: ChannelAnalysis) -> ChannelGroups:
    """Return the groups that an analysis has ended with."""
    root = tuple(walk.find(group) for group in range(len(walk.parent)))
    consumed = frozenset(root[group] for group in walk.consumed)
    transposed = frozenset(kernels_of(walk.graph, TRANSPOSED))
    return ChannelGroups(
        shapes=walk.shapes,
        root=root,
        granularity={r: max(1, gcd(*walk.sizes[r])) for r in set(root)},
        pinned={root[group]: reason for group, reason in walk.reasons.items()},
        junctions=tuple(walk.junctions),
        consumed=consumed,
        weights_of=writers_of_groups(walk, root, transposed),
        transposed=transposed,
        numbered=walk.numbered,
        same=tuple(walk.same),
        ranges=tuple(walk.ranges),
        axes=channel_axes(walk.graph),
    )


def writers_of_groups(
    walk: ChannelAnalysis, root: tuple[int, ...], transposed: Container[str]
) -> dict[int, tuple[str, ...]]:
    """Return the weights that write channels of a root's groups, for every root."""
    writers: dict[int, tuple[str, ...]] = {}
    for weight in walk.graph.weights:
        if weight.name in walk.shapes and walk.shapes[weight.name][0]:
            written = walk.shapes[weight.name][0][int(weight.name in transposed)]
            for group in groups_in(written):
                writers[root[group]] = (*writers.get(root[group], ()), weight.name)
    return writers


def consumed_dim(entry: Shape, root: tuple[int, ...], consumed: frozenset[int]) -> int | None:
    """Return the first dimension of which layers read a group as channels; None where none is."""
    for i, dim in enumerate(entry):
        if any(root[group] in consumed for group in groups_in(dim)):
            return i
    return None


def usual_axis(entry: Shape) -> int:
    """Return the dimension that usually holds channels: 1 of vectors and maps, 2 of tokens."""
    return len(entry) - 1 if len(entry) in (1, 3) else 1


def size_at(dim: Dim, groups: ChannelGroups, scales: Mapping[int, Fraction]) -> int:
    """Return a dimension's size when some roots scale and the others keep their size.

    Raises BadPlan when the size is no whole number of channels.
    """
    whole = 0
    remainder: Fraction | None = None
    for part in dim:
        scale = None if part.group is None else scales.get(groups.root[part.group])
        if scale is None:
            whole += part.size
            continue
        channels, partial = divmod(part.size * scale.numerator, scale.denominator)
        whole += channels
        if partial:
            remainder = Fraction(partial, scale.denominator) + (remainder or 0)
    if remainder is None:
        return whole
    if remainder.denominator != 1:
        width = float(whole + remainder)
        raise BadPlan(
            f"width {width:g} is impossible, inside a branch, channels come in whole groups"
        )
    return whole + int(remainder)


__all__ = [
    "ChannelGroups",
    "ChannelSlice",
    "Dim",
    "Shape",
    "ShortcutJunction",
    "analyze_channels",
    "size_at",
]
