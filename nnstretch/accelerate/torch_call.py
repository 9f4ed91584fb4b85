"""A part of an operator's output, computed with torch from parts of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nnstretch.chip.boxes import Box, box_shape, intersect, relative, whole
from nnstretch.graph import Argument, Node, TensorSpec, ValueRef
from nnstretch.structure.arguments import argument, conv_groups
from nnstretch.structure.macs import CONVOLUTIONS
from nnstretch.structure.slices.operator_sets import RESHAPES, SOFTMAXES, TRANSPOSES
from nnstretch.structure.slices.rules import input_boxes
from nnstretch.structure.slices.views import permutation, slice_bounds
from nnstretch.structure.slices.windows import conv_geometry, window_geometry, window_range

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
Specs = Mapping[str, TensorSpec]


def compute_part(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    """Return a part of a node's output from the parts of inputs that `input_boxes` names.

    The host keeps numbers with a point as float32, rounded to the type of the output. Raises
    UnsupportedOp for an operator that this PyTorch lacks.
    """
    import torch

    rule = CALLS.get(node.kind)
    if node.output.is_floating and node.kind not in READS_TYPES:
        parts = {name: part.float() for name, part in parts.items()}
    part: torch.Tensor = rule(node, box, specs, parts) if rule else call_operator(node, parts)
    return part.to(getattr(torch, node.output.dtype)).float() if node.output.is_floating else part


def call_operator(node: Node, parts: Tensors) -> torch.Tensor:
    """Call an operator whose arguments do not depend on which part is computed."""
    from nnstretch.capture.rebuild_module import resolve_operator

    args = [fill(item, parts) for item in node.args]
    kwargs = {key: fill(item, parts) for key, item in node.kwargs}
    result: torch.Tensor = resolve_operator(node)(*args, **kwargs)
    return result


def fill(item: Argument, parts: Tensors) -> Any:
    """Return an argument with names replaced by tensors."""
    import torch

    if isinstance(item, ValueRef):
        return parts[item.name]
    if isinstance(item, tuple):
        return [fill(inner, parts) for inner in item]
    if isinstance(item, str) and item.startswith("torch."):
        return getattr(torch, item.removeprefix("torch."))
    return item


def padded(
    source: torch.Tensor,
    outputs: Box,
    geometry: list[tuple[int, int, int, int]],
    sizes: tuple[int, ...],
    value: float,
) -> torch.Tensor:
    """Return a part of a map with the padding that windows of these outputs read."""
    from torch.nn.functional import pad

    pads: list[int] = []
    for bounds, window, size in reversed(tuple(zip(outputs, geometry, sizes, strict=True))):
        start, stop = window_range(bounds, window)
        pads += [max(0, -start), max(0, stop - size)]
    return pad(source, pads, value=value) if any(pads) else source


def _convolution(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    names = node.inputs
    geometry = conv_geometry(node, specs)
    source = padded(parts[names[0]], box[2:], geometry, specs[names[0]].shape[2:], 0.0)
    weight = parts[names[1]]
    bias = parts[names[2]] if len(names) > 2 else None
    per_group = specs[names[1]].shape[0] // conv_groups(node)
    groups = max(1, weight.shape[0] // per_group) if conv_groups(node) > 1 else 1
    convolve = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[weight.dim()]
    stride = [window[1] for window in geometry]
    dilation = [window[3] for window in geometry]
    result = convolve(source, weight, bias, stride, 0, dilation, groups)
    first = box[1][0] % per_group if conv_groups(node) > 1 else 0
    return result[:, first : first + box[1][1] - box[1][0]]


def _pool(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    name = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    mean = node.kind.startswith("avg")
    unusual = argument(node, 4 if mean else 5, False) or (mean and not argument(node, 5, True))
    if unusual:
        pooled = call_operator(node, parts)
        return pooled[tuple(slice(None) for _ in box[:-dims]) + as_slices(box[-dims:])]
    geometry = window_geometry(node, dims)
    value = 0.0 if mean else float("-inf")
    source = padded(parts[name], box[-dims:], geometry, specs[name].shape[-dims:], value)
    kernel = [window[0] for window in geometry]
    stride = [window[1] for window in geometry]
    if mean:
        if dims == 1:
            return torch.nn.functional.avg_pool1d(source, kernel, stride)
        divisor = argument(node, 6)
        return torch.nn.functional.avg_pool2d(source, kernel, stride, divisor_override=divisor)
    dilation = [window[3] for window in geometry]
    largest = torch.nn.functional.max_pool1d if dims == 1 else torch.nn.functional.max_pool2d
    return largest(source, kernel, stride, 0, dilation)


def _adaptive_pool(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    name = node.inputs[0]
    dims = 1 if node.kind.endswith("1d") else 2
    result = parts[name]
    offsets = input_boxes(node, box, specs)[name]
    for axis in range(-dims, 0):
        inputs, outputs = specs[name].shape[axis], node.output.shape[axis]
        pieces: list[torch.Tensor] = []
        for index in range(*box[axis]):
            start = index * inputs // outputs - offsets[axis][0]
            stop = -(-(index + 1) * inputs // outputs) - offsets[axis][0]
            pieces.append(result.narrow(axis, start, stop - start).mean(axis, keepdim=True))
        result = torch.cat(pieces, axis)
    return result


def _reshape(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    return parts[node.inputs[0]].reshape(box_shape(box))


def _permute(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    return parts[node.inputs[0]].permute(permutation(node, len(box)))


def _slice(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    source = node.inputs[0]
    axis = int(argument(node, 1, 0)) % len(box)
    _, step = slice_bounds(node, specs[source].shape[axis])
    return parts[source][(*[slice(None)] * axis, slice(None, None, step))]


def _select(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    source = parts[node.inputs[0]]
    axis = int(node.args[1]) % source.dim()  # type: ignore[arg-type]
    return source.select(axis, 0)


def _expand(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    return parts[node.inputs[0]].expand(box_shape(box))


def _cat(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    axis = int(argument(node, 1, 0)) % len(box)
    areas = input_boxes(node, box, specs)
    pieces: list[torch.Tensor] = []
    offset = 0
    for item in node.args[0]:  # type: ignore[union-attr]
        assert isinstance(item, ValueRef)
        size = specs[item.name].shape[axis]
        start, stop = max(0, box[axis][0] - offset), min(size, box[axis][1] - offset)
        if start < stop:
            first = areas[item.name][axis][0]
            pieces.append(parts[item.name].narrow(axis, start - first, stop - start))
        offset += size
    return torch.cat(pieces, axis)


def _pad(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    source = node.inputs[0]
    value = argument(node, 2, 0) or 0
    result = torch.full(box_shape(box), float(value))
    shift = [0] * len(box)
    pads = node.args[1]
    for index in range(len(pads) // 2):  # type: ignore[arg-type]
        shift[len(box) - 1 - index] = int(pads[2 * index])  # type: ignore[index, arg-type]
    area = input_boxes(node, box, specs)[source]
    target = tuple((low + s, high + s) for (low, high), s in zip(area, shift, strict=True))
    if intersect(target, box) is not None:
        result[as_slices(relative(target, box))] = parts[source]
    return result


def _embedding(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    # What the chip computed lies among numbers with a point.
    index = parts[node.inputs[1]]
    rows = index.long() if index.is_floating_point() else index
    return torch.nn.functional.embedding(rows, parts[node.inputs[0]])


def _masked(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    # What the chip compared lies as 0 and 1 among numbers with a point.
    truths = {name: part.bool() for name, part in parts.items() if specs[name].dtype == "bool"}
    return call_operator(node, {**parts, **truths})


def _gated(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    import torch

    axis = int(argument(node, 1, -1)) % len(box)
    result = torch.nn.functional.glu(parts[node.inputs[0]], axis)
    return result.narrow(axis, box[axis][0], box[axis][1] - box[axis][0])


def _samples(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    result = call_operator(node, parts)
    return result[(slice(None), *as_slices(box[1:]))]


def _rows(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    """Compute the dimensions that the operator mixes whole, and keep the part."""
    area = list(whole(node.output.shape))
    depth = len(node.args[1]) if node.kind.endswith("layer_norm") else len(box) - 1  # type: ignore[arg-type]
    for axis in range(len(box) - depth):
        area[axis] = box[axis]
    return call_operator(node, parts)[as_slices(relative(box, tuple(area)))]


def _mixed(node: Node, box: Box, specs: Specs, parts: Tensors) -> torch.Tensor:
    area = input_boxes(node, box, specs)[node.inputs[0]]
    return call_operator(node, parts)[as_slices(relative(box, area))]


def as_slices(box: Box) -> tuple[slice, ...]:
    """Return a box as an index of a tensor."""
    return tuple(slice(start, stop) for start, stop in box)


READS_TYPES = frozenset({"embedding", "where", "masked_fill"})
"""Operators that compute numbers with a point from indices and truths."""
Call = Callable[[Node, Box, Specs, Any], Any]
CALLS: dict[str, Call] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d"), _pool),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_avg_pool1d"), _adaptive_pool),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(TRANSPOSES, _permute),
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(("expand", "expand_as"), _expand),
    **dict.fromkeys(("cat", "concat"), _cat),
    "constant_pad_nd": _pad,
    "embedding": _embedding,
    **dict.fromkeys(("where", "masked_fill"), _masked),
    "glu": _gated,
    **dict.fromkeys(("upsample_nearest2d", "pixel_shuffle", "channel_shuffle"), _samples),
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), _rows),
    **dict.fromkeys(SOFTMAXES, _mixed),
}
"""Operators whose arguments speak of the whole tensor; all others are called as they are."""
