"""Products, norms, reductions and tables: operators that read a dimension whole."""

from __future__ import annotations

from nnstretch.chip.boxes import Box, hull, whole
from nnstretch.graph import Node, refs
from nnstretch.structure.arguments import argument
from nnstretch.structure.slices.operator_sets import Reads, Specs
from nnstretch.structure.slices.views import broadcast_box


def reduced_axes(node: Node, rank: int) -> tuple[int, ...]:
    """Return the dimensions over which a reduction or a softmax goes."""
    position = 2 if node.kind == "linalg_vector_norm" else 1
    axes = argument(node, position)
    if axes is None or axes == ():
        return tuple(range(rank))
    listed = axes if isinstance(axes, tuple) else (axes,)
    return tuple(axis % rank for axis in listed)


def linear_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a linear layer reads."""
    source, weight, *biases = refs(node.args)
    width = specs[source].shape[-1]
    reads: Reads = {source: (*box[:-1], (0, width))}
    rows = (box[-1], (0, width))
    reads[weight] = hull(reads[weight], rows) if weight in reads else rows
    for name in biases:
        reads[name] = (box[-1],)
    return reads


def matmul_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a product of matrices reads."""
    first, second = list(refs(node.args))[-2:]
    shapes = specs[first].shape, specs[second].shape
    inner = (0, shapes[0][-1])
    outer = box[:-2]
    reads: Reads = {}
    for name, shape, last in ((first, shapes[0], True), (second, shapes[1], False)):
        heads = broadcast_box(shape[:-2], outer) if len(shape) > 2 else ()
        ends = (box[-2], inner) if last else (inner, box[-1])
        area = (*heads, *ends)
        reads[name] = hull(reads[name], area) if name in reads else area
    if node.kind in ("addmm", "baddbmm"):
        bias = node.inputs[0]
        reads[bias] = broadcast_box(specs[bias].shape, box)
    return reads


def batch_norm_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a batch norm reads."""
    reads: Reads = {node.inputs[0]: box}
    for name in node.inputs[1:]:
        reads[name] = (box[1],)
    return reads


def layer_norm_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a norm over the last dimensions reads."""
    normalized = node.args[1]
    depth = len(normalized) if isinstance(normalized, tuple) else 1
    return row_boxes(node, box, specs, len(box) - depth)


def sample_norm_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a norm over all of a sample reads."""
    return row_boxes(node, box, specs, 1)


def row_boxes(node: Node, box: Box, specs: Specs, outer: int) -> Reads:
    """Return boxes of an operator that keeps `outer` dimensions apart and mixes the others."""
    source = node.inputs[0]
    reads: Reads = {source: (*box[:outer], *whole(specs[source].shape[outer:]))}
    for name in node.inputs[1:]:
        reads[name] = whole(specs[name].shape)
    return reads


def mixed_axes_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a softmax: mixed dimensions whole reads."""
    source = node.inputs[0]
    ranges = list(box)
    for axis in reduced_axes(node, len(box)):
        ranges[axis] = (0, specs[source].shape[axis])
    return {source: tuple(ranges)}


def reduction_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a reduction reads."""
    source = node.inputs[0]
    shape = specs[source].shape
    axes = reduced_axes(node, len(shape))
    kept = len(node.output.shape) == len(shape)
    remaining = list(box)
    ranges: list[tuple[int, int]] = []
    for axis, size in enumerate(shape):
        if axis in axes:
            ranges.append((0, size))
            if kept:
                remaining.pop(0)
        else:
            ranges.append(remaining.pop(0))
    return {source: tuple(ranges)}


def embedding_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a look-up in a table reads."""
    table, index = node.inputs[0], node.inputs[1]
    return {table: ((0, specs[table].shape[0]), box[-1]), index: box[:-1]}


def gated_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a gated linear unit reads."""
    source = node.inputs[0]
    axis = int(argument(node, 1, -1)) % len(box)
    return {source: (*box[:axis], (0, specs[source].shape[axis]), *box[axis + 1 :])}


def samples_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of an operator that mixes all of a sample reads."""
    source = node.inputs[0]
    return {source: (box[0], *whole(specs[source].shape[1:]))}
