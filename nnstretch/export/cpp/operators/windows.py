"""Operators with windows: convolutions, pools, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.operators.shapes import integers
from nnstretch.export.cpp.program import Attribute, TensorView
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


def pair(value: Argument, default: int = 1, rank: int = 2) -> tuple[int, int]:
    """Return an attribute of a window for height and width; one number stands for both.

    Along a single axis (`rank` 1) the height is the default.
    """
    numbers = value if isinstance(value, tuple) else (value,)
    sizes = tuple(int(number) for number in numbers if isinstance(number, int))
    if not sizes:
        return default, default
    if rank == 1:
        return default, sizes[0]
    return (sizes[0], sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def as_maps(view: TensorView, rank: int) -> TensorView:
    """Return a view [.., C, L] as maps [.., C, 1, L] where there is one spatial axis."""
    return view_algebra.insert_axis(view, len(view.shape) - 1) if rank == 1 else view


def map_output(t: Translation, node: Node, view: TensorView) -> TensorView:
    """Return a result of maps under the shape that the node has."""
    return t.reshape(view, node.output.shape, node)


def maps_shape(node: Node, rank: int) -> tuple[int, ...]:
    """Return the shape of a node's output as maps."""
    shape = node.output.shape
    return (*shape[:-1], 1, shape[-1]) if rank == 1 else shape


def batched(t: Translation, node: Node, rank: int) -> TensorView:
    """Return a node's first argument as dense maps with a batch axis."""
    x = t.view_of(node.args[0])
    if len(x.shape) != rank + 2:
        raise UnsupportedArguments(f"an input of {len(x.shape)} axes, it takes {rank + 2}")
    return as_maps(t.dense(x, node), rank)


def convolution(t: Translation, node: Node) -> Views:
    """Translate conv1d and conv2d."""
    rank = 1 if node.kind == "conv1d" else 2
    x = batched(t, node, rank)
    weight = as_maps(t.dense(t.view_of(node.args[1]), node), rank)
    bias = t.optional_dense(argument(node, 2), node)
    stride = pair(argument(node, 3, 1), rank=rank)
    dilation = pair(argument(node, 5, 1), rank=rank)
    kernel = weight.shape[2:]
    padding = conv_padding(argument(node, 4, 0), kernel, dilation, rank)
    groups = argument(node, 6, 1)
    attributes: dict[str, Attribute] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": int(groups),
    }
    result = t.call(node, "Conv2d", (x, weight, bias, None), maps_shape(node, rank), attributes)
    return map_output(t, node, result)


def conv_padding(
    padding: Any, kernel: tuple[int, ...], dilation: tuple[int, int], rank: int
) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right; `same` puts the odd one last, as PyTorch does."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        rows, columns = total[0] // 2, total[1] // 2
        return rows, columns, total[0] - rows, total[1] - columns
    rows, columns = pair(padding, 0, rank)
    return rows, columns, rows, columns


def transposed_convolution(t: Translation, node: Node) -> Views:
    """Translate conv_transpose1d and conv_transpose2d; the output's size says the rest."""
    rank = 1 if node.kind == "conv_transpose1d" else 2
    x = batched(t, node, rank)
    weight = as_maps(t.dense(t.view_of(node.args[1]), node), rank)
    attributes: dict[str, Attribute] = {
        "stride": pair(argument(node, 3, 1), rank=rank),
        "padding": pair(argument(node, 4, 0), 0, rank),
        "dilation": pair(argument(node, 7, 1), rank=rank),
        "groups": int(argument(node, 6, 1)),
    }
    reads = (x, weight, t.optional_dense(argument(node, 2), node))
    result = t.call(node, "ConvTranspose2d", reads, maps_shape(node, rank), attributes)
    return map_output(t, node, result)


def pool(t: Translation, node: Node) -> Views:
    """Translate max and average pools, ceil_mode by the output's size."""
    rank = 1 if node.kind.endswith("1d") else 2
    x = batched(t, node, rank)
    window = pair(node.args[1], rank=rank)
    stride_argument = argument(node, 2, ())
    stride = pair(stride_argument, rank=rank) if stride_argument not in ((), None) else window
    attributes: dict[str, Attribute] = {
        "window": window,
        "stride": stride,
        "padding": pair(argument(node, 3, 0), 0, rank),
    }
    if node.kind.startswith("max"):
        attributes["dilation"] = pair(argument(node, 4, 1), rank=rank)
    else:
        attributes |= average(node)
    result = t.call(node, "Pool2d", (x,), maps_shape(node, rank), attributes)
    return only_values(node, map_output(t, node, result))


