"""The walk behind channel groups: union-find over groups, with the demands of each operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from nnstretch.graph import Graph, Node, TensorSpec, ValueRef
from nnstretch.structure.channel_slices import (
    ChannelSlice,
    Dim,
    SameChannels,
    Shape,
    ShortcutJunction,
    fixed_dim,
    fixed_shape,
    groups_in,
    overlaps,
    piece,
    positioned,
    total,
)


@dataclass
class ChannelAnalysis:
    """State of a walk over a graph, to which every operator's rule adds."""

    graph: Graph
    parent: list[int] = field(default_factory=list)
    """Group -> a group it is tied to; itself for a root (union-find)."""
    sizes: list[set[int]] = field(default_factory=list)
    """Group -> numbers of steps that must stay whole at every scale."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Root -> why it keeps its size."""
    shapes: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    """Value or weight -> the shape of each output."""
    consumed: set[int] = field(default_factory=set)
    """Groups that a layer reads as channels."""
    junctions: list[ShortcutJunction] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    """Groups of the graph's inputs."""
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    carriers: set[str] = field(default_factory=set)
    """Values that depend on the graph's input; the others are functions of weights."""
    trainable: set[str] = field(default_factory=set)
    splits: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    """(weight, dimension) -> where it begins a new group."""
    base: list[int] = field(default_factory=list)
    """Group -> its size when it was made, before anything merged or divided it."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(group, offset): where an operator cut a whole group in two."""
    numbered: int = 0
    """Channels that have a number."""
    same: list[SameChannels] = field(default_factory=list)
    ranges: list[ChannelSlice] = field(default_factory=list)
    """Channels that a scale keeps its share of, wherever they lie."""

    @property
    def weights(self) -> set[str]:
        """Return the names of all weights."""
        return {weight.name for weight in self.graph.weights}

    def new_group(self, size: int) -> Dim:
        """Return a dimension that is a channel group of its own."""
        if size <= 1:
            return fixed_dim(size)
        self.parent.append(len(self.parent))
        self.sizes.append({size})
        self.base.append(size)
        whole = ChannelSlice(len(self.parent) - 1, size, self.number(size))
        self.ranges.append(whole)
        return (whole,)

    def number(self, size: int) -> int:
        """Return the first of so many new numbers of channels."""
        self.numbered += size
        return self.numbered - size

    def contiguous(self, dim: Dim) -> int:
        """Return the first number of a dimension, under new numbers where its slices lie apart."""
        if all(part.first == dim[0].first + at for at, part in positioned(dim)):
            return dim[0].first
        first = self.number(total(dim))
        for at, part in positioned(dim):
            if part.group is not None:
                self.same.append(SameChannels(part.first, part.size, first + at))
        return first

    def find(self, group: int) -> int:
        """Return the root of a group (union-find)."""
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def tie(self, a: int, b: int) -> None:
        """Unite two groups; they stay equal."""
        root = self.find(a)
        child = self.find(b)
        if root == child:
            return
        self.parent[child] = root
        self.sizes[root] |= self.sizes[child]
        if child in self.reasons:
            self.reasons.setdefault(root, self.reasons[child])

    def need_whole(self, group: int, size: int) -> None:
        """Require that this many steps stay whole at every scale."""
        self.sizes[self.find(group)].add(size)

    def pin(self, dims: Iterable[Dim], reason: str) -> None:
        """Keep all groups of dimensions at their size, for a reason."""
        for dim in dims:
            for group in groups_in(dim):
                self.reasons.setdefault(self.find(group), reason)

    def is_pinned(self, group: int) -> bool:
        """Return whether a group keeps its size."""
        return self.find(group) in self.reasons

    def unify(self, a: Dim, b: Dim, where: str) -> None:
        """Keep two dimensions equal, channel by channel."""
        for part_a, part_b in self.scale_alike(a, b, where):
            if None not in (part_a.group, part_b.group) and part_a.first != part_b.first:
                self.same.append(SameChannels(part_a.first, part_a.size, part_b.first))

    def scale_alike(
        self, a: Dim, b: Dim, where: str
    ) -> tuple[tuple[ChannelSlice, ChannelSlice], ...]:
        """Keep two dimensions equally long and return their pieces side by side.

        Slices that straddle a border are tied in proportion.
        """
        pairs = tuple(overlaps(a, b))
        for part_a, part_b in pairs:
            for part, opposite in ((part_a, part_b), (part_b, part_a)):
                if part.group is not None:
                    self.need_whole(part.group, part.size)
                    if opposite.group is None:
                        self.pin([(part,)], f"{where}: tied to a size that does not scale")
            if part_a.group is not None and part_b.group is not None:
                self.tie(part_a.group, part_b.group)
        return pairs

    def uniform(self, dim: Dim) -> None:
        """Let all slices of this dimension scale alike."""
        groups = groups_in(dim)
        for group in groups[1:]:
            self.tie(groups[0], group)
        if groups and len(groups) < len(dim):
            self.pin([dim], "mixed with a size that does not scale")

    def cut(self, dim: Dim, start: int, stop: int, mark: bool = False) -> Dim:
        """Return the slices between two positions; a slice that is cut must stay divisible.

        With `mark`, cuts through a whole group are recorded: it may be two (channel_groups.py).
        """
        taken: list[ChannelSlice] = []
        for at, part in positioned(dim):
            low = max(start, at)
            high = min(stop, at + part.size)
            if low >= high:
                continue
            taken.append(piece(part, low - at, high - low))
            if part.group is not None and high - low != part.size:
                self.ranges.append(taken[-1])
                self.need_whole(part.group, high - low)
                self.need_whole(part.group, low - at or high - low)
                if mark and part.size == self.base[part.group]:
                    inner = [at_cut for at_cut in (low - at, high - at) if 0 < at_cut < part.size]
                    self.marks += [(part.group, offset) for offset in inner]
        return tuple(taken) or fixed_dim(0)

    def divide_evenly(self, dim: Dim, size: int) -> None:
        """Let a scale keep its share of every `size` channels of a dimension, one after another."""
        for at, part in positioned(dim):
            low = at
            while part.group is not None and low < at + part.size:
                high = min(at + part.size, (low // size + 1) * size)
                self.ranges.append(piece(part, low - at, high - low))
                low = high

    def shape_of(self, name: str) -> Shape:
        """Return the shape of a value or weight.

        A weight's dimensions are groups of their own until an operator ties them.
        """
        if name not in self.shapes:
            sizes = self.specs[name].shape
            if name in self.trainable or name.endswith(("running_mean", "running_var")):
                shape = tuple(self.weight_dim(name, i, size) for i, size in enumerate(sizes))
            else:
                shape = fixed_shape(sizes)
            self.shapes[name] = (shape,)
        return self.shapes[name][0]

    def weight_dim(self, name: str, axis: int, size: int) -> Dim:
        """Return a dimension of a weight, with a new group after every split."""
        borders = [0, *sorted(self.splits.get((name, axis), ())), size]
        dim: Dim = ()
        for low, high in pairwise(borders):
            dim += self.new_group(high - low)
        return dim

    def arg(self, node: Node, position: int) -> Shape | None:
        """Return the shape of a tensor argument; None where it is absent or no tensor."""
        argument = node.args[position] if position < len(node.args) else None
        if not isinstance(argument, ValueRef) or not self.is_tensor(argument.name):
            return None
        return self.shape_of(argument.name)

    def tensor_arg(self, node: Node, position: int = 0) -> Shape:
        """Return the shape of a tensor argument that the operator always has."""
        shape = self.arg(node, position)
        assert shape is not None
        return shape

    def is_tensor(self, name: str) -> bool:
        """Return whether a name stands for a tensor."""
        return name in self.shapes or name in self.specs


def unknown(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Pin what an operator without a rule reads."""
    return pinned(a, node, f"no width rule for {node.op} ({node.name})")


def pinned(a: ChannelAnalysis, node: Node, reason: str) -> tuple[Shape, ...]:
    """Pin what a node reads, for a reason; its outputs are fixed."""
    for name in node.inputs:
        if a.is_tensor(name):
            a.pin(a.shape_of(name), reason)
    return fixed_outputs(node)


def fixed_outputs(node: Node) -> tuple[Shape, ...]:
    """Return outputs whose dimensions never scale."""
    return tuple(fixed_shape(spec.shape) for spec in node.outputs)
