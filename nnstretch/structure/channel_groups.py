"""Channel groups: sets of dimensions that must stay equal when a network's width changes.

Every dimension of every tensor is a sequence of parts, and each part belongs to a group (or to
none, if its size is a fact of the input image or of the operator). Operators tie groups together:
an addition ties its operands, a depthwise or grouped convolution its two ends, batch norm its
parameters to its input; concatenation lays parts side by side, `chunk` and `split` cut them,
`flatten` multiplies them, a channel shuffle interleaves them. Groups that are tied scale by one
common ratio. What an operator cannot follow is pinned to its size, with the reason.

A weight whose channels are cut later (`x[:, :64]` and `x[:, 64:]` go different ways) is first taken
for one group; then the walk is done again with the weight in two groups, which scale apart unless
something ties them, and the finer answer is kept if it pins nothing more.

The walk is in channel_analysis.py, the rules of the single operators in channel_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.structure.channel_analysis import (
    ChannelAnalysis,
    ChannelSlice,
    Dim,
    Shape,
    ShortcutJunction,
)
from nnstretch.structure.cuts import depends_on_input
from nnstretch.structure.macs import CONVOLUTIONS


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """What may scale in a graph, and what must scale together."""

    shapes: Mapping[str, tuple[Shape, ...]]
    """Every value and weight: the parts of each dimension, per output."""
    root: tuple[int, ...]
    """Group -> the representative of all that are tied to it."""
    granularity: Mapping[int, int]
    """Root -> number of indivisible steps at the original size.

    A scale is a whole number of them.
    """
    pinned: Mapping[int, str]
    """Root -> why it keeps its size."""
    junctions: tuple[ShortcutJunction, ...]
    input_dim: int
    """Which dimension of the section's input holds channels."""
    consumed: frozenset[int]
    """Roots that a layer reads as channels."""
    weights_of: Mapping[int, tuple[str, ...]]
    """Root -> weights whose first dimension it is: who writes these channels."""

    def axis(self, value: str) -> int:
        """Return which dimension of a tensor holds channels."""
        return channel_dim(self.shapes[value][0], self.root, self.consumed)

    def roots(self, dim: Dim) -> set[int]:
        """Return the roots of the groups in a dimension."""
        return {self.root[part.group] for part in dim if part.group is not None}


ROUNDS = 4
"""Times the walk is repeated at most; a finer split may uncover another."""


def analyze_channels(graph: Graph) -> ChannelGroups:
    """Analyze one graph (usually a section between two cuts)."""
    walked = propagate_channels(graph, {})
    for _ in range(ROUNDS):
        splits = refine_groups(walked)
        if splits == walked.splits:
            break
        again = propagate_channels(graph, splits)
        if not set(pinned_weights(again)) <= set(pinned_weights(walked)):
            break
        walked = again
    return solve_groups(walked)


def propagate_channels(
    graph: Graph, splits: Mapping[tuple[str, int], frozenset[int]]
) -> ChannelAnalysis:
    """Apply every node's rule in execution order."""
    from nnstretch.structure.channel_rules import apply_rule

    trainable = {weight.name for weight in graph.weights if weight.trainable}
    analyst = ChannelAnalysis(
        graph,
        specs=graph.specs(),
        carriers=depends_on_input(graph),
        trainable=trainable,
        splits=splits,
    )
    for value in graph.inputs:
        shape = tuple(
            analyst.new_group(d) if i else (ChannelSlice(None, d),)
            for i, d in enumerate(value.spec.shape)
        )
        analyst.shapes[value.name] = (shape,)
        analyst.inputs |= {part.group for dim in shape for part in dim if part.group is not None}
    for name in kernel_weights(graph):
        analyst.pin(analyst.shape_of(name)[2:], "window of a convolution")
    for node in graph.nodes:
        analyst.shapes[node.name] = apply_rule(analyst, node)
    return analyst


def kernel_weights(graph: Graph) -> Iterator[str]:
    """Yield weights that become a convolution's kernel, directly or through operators (weight
    standardization).
    """
    weights = {weight.name: weight.spec.shape for weight in graph.weights}
    writers = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if node.kind not in CONVOLUTIONS or len(node.inputs) < 2 or node.inputs[1] in weights:
            continue
        rank = len(writers[node.inputs[1]].output.shape)
        todo, seen = [node.inputs[1]], set()
        while todo:
            name = todo.pop()
            if len(weights.get(name, ())) == rank:
                yield name
            if name in writers and name not in seen:
                seen.add(name)
                todo += writers[name].inputs


