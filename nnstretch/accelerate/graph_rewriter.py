"""Captured graph -> graph of operators with one output each, as an accelerator computes them.

Attention becomes scores, softmax and product; pieces of `chunk` and `unbind` become selections;
sizes become numbers; what passes its input on is left out; what follows from weights alone is a
weight, where it is more than an address.
"""

from __future__ import annotations

from dataclasses import replace

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import (
    HELD_TYPES,
    Argument,
    Graph,
    Node,
    TensorSpec,
    ValueRef,
    Weight,
    names_read,
    refs,
    rename_refs,
)
from nnstretch.structure.arguments import argument, sides
from nnstretch.structure.constants import is_constant, scalar_value, with_numbers
from nnstretch.structure.cuts import prune_unread
from nnstretch.structure.kernel_operators import SHAPE_ONLY
from nnstretch.structure.slices.operator_sets import RESHAPES, TRANSPOSES

_NOTHING = """
    dropout feature_dropout alpha_dropout detach alias contiguous clone identity lift_fresh_copy
"""
NOTHING = frozenset(_NOTHING.split())
"""Operators that pass their input on."""
CASTS = frozenset({"to", "_to_copy", "type_as"})
"""Operators that pass their input on where its numbers stay the same."""
PIECES = frozenset({"chunk", "split", "split_with_sizes", "unbind", "tensor_split"})
ADDRESSES = RESHAPES | TRANSPOSES | {"slice", "select", "expand", "expand_as"}
"""Operators that only say where their input lies."""


