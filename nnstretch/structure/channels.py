"""Channel groups: sets of dimensions that must stay equal when a network's width changes.

Every dimension of every tensor is a sequence of parts, and each part belongs to a group (or to
none, if its size is a fact of the input image or of the operator). Operators tie groups together:
an addition ties its operands, a depthwise or grouped convolution its two ends, batch norm its
parameters to its input; concatenation lays parts side by side, `chunk` and `split` cut them,
`flatten` multiplies them, a channel shuffle interleaves them. Groups that are tied scale by one
common ratio. What an operator cannot follow is pinned to its size, with the reason.

The rules of the single operators are in rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd

from nnstretch.graph import Graph, Node, Ref, TensorSpec


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one dimension."""

    group: int | None
    """None for a size that never changes."""
    size: int


Dim = tuple[Part, ...]
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Junction:
    """An addition that meets the section's own input: where the ends disagree, a 1x1 convolution goes in."""

    node: str
    argument: int
    """Which operand carries the input."""


@dataclass(frozen=True, slots=True)
class Channels:
    """What may scale in a graph, and what must scale together."""

    shapes: Mapping[str, tuple[Shape, ...]]
    """Every value and weight: the parts of each dimension, per output."""
    root: tuple[int, ...]
    """Group -> the representative of all that are tied to it."""
    quanta: Mapping[int, int]
    """Root -> number of indivisible steps at the original size: a scale is a whole number of them."""
    pinned: Mapping[int, str]
    """Root -> why it keeps its size."""
    junctions: tuple[Junction, ...]
    input_dim: int
    """Which dimension of the section's input holds channels."""
    consumed: frozenset[int]
    """Roots that a layer reads as channels."""
    weights_of: Mapping[int, tuple[str, ...]]
    """Root -> weights whose first dimension it is: who writes these channels."""

    def axis(self, value: str) -> int:
        """Which dimension of a tensor holds channels."""
        return channel_dim(self.shapes[value][0], self.root, self.consumed)

    def roots(self, dim: Dim) -> set[int]:
        return {self.root[part.group] for part in dim if part.group is not None}


