"""The walk behind channel groups.

Union-find over groups, with what each operator demands of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from nnstretch.graph import Graph, Node, TensorSpec, ValueRef


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """A stretch of one dimension."""

    group: int | None
    """None for a size that never changes."""
    size: int


Dim = tuple[ChannelSlice, ...]
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ShortcutJunction:
    """An addition that meets the section's own input.

    Where the ends disagree, a 1x1 convolution goes in.
    """

    node: str
    argument: int
    """Which operand carries the input."""


@dataclass
class ChannelAnalysis:
    """The walk over a graph: union-find over groups, with what each operator demands."""

    graph: Graph
    parent: list[int] = field(default_factory=list)
    sizes: list[set[int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    shapes: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    consumed: set[int] = field(default_factory=set)
    junctions: list[ShortcutJunction] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
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

    @property
    def weights(self) -> set[str]:
        """Return the names of all weights."""
        return {weight.name for weight in self.graph.weights}

    def new_group(self, size: int) -> Dim:
        """Return a dimension that is a channel group of its own."""
        if size <= 1:
            return (ChannelSlice(None, size),)
        self.parent.append(len(self.parent))
        self.sizes.append({size})
        self.base.append(size)
        return (ChannelSlice(len(self.parent) - 1, size),)

    def find(self, group: int) -> int:
        """Return the root of a group (union-find)."""
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def tie(self, a: int, b: int) -> None:
        """Unite two groups; they stay equal."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        self.parent[b] = a
        self.sizes[a] |= self.sizes[b]
        if b in self.reasons:
            self.reasons.setdefault(a, self.reasons[b])

    def need_whole(self, group: int, size: int) -> None:
        """Require that this many steps stay whole at every scale."""
        self.sizes[self.find(group)].add(size)

    def pin(self, dims: Iterable[Dim], reason: str) -> None:
        """Keep all groups of dimensions at their size, for a reason."""
        for dim in dims:
            for part in dim:
                if part.group is not None:
                    self.reasons.setdefault(self.find(part.group), reason)

    def is_pinned(self, group: int) -> bool:
        """Return whether a group keeps its size."""
        return self.find(group) in self.reasons

    def unify(self, a: Dim, b: Dim, where: str) -> None:
        """Unify two dimensions that must stay equal.

        Parts that straddle a border are tied in proportion.
        """
        a, b = tuple(p for p in a if p.size), tuple(p for p in b if p.size)
        i = j = 0
        size_a, right = (a[0].size if a else 0), (b[0].size if b else 0)
        while i < len(a) and j < len(b):
            step = min(size_a, right)
            self.meet(a[i], b[j], step, where)
            size_a, right = size_a - step, right - step
            if not size_a:
                i += 1
                size_a = a[i].size if i < len(a) else 0
            if not right:
                j += 1
                right = b[j].size if j < len(b) else 0

    def meet(self, a: ChannelSlice, b: ChannelSlice, overlap: int, where: str) -> None:
        """Unite two slices that overlap."""
        for part, operand in ((a, b), (b, a)):
            if part.group is not None:
                self.need_whole(part.group, overlap)
                if operand.group is None:
                    self.pin([(part,)], f"{where}: tied to a size that does not scale")
        if a.group is not None and b.group is not None:
            self.tie(a.group, b.group)

    def uniform(self, dim: Dim) -> None:
        """Let all parts of this dimension scale alike."""
        groups = [part.group for part in dim if part.group is not None]
        for group in groups[1:]:
            self.tie(groups[0], group)
        if groups and len(groups) < len(dim):
            self.pin([dim], "mixed with a size that does not scale")

    def cut(self, dim: Dim, start: int, stop: int, mark: bool = False) -> Dim:
        """Return the parts between two positions; a part that is cut must stay divisible there.

        With `mark`, cuts through a whole group are remembered: it may be two groups
        (channel_groups.py).
        """
        taken: list[ChannelSlice] = []
        at = 0
        for part in dim:
            low, high = max(start, at), min(stop, at + part.size)
            if low < high:
                if part.group is not None and high - low != part.size:
                    self.need_whole(part.group, high - low)
                    self.need_whole(part.group, low - at or high - low)
                    if mark and part.size == self.base[part.group]:
                        self.marks += [
                            (part.group, offset)
                            for offset in (low - at, high - at)
                            if 0 < offset < part.size
                        ]
                taken.append(ChannelSlice(part.group, high - low))
            at += part.size
        return tuple(taken) or ((ChannelSlice(None, 0)),)

    def shape_of(self, name: str) -> Shape:
        """Return parts of a value or weight.

        A weight's dimensions are groups of their own until an operator ties them.
        """
        if name not in self.shapes:
            scales = name in self.trainable or name.endswith(("running_mean", "running_var"))
            sizes = enumerate(self.specs[name].shape)
            self.shapes[name] = (
                tuple(
                    self.weight_dim(name, i, size) if scales else (ChannelSlice(None, size),)
                    for i, size in sizes
                ),
            )
        return self.shapes[name][0]

    def weight_dim(self, name: str, axis: int, size: int) -> Dim:
        """Return a dimension of a weight in slices."""
        borders = [0, *sorted(self.splits.get((name, axis), ())), size]
        return tuple(part for low, high in pairwise(borders) for part in self.new_group(high - low))

    def arg(self, node: Node, position: int) -> Shape | None:
        """Return parts of a tensor argument; None where it is absent or no tensor."""
        argument = node.args[position] if position < len(node.args) else None
        if not isinstance(argument, ValueRef) or not self.is_tensor(argument.name):
            return None
        return self.shape_of(argument.name)

    def is_tensor(self, name: str) -> bool:
        """Return whether a name stands for a tensor."""
        return name in self.shapes or name in self.specs

    def fixed(self, spec: TensorSpec) -> Shape:
        """Return a shape whose dimensions never scale."""
        return tuple((ChannelSlice(None, d),) for d in spec.shape)


def unknown(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Pin what an operator without a rule reads."""
    return pinned(a, node, f"no width rule for {node.op} ({node.name})")


def pinned(a: ChannelAnalysis, node: Node, reason: str) -> tuple[Shape, ...]:
    """Pin what a node reads, for a reason; its outputs are fixed."""
    for name in node.inputs:
        if a.is_tensor(name):
            a.pin(a.shape_of(name), reason)
    return tuple(a.fixed(o) for o in node.outputs)


def total(dim: Dim) -> int:
    """Return the size of a dimension."""
    return sum(part.size for part in dim)
