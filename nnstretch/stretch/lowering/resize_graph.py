"""A graph at another width: every shape, size argument and MAC count follows from the scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from nnstretch.errors import BadPlan
from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.stretch.lowering.adapters import adapt_junction
from nnstretch.structure.arguments import slice_start
from nnstretch.structure.channel_groups import (
    ChannelGroups,
    Dim,
    Shape,
    ShortcutJunction,
    size_at,
)
from nnstretch.structure.channel_slices import total
from nnstretch.structure.cuts import prune_unread
from nnstretch.structure.macs import CONVOLUTIONS, count_macs

Scales = Mapping[int, Fraction]
"""Root of a channel group -> its width over the original's."""
RESHAPES = frozenset(["view", "reshape", "_unsafe_view", "expand"])


def resize_graph(
    graph: Graph, channels: ChannelGroups, scales: Scales, group_width: int | None = None
) -> Graph:
    """Return the graph with every group at its scale; shortcuts that no longer fit are adapted.

    Batch sizes that nothing reads any more are left out (`replace_sizes`).
    """
    resizer = GraphResizer(channels, scales)
    regrouped = [] if group_width is None else grouped_weights(graph)
    inputs = tuple(resizer.value(value) for value in graph.inputs)
    weights: list[Weight] = []
    for weight in graph.weights:
        weights.append(resizer.weight(weight, group_width if weight.name in regrouped else None))
    specs = {value.name: value.spec for value in inputs} | {w.name: w.spec for w in weights}
    junctions: dict[str, list[ShortcutJunction]] = {}
    for junction in channels.junctions:
        junctions.setdefault(junction.node, []).append(junction)
    nodes: list[Node] = []
    for original in graph.nodes:
        node = resizer.node(original, specs)
        for junction in junctions.get(node.name, ()):
            node, adapter, adapter_weights = adapt_junction(node, junction, specs)
            nodes += adapter
            weights += adapter_weights
            if adapter:
                break
        nodes.append(node)
        specs[node.name] = node.output
    kept = prune_unread(nodes, graph.outputs)
    return Graph(graph.name, inputs, tuple(weights), kept, graph.outputs)


def is_grouped(node: Node) -> bool:
    """Return whether a node is a grouped convolution."""
    return node.kind in CONVOLUTIONS and len(node.args) > 6 and node.args[6] != 1


def grouped_weights(graph: Graph) -> list[str]:
    """Return weights of grouped convolutions that are not depthwise."""
    specs = graph.specs()
    names: list[str] = []
    for node in graph.nodes:
        weight = node.args[1] if is_grouped(node) else None
        if isinstance(weight, ValueRef) and specs[weight.name].shape[1] > 1:
            names.append(weight.name)
    return names


def check_group_width(
    graph: Graph, channels: ChannelGroups, scales: Scales, group_width: int, where: str
) -> None:
    """Check that grouped convolutions can have a group width at the scales.

    Raises BadPlan with the nearest that the first can have where one cannot.
    """
    resizer = GraphResizer(channels, scales)
    regrouped = {weight.name for weight in graph.weights} & {*grouped_weights(graph)}
    for node in graph.nodes:
        if not is_grouped(node) or node.inputs[1] not in regrouped & channels.shapes.keys():
            continue
        source, weight = node.inputs[:2]
        cin = resizer.size(channels.shapes[source][0][1])
        cout = resizer.size(channels.shapes[weight][0][0])
        if divides_channels(group_width, cin, cout):
            continue
        widths = [width for width in range(1, cin + 1) if divides_channels(width, cin, cout)]
        nearest = min(widths, key=lambda width: abs(width - group_width))
        raise BadPlan(
            f"group width {group_width} is impossible, {where}, {node.name} reads {cin} channels"
            f" and writes {cout}, {nearest} is the nearest"
        )


