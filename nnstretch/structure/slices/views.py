"""Views and copies: reshapes, transpositions, selections, concatenations, padding."""

from __future__ import annotations

from math import prod

from nnstretch.chip.boxes import Box, hull
from nnstretch.graph import Node, refs
from nnstretch.structure.arguments import argument, slice_start
from nnstretch.structure.slices.operator_sets import Reads, Specs
from nnstretch.structure.slices.windows import clip


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Return the input dimension behind each output dimension of a transposition."""
    order = list(range(rank))
    if node.kind == "permute":
        return tuple(axis % rank for axis in node.args[1])  # type: ignore[union-attr, operator, misc]
    if node.kind in ("t", "numpy_T"):
        return tuple(reversed(order))
    if node.kind == "mT":
        return (*order[:-2], rank - 1, rank - 2)
    first, second = int(node.args[1]) % rank, int(node.args[2]) % rank  # type: ignore[arg-type]
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def broadcast_box(shape: tuple[int, ...], box: Box) -> Box:
    """Return the box of an operand that is broadcast to the output's shape."""
    tail = box[len(box) - len(shape) :]
    return tuple((0, 1) if size == 1 else bounds for size, bounds in zip(shape, tail, strict=True))


def reshape_box(box: Box, shape: tuple[int, ...], source: tuple[int, ...]) -> Box:
    """Return the smallest box of `source` that holds a box of the tensor reshaped to `shape`.

    Dimensions are matched in groups of equal products; inside a group, the elements that a box
    spans in row-major order are kept.
    """
    ranges: list[tuple[int, int]] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        first, second = i, j
        product, source_product = (
            shape[i] if i < len(shape) else 1,
            source[j] if j < len(source) else 1,
        )
        i, j = min(i + 1, len(shape)), min(j + 1, len(source))
        while product != source_product:
            if product < source_product:
                product *= shape[i]
                i += 1
            else:
                source_product *= source[j]
                j += 1
        ranges += group_ranges(box[first:i], shape[first:i], source[second:j])
    return tuple(ranges)


def group_ranges(
    box: Box, shape: tuple[int, ...], source: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Return ranges of the dimensions of `source` around a box of dimensions of equal product."""
    low = high = 0
    for (start, stop), size in zip(box, shape, strict=True):
        low = low * size + start
        high = high * size + stop - 1
    ranges: list[tuple[int, int]] = []
    stride = prod(source)
    for size in source:
        stride //= size
        start, stop = low // stride, high // stride
        if start // size != stop // size:
            ranges.append((0, size))
        else:
            ranges.append((start % size, stop % size + 1))
    return widen(ranges, source)


def widen(ranges: list[tuple[int, int]], source: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return ranges with every dimension whole behind the first that spans several positions."""
    widened: list[tuple[int, int]] = []
    spans = False
    for (start, stop), size in zip(ranges, source, strict=True):
        widened.append((0, size) if spans else (start, stop))
        spans = spans or stop - start > 1
    return widened


def elementwise_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of an element-wise operator reads."""
    reads = {name: broadcast_box(specs[name].shape, box) for name in node.inputs}
    if node.kind == "prelu" and specs[node.inputs[1]].elements > 1:
        reads[node.inputs[1]] = (box[1],)  # one slope for each channel, the second dimension
    return reads


def cat_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a concatenation reads."""
    axis = int(argument(node, 1, 0)) % len(box)
    reads: Reads = {}
    offset = 0
    for name in refs(node.args[0]):
        size = specs[name].shape[axis]
        bounds = clip((box[axis][0] - offset, box[axis][1] - offset), size)
        area = (*box[:axis], bounds, *box[axis + 1 :])
        reads[name] = hull(reads[name], area) if name in reads else area
        offset += size
    return reads


def reshape_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a reshape reads."""
    source = node.inputs[0]
    return {source: reshape_box(box, node.output.shape, specs[source].shape)}


def transpose_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a transposition reads."""
    source = node.inputs[0]
    ranges: list[tuple[int, int]] = [(0, 0)] * len(box)
    for bounds, axis in zip(box, permutation(node, len(box)), strict=True):
        ranges[axis] = bounds
    return {source: tuple(ranges)}


def slice_bounds(node: Node, size: int) -> tuple[int, int]:
    """Return (start, step) of a `slice.Tensor`."""
    return slice_start(argument(node, 2), size), argument(node, 4, 1)


def slice_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a slice reads."""
    source = node.inputs[0]
    axis = int(argument(node, 1, 0)) % len(box)
    start, step = slice_bounds(node, specs[source].shape[axis])
    first, last = box[axis]
    bounds = (start + first * step, start + (last - 1) * step + 1)
    return {source: (*box[:axis], bounds, *box[axis + 1 :])}


def select_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a selection of one index reads."""
    source = node.inputs[0]
    shape = specs[source].shape
    axis = int(node.args[1]) % len(shape)  # type: ignore[arg-type]
    index = int(node.args[2]) % shape[axis]  # type: ignore[arg-type]
    return {source: (*box[:axis], (index, index + 1), *box[axis:])}


def expand_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a broadcast reads."""
    source = node.inputs[0]
    return {source: broadcast_box(specs[source].shape, box)}


def pad_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a padding by constants reads."""
    source = node.inputs[0]
    shape = specs[source].shape
    pads = node.args[1]
    ranges = list(box)
    for index in range(len(pads) // 2):  # type: ignore[arg-type]
        axis = len(shape) - 1 - index
        before = int(pads[2 * index])  # type: ignore[index, arg-type]
        start, stop = box[axis]
        ranges[axis] = clip((start - before, stop - before), shape[axis])
    return {source: tuple(ranges)}
