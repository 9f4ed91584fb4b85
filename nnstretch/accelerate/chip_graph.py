"""Captured graph -> the operators that an accelerator computes, and the addresses between them.

Views, transpositions and selections compute nothing: they are addresses into the tensor behind
them, their root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nnstretch.accelerate.graph_rewriter import ADDRESSES, NOTHING, GraphRewriter
from nnstretch.chip.boxes import Box, box_elements, hull, whole
from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.graph import ELEMENT_BYTES, Graph, Node, TensorSpec
from nnstretch.structure.slices.operator_sets import ELEMENTWISE, RESHAPES
from nnstretch.structure.slices.rules import RULES, input_boxes

IN_PLACE = (ELEMENTWISE - NOTHING - {"where", "masked_fill"}) | {
    "batch_norm",
    "softmax",
    "_safe_softmax",
}
_SPATIAL = "conv2d max_pool2d avg_pool2d adaptive_avg_pool2d upsample_nearest2d pixel_shuffle"
SPATIAL = frozenset(_SPATIAL.split())
ELEMENT_TYPES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes of an element by the name that descriptions of accelerators use."""
MOST_KNOWN = 50_000
"""Parts of outputs for which a graph remembers what they read."""


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

    def same_elements(self, first: str, second: str) -> bool:
        """Return whether two tensors have as many elements of one type: one may replace another."""
        specs = self.specs[first], self.specs[second]
        types = {"float" if "float" in spec.dtype else spec.dtype for spec in specs}
        return len(types) == 1 and specs[0].shape == specs[1].shape

    @cached_property
    def _boxes_read(self) -> dict[tuple[str, Box], Mapping[str, Box]]:
        """Return known answers of `read_boxes`: schedules of one graph ask for the same parts."""
        return {}

    def read_boxes(self, name: str, box: Box) -> Mapping[str, Box]:
        """Return the part of each tensor, weights included, behind a part of a node's output."""
        known = self._boxes_read
        boxes = known.get((name, box))
        if boxes is None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            boxes = known[name, box] = self.find_read_boxes(name, box)
        return boxes

    def find_read_boxes(self, name: str, box: Box) -> dict[str, Box]:
        """Find the part of each tensor behind a part of a node's output, by rules of slices."""
        boxes: dict[str, Box] = {}
        for source, area in input_boxes(self.nodes[name], box, self.specs).items():
            for root, behind in self.root_boxes(source, area).items():
                boxes[root] = hull(boxes[root], behind) if root in boxes else behind
        return boxes

    def weight_boxes(self, name: str, box: Box) -> dict[str, Box]:
        """Return the part of each weight behind a part of a node's output."""
        boxes = self.read_boxes(name, box).items()
        return {root: behind for root, behind in boxes if root in self.weights}

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
    if all(node.kind in ADDRESSES for node in rewritten.nodes):
        raise BadInput(f"nothing to compute, {graph.name}, its outputs are its inputs or weights")
    for node in rewritten.nodes:
        if node.kind not in RULES:
            raise UnsupportedOp(
                f"no cost of {node.op}, node {node.name}, an accelerator knows no such operator"
            )
        if not node.output.is_floating and node.output.dtype not in ELEMENT_BYTES:
            raise UnsupportedOp(
                f"no cost of {node.output.dtype}, node {node.name}, an accelerator knows"
                f" {', '.join(ELEMENT_BYTES)}"
            )
    return ChipGraph(rewritten, ELEMENT_TYPES[element_type])


def whole_box(chip: ChipGraph, name: str) -> Box:
    """Return the box of a whole tensor."""
    return whole(chip.specs[name].shape)
