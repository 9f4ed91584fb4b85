"""Slices: which part of each input an operator reads to compute a part of its output.

Every rule maps the box of an output to boxes of what the operator reads, weights included. A
window of a convolution or pooling reads a halo; an operator that mixes a dimension (softmax, norm,
mean) reads it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from nnstretch.chip.boxes import Box, hull, whole
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Argument, Node, TensorSpec, refs
from nnstretch.kernel import ACTIVATIONS
from nnstretch.structure.arguments import argument, conv_groups
from nnstretch.structure.macs import CONVOLUTIONS

Specs = Mapping[str, TensorSpec]
Reads = dict[str, Box]
_ELEMENTWISE = """
    add sub rsub mul div maximum minimum where abs exp log sin cos tanh erf square floor masked_fill
    eq ne lt le gt ge logical_not logical_and logical_or clone to _to_copy type_as contiguous
    dropout feature_dropout alpha_dropout detach alias identity lift_fresh_copy
"""
ELEMENTWISE = frozenset(ACTIVATIONS) | frozenset(_ELEMENTWISE.split())
_RESHAPES = "view _unsafe_view reshape view_as reshape_as flatten unflatten squeeze unsqueeze"
RESHAPES = frozenset(_RESHAPES.split())
POOLS = frozenset({"max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d"})
TRANSPOSES = frozenset({"permute", "transpose", "t", "numpy_T", "swapaxes"})
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "linalg_vector_norm"})


def input_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return the box of each value and weight that a part of a node's output needs.

    Raises UnsupportedOp for an operator without a rule.
    """
    rule = RULES.get(node.kind)
    if rule is None:
        raise UnsupportedOp(
            f"no rule of slices for {node.op}, node {node.name}, its output cannot be computed in"
            " parts"
        )
    return rule(node, box, specs)


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Return the input dimension behind each output dimension of a transposition."""
    order = list(range(rank))
    if node.kind == "permute":
        return tuple(axis % rank for axis in node.args[1])  # type: ignore[union-attr, operator, misc]
    if node.kind in ("t", "numpy_T"):
        return tuple(reversed(order))
    first, second = int(node.args[1]) % rank, int(node.args[2]) % rank  # type: ignore[arg-type]
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def reduced_axes(node: Node, rank: int) -> tuple[int, ...]:
    """Return the dimensions over which a reduction or a softmax goes."""
    position = 2 if node.kind == "linalg_vector_norm" else 1
    axes = argument(node, position)
    if axes is None or axes == ():
        return tuple(range(rank))
    listed = axes if isinstance(axes, tuple) else (axes,)
    return tuple(axis % rank for axis in listed)


def pair(value: Argument, default: int, count: int = 2) -> tuple[int, ...]:
    """Return a window, stride or padding as one number for each dimension of a map."""
    if isinstance(value, tuple):
        numbers = tuple(int(item) for item in value)  # type: ignore[arg-type]
        if numbers:
            return numbers * count if len(numbers) == 1 else numbers
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * count
    return (default,) * count


def window_geometry(node: Node, dims: int) -> list[tuple[int, int, int, int]]:
    """Return (window, stride, padding, dilation) of each dimension of a pooling."""
    kernel = pair(node.args[1], 1, dims)
    stride = pair(argument(node, 2), 0, dims)
    padding = pair(argument(node, 3), 0, dims)
    dilation = pair(argument(node, 4), 1, dims) if node.kind.startswith("max") else (1,) * dims
    return [(k, s or k, p, d) for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)]


def conv_geometry(node: Node, specs: Specs) -> list[tuple[int, int, int, int]]:
    """Return (window, stride, padding, dilation) of each dimension of a convolution."""
    kernel = specs[node.inputs[1]].shape[2:]
    dims = len(kernel)
    stride = pair(argument(node, 3), 1, dims)
    padding = conv_padding(node, kernel)
    dilation = pair(argument(node, 5), 1, dims)
    return list(zip(kernel, stride, padding, dilation, strict=True))


def conv_padding(node: Node, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return the padding before each dimension. Raises UnsupportedOp for one that is a word."""
    padding = argument(node, 4, 0)
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * len(kernel)
        if all(size % 2 for size in kernel):
            dilation = pair(argument(node, 5), 1, len(kernel))
            return tuple((k - 1) * d // 2 for k, d in zip(kernel, dilation, strict=True))
        raise UnsupportedOp(f"padding {padding!r} of {node.name}, windows {kernel}, it is uneven")
    return pair(padding, 0, len(kernel))


def window_range(outputs: tuple[int, int], geometry: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the positions that windows read, those in the padding included."""
    kernel, stride, padding, dilation = geometry
    start, stop = outputs
    return start * stride - padding, (stop - 1) * stride - padding + dilation * (kernel - 1) + 1


def clip(positions: tuple[int, int], size: int) -> tuple[int, int]:
    """Return the positions that lie inside a dimension."""
    start = min(max(positions[0], 0), size)
    return start, max(start, min(positions[1], size))


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
        left, right = shape[i] if i < len(shape) else 1, source[j] if j < len(source) else 1
        i, j = min(i + 1, len(shape)), min(j + 1, len(source))
        while left != right:
            if left < right:
                left *= shape[i]
                i += 1
            else:
                right *= source[j]
                j += 1
        ranges += _group_ranges(box[first:i], shape[first:i], source[second:j])
    return tuple(ranges)


def _group_ranges(
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
    return _widen(ranges, source)


def _widen(ranges: list[tuple[int, int]], source: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return ranges with every dimension whole behind the first that spans several positions."""
    widened: list[tuple[int, int]] = []
    spans = False
    for (start, stop), size in zip(ranges, source, strict=True):
        widened.append((0, size) if spans else (start, stop))
        spans = spans or stop - start > 1
    return widened


def _elementwise(node: Node, box: Box, specs: Specs) -> Reads:
    return {name: broadcast_box(specs[name].shape, box) for name in node.inputs}


def _convolution(node: Node, box: Box, specs: Specs) -> Reads:
    source, weight = node.inputs[0], node.inputs[1]
    groups = conv_groups(node)
    channels = (0, specs[source].shape[1])
    outputs = box[1]
    if groups > 1:
        per_group = specs[weight].shape[0] // groups
        first, last = box[1][0] // per_group, (box[1][1] - 1) // per_group + 1
        width = specs[weight].shape[1]
        channels, outputs = (first * width, last * width), (first * per_group, last * per_group)
    spatial = _windows(conv_geometry(node, specs), box[2:], specs[source].shape[2:])
    reads = {source: (box[0], channels, *spatial)}
    reads[weight] = (outputs, *whole(specs[weight].shape[1:]))
    for name in node.inputs[2:]:
        reads[name] = (outputs,)
    return reads


def _windows(
    geometry: list[tuple[int, int, int, int]], box: Box, sizes: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    return tuple(
        clip(window_range(bounds, window), size)
        for bounds, window, size in zip(box, geometry, sizes, strict=True)
    )


def _pool(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    shape = specs[source].shape
    geometry = window_geometry(node, dims)
    padded_mean = node.kind.startswith("avg") and not argument(node, 5, True)
    # A last window beyond the map, or a mean that does not count padding: read the map whole.
    if argument(node, 5 if node.kind.startswith("max") else 4, False) or padded_mean:
        return {source: (*box[:-dims], *whole(shape[-dims:]))}
    return {source: (*box[:-dims], *_windows(geometry, box[-dims:], shape[-dims:]))}


def _adaptive_pool(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    ranges = list(box[:-dims])
    sizes = zip(box[-dims:], node.output.shape[-dims:], specs[source].shape[-dims:], strict=True)
    for (start, stop), outputs, inputs in sizes:
        ranges.append((start * inputs // outputs, -(-stop * inputs // outputs)))
    return {source: tuple(ranges)}


def _linear(node: Node, box: Box, specs: Specs) -> Reads:
    source, weight = node.inputs[0], node.inputs[1]
    width = specs[source].shape[-1]
    reads = {source: (*box[:-1], (0, width)), weight: (box[-1], (0, width))}
    for name in node.inputs[2:]:
        reads[name] = (box[-1],)
    return reads


def _matmul(node: Node, box: Box, specs: Specs) -> Reads:
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


def _batch_norm(node: Node, box: Box, specs: Specs) -> Reads:
    reads: Reads = {node.inputs[0]: box}
    for name in node.inputs[1:]:
        reads[name] = (box[1],)
    return reads


def _layer_norm(node: Node, box: Box, specs: Specs) -> Reads:
    normalized = node.args[1]
    depth = len(normalized) if isinstance(normalized, tuple) else 1
    return _rows_of(node, box, specs, len(box) - depth)


def _sample_norm(node: Node, box: Box, specs: Specs) -> Reads:
    return _rows_of(node, box, specs, 1)


def _rows_of(node: Node, box: Box, specs: Specs, outer: int) -> Reads:
    """Return boxes of an operator that keeps `outer` dimensions apart and mixes the others."""
    source = node.inputs[0]
    reads: Reads = {source: (*box[:outer], *whole(specs[source].shape[outer:]))}
    for name in node.inputs[1:]:
        reads[name] = whole(specs[name].shape)
    return reads


def _mixed_axes(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    ranges = list(box)
    for axis in reduced_axes(node, len(box)):
        ranges[axis] = (0, specs[source].shape[axis])
    return {source: tuple(ranges)}


def _reduction(node: Node, box: Box, specs: Specs) -> Reads:
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


def _cat(node: Node, box: Box, specs: Specs) -> Reads:
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


def _reshape(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    return {source: reshape_box(box, node.output.shape, specs[source].shape)}


def _transpose(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    ranges: list[tuple[int, int]] = [(0, 0)] * len(box)
    for bounds, axis in zip(box, permutation(node, len(box)), strict=True):
        ranges[axis] = bounds
    return {source: tuple(ranges)}


def slice_bounds(node: Node, size: int) -> tuple[int, int]:
    """Return (start, step) of a `slice.Tensor`."""
    start = argument(node, 2, 0) or 0
    return min(start + size if start < 0 else start, size), argument(node, 4, 1)


def _slice(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    axis = int(argument(node, 1, 0)) % len(box)
    start, step = slice_bounds(node, specs[source].shape[axis])
    first, last = box[axis]
    bounds = (start + first * step, start + (last - 1) * step + 1)
    return {source: (*box[:axis], bounds, *box[axis + 1 :])}


def _select(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    shape = specs[source].shape
    axis = int(node.args[1]) % len(shape)  # type: ignore[arg-type]
    index = int(node.args[2]) % shape[axis]  # type: ignore[arg-type]
    return {source: (*box[:axis], (index, index + 1), *box[axis:])}


def _expand(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    return {source: broadcast_box(specs[source].shape, box)}


def _pad(node: Node, box: Box, specs: Specs) -> Reads:
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


def _embedding(node: Node, box: Box, specs: Specs) -> Reads:
    table, index = node.inputs[0], node.inputs[1]
    return {table: ((0, specs[table].shape[0]), box[-1]), index: box[:-1]}


def _gated(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    axis = int(argument(node, 1, -1)) % len(box)
    return {source: (*box[:axis], (0, specs[source].shape[axis]), *box[axis + 1 :])}


def _samples(node: Node, box: Box, specs: Specs) -> Reads:
    source = node.inputs[0]
    return {source: (box[0], *whole(specs[source].shape[1:]))}


Rule = Callable[[Node, Box, Specs], Reads]
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_avg_pool1d"), _adaptive_pool),
    "linear": _linear,
    **dict.fromkeys(("matmul", "bmm", "mm", "addmm", "baddbmm"), _matmul),
    "batch_norm": _batch_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("group_norm", "instance_norm"), _sample_norm),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), _mixed_axes),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(("cat", "concat"), _cat),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(TRANSPOSES, _transpose),
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(("expand", "expand_as"), _expand),
    "constant_pad_nd": _pad,
    "embedding": _embedding,
    "glu": _gated,
    **dict.fromkeys(("upsample_nearest2d", "pixel_shuffle", "channel_shuffle"), _samples),
}
