"""Captured graph -> the operators that an accelerator computes, and the addresses between them.

Attention becomes scores, softmax and product; pieces of `chunk` and `unbind` become selections;
sizes become numbers. Views, transpositions and selections compute nothing: they are addresses into
the tensor behind them, their root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nnstretch.chip.boxes import Box, box_elements, hull, whole
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import (
    ELEMENT_BYTES,
    Argument,
    Graph,
    Node,
    TensorSpec,
    ValueRef,
    refs,
    rename_refs,
)
from nnstretch.structure.arguments import argument
from nnstretch.structure.kernel_operators import SHAPE_ONLY
from nnstretch.structure.slices import ELEMENTWISE, RESHAPES, RULES, TRANSPOSES, input_boxes

ADDRESSES = RESHAPES | TRANSPOSES | {"slice", "select", "expand", "expand_as"}
_NOTHING = """
    dropout feature_dropout alpha_dropout detach alias contiguous clone identity to _to_copy
    lift_fresh_copy type_as
"""
NOTHING = frozenset(_NOTHING.split())
"""Operators that pass their input on."""
IN_PLACE = (ELEMENTWISE - NOTHING - {"where", "masked_fill"}) | {"batch_norm", "softmax"}
_SPATIAL = "conv2d max_pool2d avg_pool2d adaptive_avg_pool2d upsample_nearest2d pixel_shuffle"
SPATIAL = frozenset(_SPATIAL.split())
ELEMENT_TYPES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes of an element by the name that descriptions of accelerators use."""
PIECES = frozenset({"chunk", "split", "split_with_sizes", "unbind", "tensor_split"})


@dataclass(frozen=True)
class ChipGraph:
    """Operators in execution order with what each reads, addresses resolved."""

    graph: Graph
    """Every node has one output; ADDRESSES among them."""
    element_bytes: int
    specs: Mapping[str, TensorSpec] = field(init=False, repr=False)
    nodes: Mapping[str, Node] = field(init=False, repr=False)
    """All nodes by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", self.graph.specs())
        object.__setattr__(self, "nodes", {node.name: node for node in self.graph.nodes})

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """Nodes that compute something."""
        return tuple(node for node in self.graph.nodes if node.kind not in ADDRESSES)

    @cached_property
    def weights(self) -> frozenset[str]:
        """Names of weights."""
        return frozenset(weight.name for weight in self.graph.weights)

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """The tensor behind each value; weights and inputs are their own."""
        roots: dict[str, str] = {name: name for name in self.specs}
        for node in self.graph.nodes:
            if node.kind in ADDRESSES:
                roots[node.name] = roots[node.inputs[0]]
        return roots

    @cached_property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Tensors that each operator reads, weights left out."""
        table: dict[str, tuple[str, ...]] = {}
        for node in self.operators:
            roots = dict.fromkeys(self.roots[name] for name in node.inputs)
            table[node.name] = tuple(name for name in roots if name not in self.weights)
        return table

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Operators that read each tensor."""
        table: dict[str, list[str]] = {}
        for node in self.operators:
            for name in self.reads[node.name]:
                table.setdefault(name, []).append(node.name)
        return {name: tuple(users) for name, users in table.items()}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Tensors that leave the graph."""
        return frozenset(self.roots[name] for name in self.graph.outputs)

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Place of each operator in execution order."""
        return {node.name: place for place, node in enumerate(self.operators)}

    @cached_property
    def maps(self) -> frozenset[str]:
        """Feature maps: tensors of four dimensions whose second one is channels."""
        names: set[str] = set()
        for node in self.graph.nodes:
            if len(node.output.shape) != 4:
                continue
            passes_on = node.kind in IN_PLACE or node.kind in ("cat", "constant_pad_nd", "glu")
            if node.kind in SPATIAL or (passes_on and any(i in names for i in node.inputs)):
                names.add(node.name)
        names.update(v.name for v in self.graph.inputs if len(v.spec.shape) == 4)
        return frozenset(names)

    def bytes_of(self, name: str, box: Box | None = None) -> int:
        """Return the bytes of a tensor or a part of it in the accelerator's type."""
        spec = self.specs[name]
        elements = spec.elements if box is None else box_elements(box)
        return elements * self.element_size(name)

    def element_size(self, name: str) -> int:
        """Return the bytes of one element; whole numbers keep their type."""
        dtype = self.specs[name].dtype
        return self.element_bytes if "float" in dtype else ELEMENT_BYTES[dtype]

    def read_boxes(self, name: str, box: Box) -> dict[str, Box]:
        """Return the part of each tensor, weights included, behind a part of a node's output."""
        boxes: dict[str, Box] = {}
        for source, area in input_boxes(self.nodes[name], box, self.specs).items():
            for root, behind in self.root_boxes(source, area).items():
                boxes[root] = hull(boxes[root], behind) if root in boxes else behind
        return boxes

    def root_boxes(self, name: str, box: Box) -> dict[str, Box]:
        """Return the part of its root behind a part of a value."""
        node = self.nodes.get(name)
        while node is not None and node.kind in ADDRESSES:
            _, name, box = self.view_boxes(node, box)
            node = self.nodes.get(name)
        return {name: box}

    def view_boxes(self, node: Node, box: Box) -> tuple[Box, str, Box]:
        """Return the part of a view to form, its input, and the input's part behind it.

        A part of a reshaped tensor may be no box of the input; then more of the view is formed, and
        what was wanted is taken from it.
        """
        shape = node.output.shape
        for area in (box, (*box[:1], *whole(shape[1:])), whole(shape)):
            source, behind = next(iter(input_boxes(node, area, self.specs).items()))
            if node.kind not in RESHAPES or box_elements(behind) == box_elements(area):
                return area, source, behind
        raise AssertionError(f"{node.name} reshapes its input to another number of elements")

    def axes(self, name: str) -> tuple[int, ...]:
        """Return a tensor's dimensions from outermost in: batch, rows, columns, channels."""
        rank = len(self.specs[name].shape)
        return (0, 2, 3, 1) if name in self.maps else tuple(range(rank))