def divides_channels(group_width: int, cin: int, cout: int) -> bool:
    """Return whether groups that read so many channels each divide input and output evenly."""
    return group_width > 0 and cin % group_width == 0 and cout % (cin // group_width) == 0


@dataclass(frozen=True, slots=True)
class GraphResizer:
    """Channel groups at given scales, and what inputs, weights and nodes become there."""

    channels: ChannelGroups
    scales: Scales

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension at the scales."""
        return size_at(dim, self.channels, self.scales)

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Return a shape at the scales."""
        return tuple(self.size(dim) for dim in shape)

    def value(self, value: Value) -> Value:
        """Return an input at the scales."""
        shape = self.shape(self.channels.shapes[value.name][0])
        return Value(value.name, TensorSpec(shape, value.spec.dtype))

    def weight(self, weight: Weight, group_width: int | None) -> Weight:
        """Return a weight at the scales, and with another group width where one is asked for."""
        if weight.name not in self.channels.shapes:
            return weight
        shape = self.shape(self.channels.shapes[weight.name][0])
        if group_width is not None:
            shape = (shape[0], group_width, *shape[2:])
        return replace(weight, spec=TensorSpec(shape, weight.spec.dtype))

    def node(self, node: Node, specs: Mapping[str, TensorSpec]) -> Node:
        """Return a node at the scales, its MACs counted anew."""
        outputs = self.outputs(node)
        args = self.arguments(node, outputs, specs)
        macs = count_macs(node.kind, args, outputs[0], specs)
        if args is node.args and outputs == node.outputs and macs == node.macs:
            return node
        return replace(node, args=args, outputs=outputs, macs=macs)

    def outputs(self, node: Node) -> tuple[TensorSpec, ...]:
        """Return shapes and dtypes of a node's results at the scales."""
        pairs = zip(self.channels.shapes[node.name], node.outputs, strict=False)
        return tuple(TensorSpec(self.shape(shape), spec.dtype) for shape, spec in pairs)

    def arguments(
        self, node: Node, outputs: tuple[TensorSpec, ...], specs: Mapping[str, TensorSpec]
    ) -> tuple[Argument, ...]:
        """Return the arguments of a node, those that spell out a size for the new one."""
        args = node.args
        shape = outputs[0].shape
        if node.kind in RESHAPES:
            return (args[0], replace_sizes(args[1], node.output.shape, shape), *args[2:])
        if node.kind == "unflatten":
            axis = int(str(args[1])) % len(self.input_shape(node))
            axes = slice(axis, len(shape) - len(self.input_shape(node)) + axis + 1)
            sizes = replace_sizes(args[2], node.output.shape[axes], shape[axes])
            return (*args[:2], sizes, *args[3:])
        if node.kind == "split":
            return (args[0], shape[self.axis_argument(node, 2)], *args[2:])
        if node.kind == "split_with_sizes":
            axis = self.axis_argument(node, 2)
            return (args[0], tuple(output.shape[axis] for output in outputs), *args[2:])
        if node.kind == "slice":
            return self.slice_arguments(node, shape)
        if node.kind == "slice_scatter" and isinstance(args[1], ValueRef):
            return self.slice_scatter_arguments(node, args[1].name, specs)
        if node.kind == "layer_norm":
            assert isinstance(args[1], tuple)
            return (args[0], shape[-len(args[1]) :], *args[2:])
        if is_grouped(node) and isinstance(args[0], ValueRef) and isinstance(args[1], ValueRef):
            groups = specs[args[0].name].shape[1] // specs[args[1].name].shape[1]
            return (*args[:6], groups, *args[7:])
        return args

    def input_shape(self, node: Node) -> Shape:
        """Return the symbolic shape of a node's first input."""
        assert isinstance(node.args[0], ValueRef)
        return self.channels.shapes[node.args[0].name][0]

    def axis_argument(self, node: Node, index: int) -> int:
        """Return the axis that argument `index` of a node names, 0 where it is absent."""
        if len(node.args) <= index:
            return 0
        return int(str(node.args[index])) % len(self.input_shape(node))

    def slice_arguments(self, node: Node, shape: tuple[int, ...]) -> tuple[Argument, ...]:
        """Return the arguments of a slice at the scales; `shape` is its output's shape at them."""
        args = node.args
        axis = self.axis_argument(node, 1)
        dim = self.input_shape(node)[axis]
        whole = node.output.shape[axis] == total(dim)
        if whole or len(args) < 3 or args[4:] not in ((), (1,)):
            return args
        if not isinstance(args[2], int | None):
            return args
        low = self.slice_start(dim, args[2] or 0)
        return (args[0], axis, low, low + shape[axis], *args[4:])

    def slice_scatter_arguments(
        self, node: Node, source: str, specs: Mapping[str, TensorSpec]
    ) -> tuple[Argument, ...]:
        """Return the arguments of a slice that is replaced by `source`, at the scales.

        Where it is all of an axis that does not scale, they stay: a batch may have any size.
        """
        args = node.args
        axis = self.axis_argument(node, 2)
        dim = self.input_shape(node)[axis]
        size = specs[source].shape[axis]
        if size == self.size(dim) == total(dim) or args[5:] not in ((), (1,)):
            return args
        start = args[3] if len(args) > 3 and isinstance(args[3], int) else 0
        low = self.slice_start(dim, start)
        return (*args[:2], axis, low, low + size, *args[5:])

    def slice_start(self, dim: Dim, start: int) -> int:
        """Return where a slice begins at the scales."""
        return self.size(leading_channels(dim, slice_start(start, total(dim))))


def replace_sizes(
    sizes: Argument, shape: tuple[int, ...], resized: tuple[int, ...]
) -> tuple[Argument, ...]:
    """Replace the sizes of a shape by those at the scales; -1 and computed batch sizes stay.

    A computed size counts channels too where it scales (batch and channels folded into one). It
    then becomes the -1, right for every batch, and what was -1 becomes a number.
    """
    assert isinstance(sizes, tuple)
    replaced: list[Argument] = []
    folded = [
        isinstance(size, ValueRef) and old != new
        for size, old, new in zip(sizes, shape, resized, strict=True)
    ]
    for size, new, is_folded in zip(sizes, resized, folded, strict=True):
        if is_folded:
            replaced.append(-1)
        elif isinstance(size, int) and (size != -1 or any(folded)):
            replaced.append(new)
        else:
            replaced.append(size)
    return tuple(replaced)


def leading_channels(dim: Dim, count: int) -> Dim:
    """Return the first `count` channels of a dimension."""
    parts = []
    for part in dim:
        if count <= 0:
            break
        parts.append(replace(part, size=min(part.size, count)))
        count -= part.size
    return tuple(parts)
