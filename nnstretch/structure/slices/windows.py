"""Windows of convolutions and poolings: what a part of their output reads, halo included."""

from __future__ import annotations

from nnstretch.chip.boxes import Box, whole
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Argument, Node
from nnstretch.structure.arguments import argument, conv_groups
from nnstretch.structure.slices.operator_sets import Reads, Specs


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


def convolution_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a convolution: a halo of the map, its own filters reads."""
    source, weight = node.inputs[0], node.inputs[1]
    groups = conv_groups(node)
    channels = (0, specs[source].shape[1])
    outputs = box[1]
    if groups > 1:
        per_group = specs[weight].shape[0] // groups
        first, last = box[1][0] // per_group, (box[1][1] - 1) // per_group + 1
        width = specs[weight].shape[1]
        channels, outputs = (first * width, last * width), (first * per_group, last * per_group)
    spatial = window_boxes(conv_geometry(node, specs), box[2:], specs[source].shape[2:])
    reads = {source: (box[0], channels, *spatial)}
    reads[weight] = (outputs, *whole(specs[weight].shape[1:]))
    for name in node.inputs[2:]:
        reads[name] = (outputs,)
    return reads


def window_boxes(
    geometry: list[tuple[int, int, int, int]], box: Box, sizes: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the positions of a map behind parts of the output, padding left out."""
    return tuple(
        clip(window_range(bounds, window), size)
        for bounds, window, size in zip(box, geometry, sizes, strict=True)
    )


def pool_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a pooling reads."""
    source = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    shape = specs[source].shape
    geometry = window_geometry(node, dims)
    padded_mean = node.kind.startswith("avg") and not argument(node, 5, True)
    # A last window beyond the map, or a mean that does not count padding: read the map whole.
    if argument(node, 5 if node.kind.startswith("max") else 4, False) or padded_mean:
        return {source: (*box[:-dims], *whole(shape[-dims:]))}
    return {source: (*box[:-dims], *window_boxes(geometry, box[-dims:], shape[-dims:]))}


def adaptive_pool_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return what a part of a pooling to a fixed size reads."""
    source = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    ranges = list(box[:-dims])
    sizes = zip(box[-dims:], node.output.shape[-dims:], specs[source].shape[-dims:], strict=True)
    for (start, stop), outputs, inputs in sizes:
        ranges.append((start * inputs // outputs, -(-stop * inputs // outputs)))
    return {source: tuple(ranges)}
