"""What an operator asks of the matrix and the vector unit.

A product of matrices is positions x inputs x outputs (M, K, N), several of them for groups and
heads. Everything else counts simple and special operations by element; which of them an operator
has follows from its formula, how long they take is the machine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.chip.boxes import Box, box_elements, box_shape, whole
from nnstretch.graph import Node, refs
from nnstretch.structure.arguments import argument, conv_groups
from nnstretch.structure.macs import CONVOLUTIONS
from nnstretch.structure.slices.operator_sets import REDUCTIONS
from nnstretch.structure.slices.rules import input_boxes
from nnstretch.structure.slices.windows import window_geometry

PRODUCTS = frozenset({"matmul", "bmm", "mm", "addmm", "baddbmm"})
MATRIX_KINDS = CONVOLUTIONS | PRODUCTS | {"linear"}
_MIXING = "softmax _softmax _safe_softmax log_softmax layer_norm rms_norm group_norm instance_norm"
MIXING = frozenset(_MIXING.split())
"""Kinds of which an element of the output needs others of its row, channel or group."""
_OPERATIONS = {
    "softmax": (3, 2),  # maximum, difference, sum; exponential, division
    "_softmax": (3, 2),
    "_safe_softmax": (3, 2),
    "log_softmax": (4, 2),
    "layer_norm": (6, 1),  # mean, difference, square, sum, scale, shift; root
    "rms_norm": (3, 1),
    "group_norm": (6, 1),
    "instance_norm": (6, 1),
    "batch_norm": (1, 0),  # a product and a sum with constants
    "gelu": (3, 1),
    "silu": (1, 2),
    "sigmoid": (1, 2),
    "tanh": (1, 2),
    "glu": (1, 2),
    "hardswish": (4, 0),
    "hardsigmoid": (3, 0),
    "div": (0, 1),
    "exp": (0, 1),
    "log": (0, 1),
    "sqrt": (0, 1),
    "rsqrt": (0, 1),
    "erf": (0, 1),
    "pow": (1, 0),
    "sin": (0, 1),
    "cos": (0, 1),
    "elu": (2, 1),
    "selu": (3, 1),
    "celu": (3, 1),
    "softsign": (2, 1),
    "softplus": (1, 2),
    "mish": (4, 2),  # x n / (n + 2), where n = e (e + 2) and e is the exponential of x
}
"""Simple and special operations by element, where they are not one simple operation."""


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Products of M x K by K x N matrices."""

    count: int
    """Products that share nothing: groups of a convolution, heads of attention."""
    positions: int
    inputs: int
    outputs: int
    depthwise: bool = False
    weighted: bool = True
    """Whether the K x N matrix is a trained weight."""

    @property
    def macs(self) -> int:
        """Return the multiply-accumulates."""
        return self.count * self.positions * self.inputs * self.outputs


def is_matrix(chip: ChipGraph, name: str) -> bool:
    """Return whether an operator runs on the matrix unit."""
    return chip.nodes[name].kind in MATRIX_KINDS


def matrix_shape(chip: ChipGraph, name: str, box: Box | None = None) -> MatrixShape | None:
    """Return the products of a part of an operator, None for one of the vector unit."""
    node = chip.nodes[name]
    if node.kind not in MATRIX_KINDS:
        return None
    sizes = node.output.shape if box is None else box_shape(box)
    if node.kind in CONVOLUTIONS:
        weight = chip.specs[node.inputs[1]].shape
        groups = conv_groups(node)
        channels = max(1, sizes[1] * groups // weight[0]) if groups > 1 else 1
        positions = sizes[0] * prod(sizes[2:])
        outputs = -(-sizes[1] // channels)
        depthwise = groups > 1 and weight[0] == groups and weight[1] == 1
        return MatrixShape(channels, positions, prod(weight[1:]), outputs, depthwise)
    if node.kind == "linear":
        inputs = chip.specs[node.inputs[0]].shape[-1]
        return MatrixShape(1, prod(sizes[:-1]), inputs, sizes[-1])
    first, second = product_operands(node)
    inputs = chip.specs[first].shape[-1]
    weighted = chip.roots[second] in chip.weights
    if weighted:
        return MatrixShape(1, prod(sizes[:-1]), inputs, sizes[-1])
    return MatrixShape(prod(sizes[:-2]), sizes[-2], inputs, sizes[-1], weighted=False)


def product_operands(node: Node) -> tuple[str, str]:
    """Return the two tensors of a product of matrices; an addend stands before them."""
    first, second = list(refs(node.args))[-2:]
    return first, second


def row_weight(chip: ChipGraph, name: str) -> str | None:
    """Return the weight whose rows pass through the unit, the first operand; None without one."""
    if chip.nodes[name].kind not in PRODUCTS:
        return None
    first, second = (chip.roots[operand] for operand in product_operands(chip.nodes[name]))
    return first if first in chip.weights and second not in chip.weights else None


def row_weight_bytes(chip: ChipGraph, name: str, box: Box) -> int:
    """Return the bytes of the first operand behind a part of a product, 0 where it is no weight."""
    root = row_weight(chip, name)
    return 0 if root is None else chip.bytes_of(root, chip.weight_boxes(name, box)[root])


def mixed_elements(chip: ChipGraph, name: str) -> int:
    """Return of how many elements a softmax or norm forms one of its output; 1 of others."""
    node = chip.nodes[name]
    if node.kind not in MIXING:
        return 1
    sizes = node.output.shape
    if node.kind == "instance_norm":
        return max(1, prod(sizes[2:]))
    if node.kind == "group_norm":
        return max(1, prod(sizes[1:]) // int(argument(node, 1)))
    corner = tuple((0, 1) for _ in sizes)
    return max(1, box_elements(input_boxes(node, corner, chip.specs)[node.inputs[0]]))


def weight_bytes(chip: ChipGraph, name: str, box: Box | None = None) -> int:
    """Return the bytes of the weights that a part of an operator reads."""
    area = whole(chip.specs[name].shape) if box is None else box
    total = 0
    for root, part in chip.weight_boxes(name, area).items():
        rows = part
        if chip.nodes[name].kind == "embedding" and root == chip.nodes[name].inputs[0]:
            count = prod(box_shape(area[:-1]))
            rows = ((0, min(count, part[0][1])), part[1])  # a table is read row by row
        total += chip.bytes_of(root, rows)
    return total


def vector_operations(chip: ChipGraph, name: str) -> tuple[float, float]:
    """Return simple and special operations by element of the output."""
    node = chip.nodes[name]
    if node.kind in MATRIX_KINDS:
        return 0.0, 0.0
    if node.kind.startswith(("max_pool", "avg_pool")):
        dims = 1 if node.kind.endswith("1d") else 2
        return float(prod(window[0] for window in window_geometry(node, dims))), 0.0
    if node.kind in REDUCTIONS or node.kind.startswith("adaptive_avg_pool"):
        by_output = chip.specs[node.inputs[0]].elements / node.output.elements
        simple, special = reduction_operations(node.kind)
        return simple * by_output, special
    return operations_of(node.kind)


def reduction_operations(kind: str) -> tuple[float, float]:
    """Return simple operations by element read, and special ones by element written."""
    return (2.0, 1.0) if kind == "linalg_vector_norm" else (1.0, 0.0)  # square, sum; root


def operations_of(kind: str) -> tuple[float, float]:
    """Return simple and special operations by element of an element-wise operator or a norm."""
    simple, special = _OPERATIONS.get(kind, (1, 0))
    return float(simple), float(special)
