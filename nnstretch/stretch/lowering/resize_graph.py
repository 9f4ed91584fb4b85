"""A graph at another width: every shape, size argument and MAC count follows from the scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.channel_groups import ChannelGroups, Dim, Shape, size_at
from nnstretch.structure.macs import CONVOLUTIONS, count_macs

Scales = Mapping[int, Fraction]


@dataclass(frozen=True, slots=True)
class GraphResizer:
    """Evaluates parts at given scales."""

    graph: Graph
    channels: ChannelGroups
    scales: Scales
    group_width: int | None = None

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension at the section's widths."""
        return size_at(dim, self.channels, self.scales)

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Return a shape at the new widths."""
        return tuple(self.size(dim) for dim in shape)

    def weight(self, weight: Weight, regrouped: Mapping[str, int]) -> Weight:
        """Return a weight at the new widths."""
        if weight.name not in self.channels.shapes:
            return weight
        shape = self.shape(self.channels.shapes[weight.name][0])
        if weight.name in regrouped:
            shape = (shape[0], regrouped[weight.name], *shape[2:])
        return replace(weight, spec=TensorSpec(shape, weight.spec.dtype))

    def outputs(self, node: Node) -> tuple[TensorSpec, ...]:
        """Return shapes and dtypes of a node's results at the new widths."""
        shapes = self.channels.shapes[node.name]
        return tuple(
            TensorSpec(self.shape(shape), old.dtype)
            for shape, old in zip(shapes, node.outputs, strict=False)
        )

    def node(self, node: Node, specs: Mapping[str, TensorSpec]) -> Node:
        """Return a node at the new widths, its MACs counted anew."""
        outputs = self.outputs(node)
        args = self.arguments(node, outputs, specs)
        return replace(
            node, args=args, outputs=outputs, macs=count_macs(node.kind, args, outputs[0], specs)
        )

    def arguments(
        self, node: Node, outputs: tuple[TensorSpec, ...], specs: Mapping[str, TensorSpec]
    ) -> tuple[Argument, ...]:
        """Return the arguments that spell out a size, spelt for the new one."""
        args = node.args
        if node.kind in ("view", "reshape", "_unsafe_view", "expand"):
            return (args[0], resize_shape_argument(args[1], outputs[0].shape), *args[2:])
        if node.kind == "unflatten":
            axis = int(str(args[1])) % len(self.input_shape(node))
            return (*args[:2], resize_shape_argument(args[2], outputs[0].shape[axis:]), *args[3:])
        if node.kind in ("split", "split_with_sizes", "slice"):
            return self.resize_split_args(node, outputs)
        if node.kind == "slice_scatter" and isinstance(args[1], ValueRef):
            return self.resize_scatter_args(node, specs[args[1].name].shape)
        if node.kind == "layer_norm":
            return (args[0], (outputs[0].shape[-1],), *args[2:])
        if (
            node.kind in CONVOLUTIONS
            and len(args) > 6
            and args[6] != 1
            and isinstance(args[0], ValueRef)
            and isinstance(args[1], ValueRef)
        ):
            return (
                *args[:6],
                specs[args[0].name].shape[1] // specs[args[1].name].shape[1],
                *args[7:],
            )
        return args

    def resize_scatter_args(self, node: Node, slice_shape: tuple[int, ...]) -> tuple[Argument, ...]:
        """Return where a slice is written back, at the new sizes."""
        args, shape = node.args, self.input_shape(node)
        axis = int(str(args[2])) % len(shape) if len(args) > 2 else 0
        start = args[3] if len(args) > 3 and isinstance(args[3], int) else 0
        low = self.size(
            slice_leading(
                shape[axis], start + (sum(part.size for part in shape[axis]) if start < 0 else 0)
            )
        )
        return (*args[:2], axis, low, low + slice_shape[axis], *args[5:])

    def input_shape(self, node: Node) -> Shape:
        """Return the symbolic shape of a node's first input."""
        assert isinstance(node.args[0], ValueRef)
        return self.channels.shapes[node.args[0].name][0]

    def resize_split_args(
        self, node: Node, outputs: tuple[TensorSpec, ...]
    ) -> tuple[Argument, ...]:
        """Return the arguments of a slice along channels at the new widths."""
        args = node.args
        shape = self.input_shape(node)
        axis = (
            int(str(args[2 if node.kind != "slice" else 1])) % len(shape)
            if len(args) > (2 if node.kind != "slice" else 1)
            else 0
        )
        if node.kind == "split":
            return (args[0], outputs[0].shape[axis], *args[2:])
        if node.kind == "split_with_sizes":
            return (args[0], tuple(o.shape[axis] for o in outputs), *args[2:])
        size = sum(part.size for part in shape[axis])
        if (
            node.output.shape[axis] == size
            or len(args) < 3
            or not isinstance(args[2], int | None)
            or args[4:] not in ((), (1,))
        ):
            return args
        start = args[2] or 0
        start += size if start < 0 else 0
        low = self.size(slice_leading(shape[axis], start))
        return (args[0], axis, low, low + outputs[0].shape[axis], *args[4:])


def resize_shape_argument(sizes: Argument, shape: tuple[int, ...]) -> Argument:
    """Replace the literal sizes of a shape; -1 and computed batch sizes stay."""
    assert isinstance(sizes, tuple)
    return tuple(
        new if isinstance(old, int) and old != -1 else old
        for old, new in zip(sizes, shape, strict=True)
    )


def slice_leading(dim: Dim, count: int) -> Dim:
    """Return the first `count` channels of a dimension."""
    taken = []
    for part in dim:
        if count <= 0:
            break
        taken.append(replace(part, size=min(part.size, count)))
        count -= part.size
    return tuple(taken)


def resize_graph(
    graph: Graph, channels: ChannelGroups, scales: Scales, group_width: int | None = None
) -> Graph:
    """Return the graph with every group at its scale.

    Shortcuts that no longer fit are adapted (adapters.py).
    """
    from nnstretch.stretch.lowering.adapters import adapt_junction

    resizer = GraphResizer(graph, channels, scales, group_width)
    regrouped = {} if group_width is None else grouped_weights(graph, group_width)
    weights = [resizer.weight(weight, regrouped) for weight in graph.weights]
    inputs = tuple(
        Value(v.name, TensorSpec(resizer.shape(channels.shapes[v.name][0]), v.spec.dtype))
        for v in graph.inputs
    )
    specs = {v.name: v.spec for v in inputs} | {w.name: w.spec for w in weights}
    junctions = {j.node: j for j in channels.junctions}
    nodes: list[Node] = []
    for old in graph.nodes:
        node = resizer.node(old, specs)
        if old.name in junctions:
            node, extra_nodes, extra_weights = adapt_junction(node, junctions[old.name], specs)
            nodes += extra_nodes
            weights += extra_weights
        nodes.append(node)
        specs[node.name] = node.output
    return Graph(graph.name, inputs, tuple(weights), tuple(nodes), graph.outputs)


def grouped_weights(graph: Graph, group_width: int) -> dict[str, int]:
    """Return weights of grouped, not depthwise, convolutions, which take another group width."""
    specs = graph.specs()
    widths: dict[str, int] = {}
    for node in graph.nodes:
        grouped = node.kind in CONVOLUTIONS and len(node.args) > 6 and node.args[6] != 1
        if (
            grouped
            and isinstance(weight := node.args[1], ValueRef)
            and specs[weight.name].shape[1] > 1
        ):
            widths[weight.name] = group_width
    return widths