def average(node: Node) -> dict[str, Attribute]:
    """Return what an average pool divides by."""
    return {
        "pooling": "average",
        "count_padding": bool(argument(node, 5, True)),
        "divisor": int(argument(node, 6) or 0),
    }


def depth_pool(t: Translation, node: Node) -> Views:
    """Translate avg_pool3d along depth alone, as local response norm has it: rows are H x W."""
    x = t.dense(t.view_of(node.args[0]), node)
    window = integers(node.args[1])
    stride = integers(argument(node, 2) or node.args[1])
    padding = integers(argument(node, 3, 0))
    is_deep = window[1:] == (1, 1) and set(stride[1:] or stride) == {1} and not any(padding[1:])
    if len(x.shape) != 5 or not is_deep or (len(padding) == 1 and padding[0]):
        raise UnsupportedArguments("windows along more than depth")
    attributes: dict[str, Attribute] = {
        "window": (window[0], 1),
        "stride": (stride[0], 1),
        "padding": (padding[0], 0),
        **average(node),
    }
    rows = t.reshape(x, (*x.shape[:3], x.shape[3] * x.shape[4]), node)
    shape = node.output.shape
    result = t.call(node, "Pool2d", (rows,), (*shape[:3], shape[3] * shape[4]), attributes)
    return t.reshape(result, shape, node)


def only_values(node: Node, result: TensorView) -> Views:
    """Return a result, alone in a list where the operator gives indices beside it."""
    return result if len(node.outputs) == 1 else (result,)


def adaptive_pool(t: Translation, node: Node) -> Views:
    """Translate adaptive pools; the output's size says the windows."""
    rank = 1 if node.kind.endswith("1d") else 2
    x = batched(t, node, rank)
    pooling = "max" if "max" in node.kind else "average"
    result = t.call(node, "AdaptivePool2d", (x,), maps_shape(node, rank), {"pooling": pooling})
    return only_values(node, map_output(t, node, result))


def resize(t: Translation, node: Node) -> Views:
    """Translate nearest and linear upsampling along one axis or two; scales as PyTorch's."""
    rank = 1 if node.kind.endswith("1d") else 2
    x = batched(t, node, rank)
    linear, exact = "linear" in node.kind, "exact" in node.kind
    align = bool(linear and argument(node, 2, False))
    shape = maps_shape(node, rank)
    scale: list[float] = []
    for factor, size, target in zip(
        resize_factors(node, linear, rank), x.shape[2:], shape[2:], strict=True
    ):
        if align:
            scale.append((size - 1) / (target - 1) if target > 1 else 0.0)
        elif not exact and (target == size or (target == 2 * size and not linear)):
            # PyTorch takes such axes by their sizes, whatever factor the call names.
            scale.append(size / target)
        else:
            scale.append(1.0 / factor if factor else size / target)
    attributes: dict[str, Attribute] = {
        "interpolation": "bilinear" if linear else "nearest_exact" if exact else "nearest",
        "align_corners": align,
        "scale": (scale[0], scale[1]),
    }
    return map_output(t, node, t.call(node, "Resize2d", (x,), shape, attributes))


def resize_factors(node: Node, linear: bool, rank: int) -> tuple[float | None, float | None]:
    """Return the factors that the call names; None where it names the size instead."""
    first = 3 if linear else 2
    named = argument(node, first)
    if not isinstance(named, tuple):
        named = tuple(argument(node, first + axis) for axis in range(rank))
    factors = [float(item) if isinstance(item, int | float) else None for item in named]
    if None in factors or len(factors) != rank:
        return None, None
    return (1.0, factors[0]) if rank == 1 else (factors[0], factors[1])


RULES: dict[str, Rule] = {
    "conv1d": convolution,
    "conv2d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "max_pool1d": pool,
    "max_pool2d": pool,
    "max_pool2d_with_indices": pool,
    "avg_pool1d": pool,
    "avg_pool2d": pool,
    "avg_pool3d": depth_pool,
    "adaptive_avg_pool1d": adaptive_pool,
    "adaptive_avg_pool2d": adaptive_pool,
    "adaptive_max_pool1d": adaptive_pool,
    "adaptive_max_pool2d": adaptive_pool,
    "upsample_nearest1d": resize,
    "upsample_linear1d": resize,
    "upsample_nearest2d": resize,
    "_upsample_nearest_exact1d": resize,
    "_upsample_nearest_exact2d": resize,
    "upsample_bilinear2d": resize,
}
