"""What a kernel asks of an accelerator: products, operations and bytes, from its counts alone.

Every count may be a number or an array that broadcasts against the others, so a search prices all
widths of a layer at once. Nothing falls when a count grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.accelerate.operator_work import operations_of, reduction_operations
from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import WEIGHTED, Kernel
from nnstretch.structure.slices.operator_sets import REDUCTIONS

Numbers = NDArray[np.float64]
ATTENTION = "scaled_dot_product_attention"
VECTOR_KINDS = frozenset(
    {"pool", "gap", "add", "mul", "concat", "norm", "activation", "softmax", "reshape"}
)
KINDS = VECTOR_KINDS | set(WEIGHTED) | {"matmul"}
"""Kinds of kernels that have a price."""
_COUNTS = "cin cout hw_out kernel groups batch macs read_elements write_elements weight_elements"
COUNTS = tuple(_COUNTS.split())
"""Fields of a kernel on which its work depends; each may be an array."""


@dataclass(frozen=True, slots=True)
class Products:
    """Products of M x K by K x N matrices, numbers or arrays."""

    count: Numbers
    positions: Numbers
    """M of each; a mean, and so a fraction, where rows are divided among the products."""
    inputs: Numbers
    outputs: Numbers
    depthwise: NDArray[np.bool_]
    weighted: bool = True


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Work of one kernel."""

    products: tuple[Products, ...]
    simple: Numbers
    """Simple operations of the vector unit."""
    special: Numbers
    read_elements: Numbers
    write_elements: Numbers
    weight_elements: Numbers


def kernel_work(kernel: Kernel) -> KernelWork:
    """Return the work of a kernel. Raises UnsupportedOp for a kind that has no price."""
    if kernel.kind not in KINDS:
        raise UnsupportedOp(f"kind {kernel.kind!r} has no price, kernel {kernel.name}")
    written, read = number(kernel.write_elements), number(kernel.read_elements)
    products: tuple[Products, ...] = ()
    simple, special = operations(kernel, written, read)
    if kernel.kind in WEIGHTED:
        products = (weighted_products(kernel),)
    elif kernel.op == ATTENTION:
        scores, weighed = attention_products(kernel)
        products = (scores, weighed)
        entries = scores.count * scores.positions * scores.outputs
        simple = simple + 4 * entries  # scale, and softmax
        special = special + 2 * entries
    elif kernel.kind == "matmul":
        products = (matrix_products(kernel),)
    return KernelWork(products, simple, special, read, written, number(kernel.weight_elements))


def number(count: Any) -> Numbers:
    """Return a count, or an array of counts that a polynomial gave, without its rounding."""
    return np.rint(np.asarray(count, dtype=np.float64))


def ceil_div(count: Any, size: Any) -> Numbers:
    """Return how many pieces of a size hold a count, at least one."""
    pieces = np.ceil(np.asarray(count, dtype=np.float64) / size - 1e-9)
    return np.asarray(np.maximum(pieces, 1.0), dtype=np.float64)


def weighted_products(kernel: Kernel) -> Products:
    """Return the products of a convolution or linear layer.

    The area of a window follows from its MACs, of which a bias adds one for each output: it is a
    multiple of the window's side.
    """
    groups = number(kernel.groups)
    positions = number(kernel.hw_out) * number(kernel.batch)
    cin, cout = number(kernel.cin), number(kernel.cout)
    channels = np.maximum(cin / groups, 1.0)
    by_output = number(kernel.macs) / np.maximum(positions * cout, 1.0)
    side = np.maximum(number(kernel.kernel), 1.0)
    area = side * np.maximum(np.floor(by_output / (channels * side) + 1e-9), 1.0)
    area = np.where(side == 1, 1.0, area)
    depthwise = (groups > 1) & (groups == cout) & (groups == cin)
    return Products(groups, positions, channels * area, ceil_div(cout, groups), depthwise)


def matrix_products(kernel: Kernel) -> Products:
    """Return the product of two activations; of an activation and a weight, as a linear layer."""
    rows = number(kernel.hw_out) * number(kernel.batch)
    inputs, outputs = number(kernel.cin), number(kernel.cout)
    second = np.maximum(number(kernel.read_elements) - rows * inputs, 0.0)
    count = np.maximum(np.floor(second / (inputs * outputs)), 1.0)
    inputs = np.maximum(inputs, np.floor(number(kernel.macs) / (rows * outputs)))
    return Products(count, np.maximum(rows / count, 1.0), inputs, outputs, np.zeros(1, bool), False)


def attention_products(kernel: Kernel) -> tuple[Products, Products]:
    """Return scores and weighted sums of attention; heads and keys follow from its counts."""
    queries, width = number(kernel.hw_out) * number(kernel.batch), number(kernel.cout)
    keys = np.maximum(np.floor(number(kernel.macs) / (2 * queries * width)), 1.0)
    key_elements = np.maximum(number(kernel.read_elements) - queries * width, 0.0)
    count = np.maximum(np.floor(key_elements / (2 * keys * width)), 1.0)
    positions, narrow = np.maximum(queries / count, 1.0), np.zeros(1, bool)
    scores = Products(count, positions, width, keys, narrow, False)
    return scores, Products(count, positions, keys, width, narrow, False)


def window_area(kernel: Kernel) -> Numbers:
    """Return the positions under the window of a pool."""
    if kernel.window:
        return number(prod(kernel.window))
    return number(kernel.kernel) ** (1 if kernel.op.endswith("1d") else 2)


def operations(kernel: Kernel, written: Numbers, read: Numbers) -> tuple[Numbers, Numbers]:
    """Return simple and special operations of a kernel and of what is fused behind it."""
    simple, special = np.zeros(1), np.zeros(1)
    if kernel.kind == "gap" or kernel.op in REDUCTIONS or kernel.op.startswith("adaptive"):
        by_read, by_written = reduction_operations(kernel.op)
        simple, special = simple + by_read * read, special + by_written * written
    elif kernel.kind == "pool":
        simple = simple + window_area(kernel) * written
    elif kernel.kind in VECTOR_KINDS:
        by_element = operations_of(kernel.op or kernel.kind)
        simple, special = simple + by_element[0] * written, special + by_element[1] * written
    for follower in kernel.epilogue:
        by_element = operations_of(follower)
        simple, special = simple + by_element[0] * written, special + by_element[1] * written
    return simple, special