def refine_groups(analyst: ChannelAnalysis) -> Mapping[tuple[str, int], frozenset[int]]:
    """Return where weights begin new groups, when every group that was cut becomes two."""
    cut_at: dict[tuple[int, int], set[int]] = {}
    for group, offset in analyst.marks:
        cut_at.setdefault((analyst.find(group), analyst.base[group]), set()).add(offset)
    splits = dict(analyst.splits)
    for name in analyst.weights & analyst.shapes.keys():
        for axis, dim in enumerate(analyst.shapes[name][0]):
            at = 0
            for part in dim:
                offsets = (
                    set()
                    if part.group is None
                    else cut_at.get((analyst.find(part.group), part.size), set())
                )
                if offsets:
                    splits[name, axis] = splits.get((name, axis), frozenset()) | {
                        at + offset for offset in offsets
                    }
                at += part.size
    return splits


def pinned_weights(analyst: ChannelAnalysis) -> Iterator[tuple[str, int]]:
    """Yield weights and axes whose groups are pinned."""
    for name in analyst.weights & analyst.shapes.keys():
        for axis, dim in enumerate(analyst.shapes[name][0]):
            if any(part.group is not None and analyst.is_pinned(part.group) for part in dim):
                yield name, axis


def solve_groups(analyst: ChannelAnalysis) -> ChannelGroups:
    """Return the groups that an analysis has ended with."""
    root = tuple(analyst.find(g) for g in range(len(analyst.parent)))
    quanta: dict[int, int] = {}
    for r in set(root):
        step = 0
        for size in analyst.sizes[r]:
            step = gcd(step, size)
        quanta[r] = max(1, step)
    writers: dict[int, list[str]] = {}
    for weight in analyst.graph.weights:
        if weight.name in analyst.shapes and analyst.shapes[weight.name][0]:
            for part in analyst.shapes[weight.name][0][0]:
                if part.group is not None:
                    writers.setdefault(root[part.group], []).append(weight.name)
    entry = analyst.shapes[analyst.graph.inputs[0].name][0]
    pinned = {analyst.find(g): reason for g, reason in analyst.reasons.items()}
    consumed = frozenset(analyst.find(g) for g in analyst.consumed)
    return ChannelGroups(
        shapes=analyst.shapes,
        root=root,
        granularity=quanta,
        pinned=pinned,
        junctions=tuple(analyst.junctions),
        input_dim=channel_dim(entry, root, consumed),
        consumed=consumed,
        weights_of={r: tuple(names) for r, names in writers.items()},
    )


def channel_dim(entry: Shape, root: tuple[int, ...], consumed: frozenset[int]) -> int:
    """Return the dimension that layers read as channels.

    Dimension 1 of NCHW and the last of tokens where none does.
    """
    for i, dim in enumerate(entry):
        if any(part.group is not None and root[part.group] in consumed for part in dim):
            return i
    return 1 if len(entry) in (2, 4) else len(entry) - 1


def size_at(dim: Dim, channels_: ChannelGroups, scales: Mapping[int, Fraction]) -> int:
    """Return a dimension's size when every root scales as told; roots not named keep their size.

    Raises BadPlan when the size is no whole number of channels.
    """
    total, loose = 0, Fraction(0)
    for part in dim:
        scale = None if part.group is None else scales.get(channels_.root[part.group])
        if scale is None:
            total += part.size
            continue
        whole, remainder = divmod(part.size * scale.numerator, scale.denominator)
        total += whole
        if remainder:
            loose += Fraction(remainder, scale.denominator)
    if loose.denominator != 1:
        raise BadPlan(
            f"width {float(total + loose):g} is impossible, inside a branch, channels come in whole"
            " groups"
        )
    return total + int(loose)


__all__ = [
    "ChannelGroups",
    "ChannelSlice",
    "Dim",
    "Shape",
    "ShortcutJunction",
    "analyze_channels",
    "size_at",
]