class GraphRewriter:
    """Rewriter of a graph's nodes, one after another."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.specs = {**graph.specs()}
        self.pieces = {node.name: node for node in graph.nodes if node.kind in PIECES}
        self.names: dict[str, str] = {}
        self.numbers: dict[str, int | float] = {}
        self.nodes: list[Node] = []
        self.constants = {weight.name for weight in graph.weights}
        """Values that no input changes."""
        self.folded: list[Weight] = []

    def add(self, node: Node) -> None:
        """Add what a node computes."""
        node = with_numbers(node, self.numbers)
        if node.kind in SHAPE_ONLY or node.op.startswith(("py.", "sym_")):
            self.add_number(node)
        elif node.kind in NOTHING or (node.kind in CASTS and self.keeps_numbers(node)):
            self.names[node.name] = self.name_of(node.inputs[0])
            if node.inputs[0] in self.constants:
                self.constants.add(node.name)
        elif node.kind in PIECES:
            return
        elif is_constant(node, self.constants):
            self.constants.add(node.name)
            if node.kind in ADDRESSES:
                self.append(node)
            elif len(node.outputs) == 1:  # of several, each is picked by a node of its own
                self.folded.append(Weight(node.name, node.output))
        elif node.op == "getitem":
            self.add_piece(node)
        elif node.kind in ("cat", "concat"):
            self.add_concatenation(node)
        elif node.kind == "stack":
            self.add_stack(node)
        elif node.kind == "roll":
            self.add_roll(node)
        elif node.kind == "pad":
            self.add_pad(node)
        elif node.kind in CASTS:
            args = (ValueRef(node.inputs[0]), f"torch.{node.output.dtype}")
            self.derive(node, node.name, "to.dtype", args, node.output)
        elif node.kind == "scaled_dot_product_attention":
            self.add_attention(node)
        elif node.kind == "matmul" and self.reads_vector(node):
            self.add_vector_product(node)
        else:
            self.append(node)

    def keeps_numbers(self, node: Node) -> bool:
        """Return whether the type that a node casts to holds all numbers of its input's type."""
        types = self.specs[node.inputs[0]].dtype, node.output.dtype
        return types[0] == types[1] or types[0] in HELD_TYPES.get(types[1], ())

    def add_number(self, node: Node) -> None:
        """Add a size, or what is computed from sizes. Raises UnsupportedOp for an unknown one."""
        number = scalar_value(node, self.specs, self.numbers)
        if number is None:
            raise UnsupportedOp(
                f"no number of {node.op}, node {node.name}, an accelerator computes with sizes of"
                " tensors and their sums and products"
            )
        self.numbers[node.name] = number
        self.constants.add(node.name)

    def name_of(self, name: str) -> str:
        """Return the value that stands for a name."""
        return self.names.get(name, name)

    def append(self, node: Node) -> None:
        """Append a node that reads the values behind its arguments."""
        args = tuple(rename_refs(item, self.names) for item in node.args)
        kwargs = tuple((key, rename_refs(item, self.names)) for key, item in node.kwargs)
        self.nodes.append(
            Node(node.name, node.op, args, node.outputs, node.module, kwargs, node.macs)
        )
        self.specs[node.name] = node.output

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

    def add_concatenation(self, node: Node) -> None:
        """Add a concatenation of what is not empty; nothing else need be computed."""
        names = [name for name in refs(node.args[0]) if self.specs[name].elements]
        parts = tuple(map(ValueRef, names)) or node.args[0]
        self.append(replace(node, args=(parts, *node.args[1:])))

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

    def add_pad(self, node: Node) -> None:
        """Add a pad of a constant; one of nothing passes its input on. Raises UnsupportedOp."""
        sizes = tuple(sides(argument(node, 1)))
        mode, value = argument(node, 2, "constant"), argument(node, 3)
        if not any(sizes):
            self.names[node.name] = self.name_of(node.inputs[0])
        elif mode != "constant":
            raise UnsupportedOp(
                f"no cost of a pad by {mode}, node {node.name}, an accelerator pads with a constant"
            )
        else:
            args = (ValueRef(node.inputs[0]), sizes, 0 if value is None else value)
            self.append(Node(node.name, "constant_pad_nd", args, node.outputs, node.module))

    def add_roll(self, node: Node) -> None:
        """Add a roll as its two parts in the other order, one dimension after another."""
        shape = node.output.shape
        shifts, axes = argument(node, 1), argument(node, 2)
        pairs = tuple(zip(sides(shifts), sides(axes), strict=False))
        if not pairs:
            raise UnsupportedOp(f"roll of a flat tensor, node {node.name}, give it dimensions")
        value = ValueRef(node.inputs[0])
        for number, (shift, axis) in enumerate(pairs):
            name = node.name if number == len(pairs) - 1 else f"{node.name}_{number}"
            size = shape[axis % len(shape)]
            start = -shift % size
            parts: list[Argument] = []
            for part, (first, last) in enumerate(((start, size), (0, start))):
                if first < last:
                    cut = [*shape]
                    cut[axis % len(shape)] = last - first
                    spec = TensorSpec(tuple(cut), node.output.dtype)
                    self.derive(
                        node, f"{name}_part{part}", "slice.Tensor", (value, axis, first, last), spec
                    )
                    parts.append(ValueRef(f"{name}_part{part}"))
            self.derive(node, name, "cat", (tuple(parts), axis % len(shape)), node.output)
            value = ValueRef(name)

    def add_attention(self, node: Node) -> None:
        """Add attention as scores, scale, mask, softmax and product."""
        query, key, value = (ValueRef(name) for name in list(refs(node.args))[:3])
        q = self.specs[query.name]
        if dict(node.kwargs).get("enable_gqa"):
            views = {item: self.shared_heads(node, item, q) for item in dict.fromkeys((key, value))}
            key, value = views[key], views[value]
        k = self.specs[key.name]
        rank = len(q.shape)
        turned = (*k.shape[:-2], k.shape[-1], k.shape[-2])
        scores = TensorSpec((*q.shape[:-1], k.shape[-2]), q.dtype)
        name, last = node.name, (rank - 2, rank - 1)
        self.derive(node, f"{name}_key", "transpose.int", (key, *last), TensorSpec(turned, q.dtype))
        self.derive(node, f"{name}_dot", "matmul", (query, ValueRef(f"{name}_key")), scores)
        factor = dict(node.kwargs).get("scale") or q.shape[-1] ** -0.5
        self.derive(node, f"{name}_scores", "mul.Tensor", (ValueRef(f"{name}_dot"), factor), scores)
        ready = ValueRef(f"{name}_scores")
        mask, softmax = argument(node, 3), "softmax.int"
        if is_causal(node):
            mask = self.add_mask(f"{name}_mask", scores)
        elif mask is not None:
            softmax = "_safe_softmax"  # 0 where a row sees nothing
        if isinstance(mask, ValueRef):
            masked: tuple[str, tuple[Argument, ...]] = ("add.Tensor", (ready, mask))
            if self.specs[mask.name].dtype == "bool":
                masked = ("where.ScalarOther", (mask, ready, float("-inf")))
            self.derive(node, f"{name}_masked", *masked, scores)
            ready = ValueRef(f"{name}_masked")
        self.derive(node, f"{name}_softmax", softmax, (ready, -1), scores)
        self.derive(node, name, "matmul", (ValueRef(f"{name}_softmax"), value), node.output)

    def add_mask(self, name: str, scores: TensorSpec) -> ValueRef:
        """Add the mask of causal attention, which no input changes, as a weight."""
        spec = TensorSpec(scores.shape[-2:], "bool")
        self.folded.append(Weight(name, spec))
        self.specs[name] = spec
        return ValueRef(name)

    def shared_heads(self, node: Node, heads: ValueRef, query: TensorSpec) -> ValueRef:
        """Add a view of keys or values in which each head stands for all queries that share it."""
        spec = self.specs[heads.name]
        *outer, count, tokens, width = spec.shape
        times = query.shape[-3] // count
        name = f"{node.name}_{heads.name}"
        shapes = (*outer, count, 1, tokens, width), (*outer, count, times, tokens, width)
        narrow, wide = (TensorSpec(shape, spec.dtype) for shape in shapes)
        self.derive(node, f"{name}_apart", "unsqueeze", (heads, len(outer) + 1), narrow)
        self.derive(node, f"{name}_shared", "expand", (ValueRef(f"{name}_apart"), shapes[1]), wide)
        joined = TensorSpec((*outer, count * times, tokens, width), spec.dtype)
        self.derive(node, name, "reshape", (ValueRef(f"{name}_shared"), joined.shape), joined)
        return ValueRef(name)

    def reads_vector(self, node: Node) -> bool:
        """Return whether a node reads a tensor of one dimension."""
        return any(len(self.specs[name].shape) == 1 for name in node.inputs)

    def add_vector_product(self, node: Node) -> None:
        """Add a product with a vector as one of matrices: a row before it, a column behind it."""
        operands: list[Argument] = []
        shape = list(node.output.shape)
        for place, name in reversed(list(enumerate(refs(node.args)))):
            spec = self.specs[name]
            if len(spec.shape) == 1:
                sizes = (1, *spec.shape) if place == 0 else (*spec.shape, 1)
                shape.insert(len(shape) - (place == 0), 1)
                view = f"{node.name}_vector{place}"
                column = TensorSpec(sizes, spec.dtype)
                self.derive(node, view, "unsqueeze", (ValueRef(name), place), column)
                name = view
            operands.insert(0, ValueRef(name))
        dot, product = f"{node.name}_dot", TensorSpec(tuple(shape), node.output.dtype)
        self.derive(node, dot, "matmul", tuple(operands), product)
        self.derive(node, node.name, "view", (ValueRef(dot), node.output.shape), node.output)

    def derive(
        self, node: Node, name: str, op: str, args: tuple[Argument, ...], spec: TensorSpec
    ) -> None:
        """Append a node that stands for a part of another."""
        self.append(Node(name, op, args, (spec,), node.module))

    def finish(self) -> Graph:
        """Return the graph of all nodes that something reads."""
        outputs = tuple(self.name_of(name) for name in self.graph.outputs)
        nodes = prune_unread(self.nodes, outputs)
        wanted = set(names_read(nodes))
        folded = tuple(weight for weight in self.folded if weight.name in wanted)
        weights = (*self.graph.weights, *folded)
        return Graph(self.graph.name, self.graph.inputs, weights, nodes, outputs)


def is_causal(node: Node) -> bool:
    """Return whether attention of a node sees only what came before."""
    return bool(argument(node, 5, False) or dict(node.kwargs).get("is_causal", False))
