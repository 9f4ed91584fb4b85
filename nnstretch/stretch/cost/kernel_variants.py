"""One kernel at other widths: its counts are known, and its shapes follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from nnstretch.kernel import Kernel
from nnstretch.structure.kernel_operators import CHANNELS_FIRST, CONV_KINDS

Shape = tuple[int, ...]


def kernel_with_counts(kernel: Kernel, counts: Mapping[str, Any]) -> Kernel:
    """Return a kernel with other counts, and with the shapes that have them.

    Shapes that the channels do not tell, as of maps that are concatenated, are empty: unknown.
    """
    variant = replace(kernel, **counts)
    operands = len(kernel.shapes_in) - kernel.epilogue.count("add")
    shapes_in: list[Shape] = []
    for number, shape in enumerate(kernel.shapes_in):
        # What the epilogue adds is as wide as the output.
        pair = (kernel.cin, variant.cin) if number < operands else (kernel.cout, variant.cout)
        shapes_in.append(shape_with_channels(kernel, shape, *pair))
    shape_out = shape_with_channels(kernel, kernel.shape_out, kernel.cout, variant.cout)
    reads = elements(kernel.shapes_in), elements(shapes_in)
    writes = elements([kernel.shape_out]), elements([shape_out])
    knows_in = is_same_ratio(reads, (kernel.read_elements, variant.read_elements))
    knows_out = is_same_ratio(writes, (kernel.write_elements, variant.write_elements))
    return replace(
        variant,
        shapes_in=tuple(shapes_in) if knows_in else (),
        shape_out=shape_out if knows_out else (),
    )


def shape_with_channels(kernel: Kernel, shape: Shape, before: int, after: int) -> Shape:
    """Return a shape with other channels, where it has as many as `before`."""
    is_map = len(shape) >= 4 or (len(shape) > 2 and kernel.op in CHANNELS_FIRST)
    is_first = kernel.kind in CONV_KINDS or (is_map and kernel.kind not in ("linear", "matmul"))
    axis = 1 if is_first else len(shape) - 1
    if not 0 <= axis < len(shape) or shape[axis] != before:
        return shape
    return (*shape[:axis], after, *shape[axis + 1 :])


def elements(shapes: Sequence[Shape]) -> int:
    """Return how many elements tensors of these shapes have together."""
    return sum(map(prod, shapes))


def is_same_ratio(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Return whether two numbers change by the same factor as two others."""
    return first[0] * second[1] == first[1] * second[0]
