"""Operators with windows or weights: convolutions, products, pools, norms, resizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import Attribute, TensorView
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
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


def as_maps(t: Translation, view: TensorView, rank: int) -> TensorView:
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
    return as_maps(t, t.dense(x, node), rank)


def convolution(t: Translation, node: Node) -> Views:
    """Translate conv1d and conv2d."""
    rank = 1 if node.kind == "conv1d" else 2
    x = batched(t, node, rank)
    weight = as_maps(t, t.view_of(node.args[1]), rank)
    bias = t.optional_view(argument(node, 2))
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
        top, left = total[0] // 2, total[1] // 2
        return top, left, total[0] - top, total[1] - left
    top, left = pair(padding, 0, rank)
    return top, left, top, left


def transposed_convolution(t: Translation, node: Node) -> Views:
    """Translate conv_transpose1d and conv_transpose2d; the output's size says the rest."""
    rank = 1 if node.kind == "conv_transpose1d" else 2
    x = batched(t, node, rank)
    weight = as_maps(t, t.view_of(node.args[1]), rank)
    attributes: dict[str, Attribute] = {
        "stride": pair(argument(node, 3, 1), rank=rank),
        "padding": pair(argument(node, 4, 0), 0, rank),
        "dilation": pair(argument(node, 7, 1), rank=rank),
        "groups": int(argument(node, 6, 1)),
    }
    reads = (x, weight, t.optional_view(argument(node, 2)))
    result = t.call(node, "ConvTranspose2d", reads, maps_shape(node, rank), attributes)
    return map_output(t, node, result)