def chip_graph(graph: Graph, element_type: str) -> ChipGraph:
    """Return the graph as an accelerator computes it.

    Raises UnsupportedOp for an operator without a rule of slices.
    """
    rewriter = GraphRewriter(graph)
    for node in graph.nodes:
        rewriter.add(node)
    rewritten = rewriter.finish()
    for node in rewritten.nodes:
        if node.kind not in RULES:
            raise UnsupportedOp(
                f"no cost of {node.op}, node {node.name}, an accelerator knows no such operator"
            )
    return ChipGraph(rewritten, ELEMENT_TYPES[element_type])


class GraphRewriter:
    """Rewriter of a graph's nodes, one after another."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.specs = {**graph.specs()}
        self.pieces = {node.name: node for node in graph.nodes if node.kind in PIECES}
        self.names: dict[str, str] = {}
        self.numbers: dict[str, Argument] = {}
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Add what a node computes."""
        if node.kind in SHAPE_ONLY or node.op.startswith(("py.", "sym_")):
            self.numbers[node.name] = 0  # only reshapes read sizes, and their shape is known
        elif node.kind in NOTHING:
            self.names[node.name] = self.name_of(node.inputs[0])
        elif node.kind in PIECES:
            return
        elif node.op == "getitem":
            self.add_piece(node)
        elif node.kind == "stack":
            self.add_stack(node)
        elif node.kind == "scaled_dot_product_attention":
            self.add_attention(node)
        else:
            self.append(node)

    def name_of(self, name: str) -> str:
        """Return the value that stands for a name."""
        return self.names.get(name, name)

    def append(self, node: Node) -> None:
        """Append a node that reads the values behind its arguments."""
        args = tuple(self.renamed(item) for item in node.args)
        kwargs = tuple((key, self.renamed(item)) for key, item in node.kwargs)
        self.nodes.append(
            Node(node.name, node.op, args, node.outputs, node.module, kwargs, node.macs)
        )
        self.specs[node.name] = node.output

    def renamed(self, item: Argument) -> Argument:
        """Return an argument with names and sizes replaced."""
        if isinstance(item, ValueRef) and item.name in self.numbers:
            return self.numbers[item.name]
        if isinstance(item, tuple):
            return tuple(self.renamed(part) for part in item)
        return rename_refs(item, self.names)

    def add_piece(self, node: Node) -> None:
        """Add one output of a `chunk`, `split` or `unbind` as a selection. Raises UnsupportedOp."""
        holder = next(iter(refs(node.args)))
        source = self.pieces.get(holder)
        if source is None:
            raise UnsupportedOp(
                f"no cost of output {node.args[1]} of {holder}, node {node.name}, an accelerator"
                " knows operators of one output"
            )
        index = int(node.args[1])  # type: ignore[arg-type]
        value = ValueRef(source.inputs[0])
        if source.kind == "unbind":
            axis = argument(source, 1, 0)
            self.append(Node(node.name, "select.int", (value, axis, index), node.outputs))
            return
        rank = len(source.outputs[0].shape)
        axis = int(argument(source, 2, 0)) % rank
        sizes = [spec.shape[axis] for spec in source.outputs]
        start = sum(sizes[:index])
        bounds = (value, axis, start, start + sizes[index])
        self.append(Node(node.name, "slice.Tensor", bounds, node.outputs, node.module))

    def add_stack(self, node: Node) -> None:
        """Add a stack as a concatenation of views with one more dimension."""
        axis = int(argument(node, 1, 0)) % len(node.output.shape)
        shape = list(node.output.shape)
        shape[axis] = 1
        spec = TensorSpec(tuple(shape), node.output.dtype)
        views: list[Argument] = []
        for number, name in enumerate(refs(node.args[0])):
            view = f"{node.name}_{number}"
            self.derive(node, view, "unsqueeze", (ValueRef(name), axis), spec)
            views.append(ValueRef(view))
        self.derive(node, node.name, "cat", (tuple(views), axis), node.output)

    def add_attention(self, node: Node) -> None:
        """Add attention as scores, scale, mask, softmax and product."""
        query, key, value = (ValueRef(name) for name in (node.inputs * 3)[:3])
        q, k = self.specs[query.name], self.specs[key.name]
        rank = len(q.shape)
        turned = (*k.shape[:-2], k.shape[-1], k.shape[-2])
        scores = TensorSpec((*q.shape[:-1], k.shape[-2]), q.dtype)
        name, last = node.name, (rank - 2, rank - 1)
        self.derive(node, f"{name}_key", "transpose.int", (key, *last), TensorSpec(turned, q.dtype))
        self.derive(node, f"{name}_dot", "matmul", (query, ValueRef(f"{name}_key")), scores)
        factor = dict(node.kwargs).get("scale") or q.shape[-1] ** -0.5
        self.derive(node, f"{name}_scores", "mul.Tensor", (ValueRef(f"{name}_dot"), factor), scores)
        ready = ValueRef(f"{name}_scores")
        mask = argument(node, 3)
        if isinstance(mask, ValueRef):
            masked = (ready, ValueRef(mask.name))
            self.derive(node, f"{name}_masked", "add.Tensor", masked, scores)
            ready = ValueRef(f"{name}_masked")
        if argument(node, 5, False):
            raise UnsupportedOp(f"causal attention, node {name}, an accelerator needs its mask")
        self.derive(node, f"{name}_softmax", "softmax.int", (ready, -1), scores)
        self.derive(node, name, "matmul", (ValueRef(f"{name}_softmax"), value), node.output)

    def derive(
        self, node: Node, name: str, op: str, args: tuple[Argument, ...], spec: TensorSpec
    ) -> None:
        """Append a node that stands for a part of another."""
        self.append(Node(name, op, args, (spec,), node.module))

    def finish(self) -> Graph:
        """Return the graph of all nodes that something reads."""
        outputs = tuple(self.name_of(name) for name in self.graph.outputs)
        nodes = read_nodes(self.nodes, outputs)
        return Graph(self.graph.name, self.graph.inputs, self.graph.weights, nodes, outputs)


def read_nodes(nodes: Iterable[Node], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """Return the nodes whose output is read or leaves the graph."""
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(tuple(nodes)):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs)
    return tuple(reversed(kept))


def whole_box(chip: ChipGraph, name: str) -> Box:
    """Return the box of a whole tensor."""
    return whole(chip.specs[name].shape)