@dataclass
class Analyst:
    """The walk over a graph: union-find over groups, with what each operator demands."""

    graph: Graph
    parent: list[int] = field(default_factory=list)
    sizes: list[set[int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    shapes: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    consumed: set[int] = field(default_factory=set)
    junctions: list[Junction] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    specs: dict[str, TensorSpec] = field(default_factory=dict)

    def new_group(self, size: int) -> Dim:
        if size <= 1:
            return (Part(None, size),)
        self.parent.append(len(self.parent))
        self.sizes.append({size})
        return (Part(len(self.parent) - 1, size),)

    def find(self, group: int) -> int:
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def tie(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        self.parent[b] = a
        self.sizes[a] |= self.sizes[b]
        if b in self.reasons:
            self.reasons.setdefault(a, self.reasons[b])

    def need_whole(self, group: int, size: int) -> None:
        """This many steps must stay whole at every scale."""
        self.sizes[self.find(group)].add(size)

    def pin(self, dims: Iterable[Dim], reason: str) -> None:
        for dim in dims:
            for part in dim:
                if part.group is not None:
                    self.reasons.setdefault(self.find(part.group), reason)

    def is_pinned(self, group: int) -> bool:
        return self.find(group) in self.reasons

    def unify(self, a: Dim, b: Dim, where: str) -> None:
        """Two dimensions that must stay equal; parts that straddle a border are tied in proportion."""
        a, b = tuple(p for p in a if p.size), tuple(p for p in b if p.size)
        i = j = 0
        left, right = (a[0].size if a else 0), (b[0].size if b else 0)
        while i < len(a) and j < len(b):
            step = min(left, right)
            self.meet(a[i], b[j], step, where)
            left, right = left - step, right - step
            if not left:
                i += 1
                left = a[i].size if i < len(a) else 0
            if not right:
                j += 1
                right = b[j].size if j < len(b) else 0

    def meet(self, a: Part, b: Part, overlap: int, where: str) -> None:
        for part, other in ((a, b), (b, a)):
            if part.group is not None:
                self.need_whole(part.group, overlap)
                if other.group is None:
                    self.pin([(part,)], f"{where}: tied to a size that does not scale")
        if a.group is not None and b.group is not None:
            self.tie(a.group, b.group)

    def uniform(self, dim: Dim) -> None:
        """All parts of this dimension scale alike."""
        groups = [part.group for part in dim if part.group is not None]
        for group in groups[1:]:
            self.tie(groups[0], group)
        if groups and len(groups) < len(dim):
            self.pin([dim], "mixed with a size that does not scale")

    def cut(self, dim: Dim, start: int, stop: int) -> Dim:
        """The parts between two positions; a part that is cut must stay divisible there."""
        taken: list[Part] = []
        at = 0
        for part in dim:
            low, high = max(start, at), min(stop, at + part.size)
            if low < high:
                if part.group is not None and high - low != part.size:
                    self.need_whole(part.group, high - low)
                    self.need_whole(part.group, low - at or high - low)
                taken.append(Part(part.group, high - low))
            at += part.size
        return tuple(taken) or ((Part(None, 0)),)

    def shape_of(self, name: str) -> Shape:
        """Parts of a value or weight; a weight's dimensions are groups of their own until an operator ties them."""
        if name not in self.shapes:
            spec = self.specs[name]
            trainable = any(w.name == name and w.trainable for w in self.graph.weights)
            fixed = not trainable and not name.endswith(("running_mean", "running_var"))
            self.shapes[name] = (tuple(((Part(None, d),) if fixed else self.new_group(d)) for d in spec.shape),)
        return self.shapes[name][0]

    def arg(self, node: Node, position: int) -> Shape | None:
        """Parts of a tensor argument; None where it is absent or no tensor."""
        argument = node.args[position] if position < len(node.args) else None
        if not isinstance(argument, Ref) or not self.is_tensor(argument.name):
            return None
        return self.shape_of(argument.name)

    def is_tensor(self, name: str) -> bool:
        return name in self.shapes or name in self.specs

    def fixed(self, spec: TensorSpec) -> Shape:
        return tuple((Part(None, d),) for d in spec.shape)


def channels(graph: Graph) -> Channels:
    """Analyse one graph (usually a section between two cuts)."""
    from nnstretch.structure.rules import apply

    analyst = Analyst(graph, specs=graph.specs())
    for value in graph.inputs:
        shape = tuple(analyst.new_group(d) if i else (Part(None, d),) for i, d in enumerate(value.spec.shape))
        analyst.shapes[value.name] = (shape,)
        analyst.inputs |= {part.group for dim in shape for part in dim if part.group is not None}
    for node in graph.nodes:
        analyst.shapes[node.name] = apply(analyst, node)
    return conclude(analyst)


def conclude(analyst: Analyst) -> Channels:
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
    return Channels(
        shapes=analyst.shapes,
        root=root,
        quanta=quanta,
        pinned=pinned,
        junctions=tuple(analyst.junctions),
        input_dim=channel_dim(entry, root, consumed),
        consumed=consumed,
        weights_of={r: tuple(names) for r, names in writers.items()},
    )


def channel_dim(entry: Shape, root: tuple[int, ...], consumed: frozenset[int]) -> int:
    """The dimension that layers read as channels; dimension 1 of NCHW and the last of tokens where none does."""
    for i, dim in enumerate(entry):
        if any(part.group is not None and root[part.group] in consumed for part in dim):
            return i
    return 1 if len(entry) in (2, 4) else len(entry) - 1


def size_at(dim: Dim, channels_: Channels, scales: Mapping[int, Fraction]) -> int:
    """A dimension's size when every root scales as told; roots not named keep their size."""
    total = Fraction(0)
    for part in dim:
        total += part.size if part.group is None else part.size * scales.get(channels_.root[part.group], Fraction(1))
    assert total.denominator == 1, f"fractional dimension {total}"
    return int(total)