def linear(t: Translation, node: Node) -> Views:
    """Translate linear: all leading axes are rows of one product with the transposed weight."""
    x = t.dense(t.view_of(node.args[0]), node)
    weight = t.view_of(node.args[1])
    if len(weight.shape) != 2:
        raise UnsupportedArguments(f"a weight of {len(weight.shape)} axes")
    rows = t.reshape(x, (x.elements // x.shape[-1], x.shape[-1]), node)
    bias = t.optional_view(argument(node, 2))
    reads = (rows, view_algebra.transpose(weight, 0, 1), bias, None)
    result = t.call(node, "Matmul", reads, (rows.shape[0], weight.shape[0]))
    return t.reshape(result, node.output.shape, node)


def addmm(t: Translation, node: Node) -> Views:
    """Translate a product to which a bias of one row is added."""
    bias, a, b = (t.view_of(item) for item in node.args[:3])
    if len(bias.shape) != 1 or node.kwargs:
        raise UnsupportedArguments("a bias that is no row, or factors")
    return t.call(node, "Matmul", (a, b, bias, None), node.output.shape)


def pool(t: Translation, node: Node) -> Views:
    """Translate max and average pools, ceil_mode by the output's size."""
    rank = 1 if node.kind.endswith("1d") else 2
    x = batched(t, node, rank)
    window = pair(node.args[1], rank=rank)
    given_stride = argument(node, 2, ())
    stride = pair(given_stride, rank=rank) if given_stride not in ((), None) else window
    attributes: dict[str, Attribute] = {
        "window": window,
        "stride": stride,
        "padding": pair(argument(node, 3, 0), 0, rank),
    }
    if node.kind.startswith("max"):
        attributes["dilation"] = pair(argument(node, 4, 1), rank=rank)
    else:
        attributes["pooling"] = "average"
        attributes["count_padding"] = bool(argument(node, 5, True))
        attributes["divisor"] = int(argument(node, 6) or 0)
    result = t.call(node, "Pool2d", (x,), maps_shape(node, rank), attributes)
    return only_values(node, map_output(t, node, result))


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


def batch_norm(t: Translation, node: Node) -> Views:
    """Translate a batch norm: inside the weights of the layer before it, else as a call."""
    scale, shift = batch_norm_factors(t, node)
    folded = fold_batch_norm(t, node, scale, shift)
    if folded is not None:
        return t.reshape(folded, node.output.shape, node)
    x = t.dense(t.view_of(node.args[0]), node)
    reads = (
        x,
        t.constant(f"{node.name}.scale", scale),
        t.constant(f"{node.name}.shift", shift),
    )
    return t.call(node, "ChannelAffine", reads, node.output.shape)


def batch_norm_factors(t: Translation, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Return factor and shift of each channel, from the running statistics.

    Raises UnsupportedArguments where the statistics are not constants.
    """
    mean, variance = (constant_of(t, node.args[position]) for position in (3, 4))
    epsilon = float(argument(node, 7, 1e-5))
    scale = 1.0 / np.sqrt(variance.astype(np.float64) + epsilon)
    if argument(node, 1) is not None:
        scale = scale * constant_of(t, node.args[1]).astype(np.float64)
    shift = -mean.astype(np.float64) * scale
    if argument(node, 2) is not None:
        shift = shift + constant_of(t, node.args[2]).astype(np.float64)
    return scale.astype(np.float32), shift.astype(np.float32)


def fold_batch_norm(
    t: Translation, node: Node, scale: np.ndarray, shift: np.ndarray
) -> TensorView | None:
    """Scale the weights of the layer before a batch norm; None where there is none to scale."""
    number = t.sole_call(node.args[0])
    if number is None:
        return None
    call = t.calls[number]
    residual = call.reads[3] if len(call.reads) > 3 else None
    if call.activation is not None or residual is not None:
        return None
    weight_view, bias_view = call.reads[1:3]
    if call.operation not in ("Conv2d", "Matmul") or weight_view is None:
        return None
    weight = t.weights.get(weight_view.buffer.name)
    if weight is None or weight.shape[0] != len(scale):
        return None
    bias = np.zeros_like(shift) if bias_view is None else t.weights[bias_view.buffer.name]
    factors = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    new_weight = t.constant(f"{weight_view.buffer.name}.folded", weight * factors)
    new_bias = t.constant(f"{weight_view.buffer.name}.shift", bias * scale + shift)
    read_weight = replace(weight_view, buffer=new_weight.buffer)
    reads = (call.reads[0], read_weight, new_bias, *call.reads[3:])
    t.calls[number] = replace(call, reads=reads)
    t.pass_on(node.args[0], node)
    return call.write


def constant_of(t: Translation, item: Argument) -> np.ndarray:
    """Return the values of a constant. Raises UnsupportedArguments for what is computed."""
    if not isinstance(item, ValueRef) or item.name not in t.constants:
        raise UnsupportedArguments("statistics or weights that are computed")
    return t.constants[item.name]


def layer_norm(t: Translation, node: Node) -> Views:
    """Translate layer_norm over its last axes."""
    x = t.dense(t.view_of(node.args[0]), node)
    shape = node.args[1]
    axes = len(shape) if isinstance(shape, tuple) else 1
    reads = (x, t.optional_view(argument(node, 2)), t.optional_view(argument(node, 3)))
    attributes: dict[str, Attribute] = {"axes": axes, "epsilon": float(argument(node, 4, 1e-5))}
    return t.call(node, "LayerNorm", reads, node.output.shape, attributes)


def group_norm(t: Translation, node: Node) -> Views:
    """Translate group_norm."""
    x = t.dense(t.view_of(node.args[0]), node)
    reads = (x, t.optional_view(argument(node, 2)), t.optional_view(argument(node, 3)))
    attributes: dict[str, Attribute] = {
        "groups": int(node.args[1]),  # type: ignore[arg-type]
        "epsilon": float(argument(node, 4, 1e-5)),
    }
    return t.call(node, "GroupNorm", reads, node.output.shape, attributes)


def instance_norm(t: Translation, node: Node) -> Views:
    """Translate instance_norm without running statistics: a group norm of one channel a group."""
    if argument(node, 3) is not None and not argument(node, 5, True):
        raise UnsupportedArguments("running statistics")
    x = t.dense(t.view_of(node.args[0]), node)
    reads = (x, t.optional_view(argument(node, 1)), t.optional_view(argument(node, 2)))
    attributes: dict[str, Attribute] = {
        "groups": x.shape[1],
        "epsilon": float(argument(node, 7, 1e-5)),
    }
    return t.call(node, "GroupNorm", reads, node.output.shape, attributes)


def resize(t: Translation, node: Node) -> Views:
    """Translate nearest and bilinear upsampling; scales as PyTorch derives them."""
    x = batched(t, node, 2)
    bilinear = "bilinear" in node.kind
    align = bool(bilinear and argument(node, 2, False))
    given = resize_factors(node, bilinear)
    scale: list[float] = []
    for axis in (0, 1):
        size, target = x.shape[2 + axis], node.output.shape[2 + axis]
        if align:
            scale.append((size - 1) / (target - 1) if target > 1 else 0.0)
        else:
            factor = given[axis]
            scale.append(1.0 / factor if factor else size / target)
    attributes: dict[str, Attribute] = {
        "interpolation": "bilinear" if bilinear else "nearest",
        "align_corners": align,
        "scale": (scale[0], scale[1]),
    }
    return t.call(node, "Resize2d", (x,), node.output.shape, attributes)


def resize_factors(node: Node, bilinear: bool) -> tuple[float | None, float | None]:
    """Return the factors that the call names; None where it names the size instead."""
    first = 3 if bilinear else 2
    given = argument(node, first)
    if isinstance(given, tuple) and len(given) == 2:
        return float(given[0]), float(given[1])  # type: ignore[arg-type]
    second = argument(node, first + 1)
    if isinstance(given, int | float) and isinstance(second, int | float):
        return float(given), float(second)
    return None, None


RULES: dict[str, Rule] = {
    "conv1d": convolution,
    "conv2d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "linear": linear,
    "addmm": addmm,
    "max_pool1d": pool,
    "max_pool2d": pool,
    "max_pool2d_with_indices": pool,
    "avg_pool1d": pool,
    "avg_pool2d": pool,
    "adaptive_avg_pool1d": adaptive_pool,
    "adaptive_avg_pool2d": adaptive_pool,
    "adaptive_max_pool2d": adaptive_pool,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "upsample_nearest2d": resize,
    "upsample_bilinear2d": resize,
}
