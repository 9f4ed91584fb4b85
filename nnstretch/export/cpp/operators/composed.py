"""Operators that are sums, products and reductions of others; resampling by constant matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.capture.weight_folding import concrete
from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.operators.elementwise import activation, reduction
from nnstretch.export.cpp.operators.products import product
from nnstretch.export.cpp.operators.shapes import axis_number, constant_number, integer
from nnstretch.export.cpp.program import Activation, Attribute, Extents, TensorView
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


def binary(
    t: Translation, node: Node, arithmetic: str, a: TensorView, b: TensorView, suffix: str = ""
) -> TensorView:
    """Combine two views, broadcast to one shape."""
    shape = tuple(np.broadcast_shapes(a.shape, b.shape))
    reads = (view_algebra.broadcast(a, shape), view_algebra.broadcast(b, shape))
    return t.call(node, "Binary", reads, shape, {"arithmetic": arithmetic}, suffix=suffix)


def scalar(
    t: Translation, node: Node, arithmetic: str, x: TensorView, number: float, suffix: str = ""
) -> TensorView:
    """Combine a view and a number."""
    attributes: dict[str, Attribute] = {"arithmetic": arithmetic, "number": number}
    return t.call(node, "Scalar", (x,), x.shape, attributes, suffix=suffix)


def reduced(
    t: Translation, node: Node, reduction: str, x: TensorView, axes: Extents, suffix: str = ""
) -> TensorView:
    """Reduce a view over some axes, which stay with size 1."""
    outer = tuple(axis for axis in range(len(x.shape)) if axis not in axes)
    reads = view_algebra.permute(x, (*outer, *axes))
    attributes: dict[str, Attribute] = {"reduction": reduction, "axes": len(axes)}
    shape = tuple(x.shape[axis] for axis in outer)
    result = t.call(node, "Reduce", (reads,), shape, attributes, suffix=suffix)
    for axis in sorted(axes):
        result = view_algebra.insert_axis(result, axis)
    return result


def reduced_axes(item: Argument, rank: int) -> Extents:
    """Return the axes of a reduction, all where none is named."""
    items = item if isinstance(item, tuple) else (item,)
    axes = tuple(axis_number(axis, rank) for axis in items if isinstance(axis, int))
    return axes or tuple(range(rank))


def with_product(t: Translation, node: Node) -> Views:
    """Translate addcmul(x, a, b, value=v): x + v a b."""
    x, a, b = (t.view_of(item) for item in node.args[:3])
    factor = float(dict(node.kwargs).get("value", argument(node, 3, 1.0)))  # type: ignore[arg-type]
    scaled = binary(t, node, "multiply", a, b, "_product")
    if factor != 1.0:
        scaled = scalar(t, node, "multiply", scaled, factor, "_scaled")
    return binary(t, node, "add", x, scaled)


def bounded(t: Translation, node: Node) -> Views:
    """Translate clamp between tensors; between two numbers it is an activation."""
    keywords = dict(node.kwargs)
    bounds = [argument(node, 1, keywords.get("min")), argument(node, 2, keywords.get("max"))]
    if node.kind == "clamp_max":
        bounds.reverse()
    bounds = [constant_number(t, bound) for bound in bounds]
    if not any(isinstance(bound, ValueRef) for bound in bounds):
        numbers = (node.args[0], *bounds)
        return activation(t, replace(node, op="clamp", args=numbers, kwargs=()))
    result = t.view_of(node.args[0])
    for kind, bound in zip(("maximum", "minimum"), bounds, strict=True):
        if isinstance(bound, ValueRef):
            result = binary(t, node, kind, result, t.view_of(bound), f"_{kind}")
        elif bound is not None:
            result = scalar(t, node, kind, result, float(bound), f"_{kind}")  # type: ignore[arg-type]
    return result


def interpolated(t: Translation, node: Node) -> Views:
    """Translate lerp(a, b, w): a + w (b - a)."""
    a, b = t.view_of(node.args[0]), t.view_of(node.args[1])
    difference = binary(t, node, "subtract", b, a, "_difference")
    weight = node.args[2]
    if isinstance(weight, ValueRef):
        scaled = binary(t, node, "multiply", difference, t.view_of(weight), "_scaled")
    else:
        scaled = scalar(t, node, "multiply", difference, float(weight), "_scaled")  # type: ignore[arg-type]
    return binary(t, node, "add", a, scaled)


def gated(t: Translation, node: Node) -> Views:
    """Translate glu: the first half of an axis times the sigmoid of the second."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(argument(node, 1), -1), len(x.shape))
    size = x.shape[axis] // 2
    first = view_algebra.narrow(x, axis, 0, size)
    second = view_algebra.narrow(x, axis, size, size)
    sigmoid = Activation("sigmoid")
    gate = t.call(node, "Elementwise", (second,), first.shape, {}, sigmoid, suffix="_gate")
    return binary(t, node, "multiply", first, gate)


def rms_norm(t: Translation, node: Node) -> Views:
    """Translate rms_norm over the last axes: x w / sqrt(mean(x^2) + epsilon)."""
    x = t.view_of(node.args[0])
    sizes = node.args[1]
    count = len(sizes) if isinstance(sizes, tuple) else 1
    axes = tuple(range(len(x.shape) - count, len(x.shape)))
    default = float(torch.finfo(torch.float32).eps)
    epsilon = argument(node, 3)
    squares = binary(t, node, "multiply", x, x, "_squares")
    mean = reduced(t, node, "mean", squares, axes, "_mean")
    shifted = scalar(t, node, "add", mean, default if epsilon is None else float(epsilon), "_shift")
    factor = t.call(
        node, "Elementwise", (shifted,), mean.shape, {}, Activation("rsqrt"), None, "_f"
    )
    weight = argument(node, 2)
    if weight is None:
        return binary(t, node, "multiply", x, factor)
    normed = binary(t, node, "multiply", x, factor, "_normed")
    return binary(t, node, "multiply", normed, t.view_of(weight))


def variance(t: Translation, node: Node) -> Views:
    """Translate var, std and var_mean: the mean of squared differences, corrected."""
    x = t.view_of(node.args[0])
    keywords = dict(node.kwargs)
    named, correction = argument(node, 1), argument(node, 2, 1)
    if isinstance(named, bool):  # The short form, var(x, unbiased): all axes.
        named, correction = None, named
    axes = reduced_axes(named, len(x.shape))
    correction = keywords.get("correction", keywords.get("unbiased", correction))
    correction = 1 if correction is None else correction
    count = int(np.prod([x.shape[axis] for axis in axes]))
    mean = reduced(t, node, "mean", x, axes, "_mean")
    difference = binary(t, node, "subtract", x, mean, "_difference")
    squares = binary(t, node, "multiply", difference, difference, "_squares")
    average = reduced(t, node, "mean", squares, axes, "_average")
    divisor = count - float(correction)  # type: ignore[arg-type]
    result = scalar(
        t, node, "multiply", average, count / divisor if divisor > 0 else np.nan, "_var"
    )
    if node.kind.startswith("std"):
        result = t.call(node, "Elementwise", (result,), result.shape, {}, Activation("sqrt"))
    views = (result, mean)[: len(node.outputs)]
    shaped = tuple(
        t.reshape(view, spec.shape, node) for view, spec in zip(views, node.outputs, strict=True)
    )
    return shaped if len(shaped) > 1 else shaped[0]


def largest(t: Translation, node: Node) -> Views:
    """Translate max and min: of two tensors, of all numbers, or along an axis."""
    if node.op.endswith(".other"):
        a, b = t.view_of(node.args[0]), t.view_of(node.args[1])
        return binary(t, node, "maximum" if node.kind == "max" else "minimum", a, b)
    rule = least if node.kind == "min" else most
    result = rule(t, node)
    return result if len(node.outputs) == 1 else (result,)


def most(t: Translation, node: Node) -> TensorView:
    """Return the largest numbers along some axes."""
    x = t.view_of(node.args[0])
    result = reduced(t, node, "max", x, reduced_axes(argument(node, 1), len(x.shape)))
    return t.reshape(result, node.output.shape, node)


def least(t: Translation, node: Node) -> TensorView:
    """Return the least numbers along some axes: the largest of the negated ones, negated."""
    x = t.view_of(node.args[0])
    axes = reduced_axes(argument(node, 1), len(x.shape))
    negate = Activation("negate")
    negated = t.call(node, "Elementwise", (x,), x.shape, {}, negate, suffix="_negated")
    largest_negated = reduced(t, node, "max", negated, axes, "_largest")
    shape = largest_negated.shape
    result = t.call(node, "Elementwise", (largest_negated,), shape, {}, negate)
    return t.reshape(result, node.output.shape, node)


def norm(t: Translation, node: Node) -> Views:
    """Translate norms over some axes: Euclidean, of absolute values, or their largest."""
    order = argument(node, 1, 2)
    if order == 2:
        return reduction(t, node)
    kind = {1: "sum", math.inf: "max"}.get(order)  # type: ignore[call-overload]
    if kind is None:
        raise UnsupportedArguments(f"a norm of order {order}")
    x = t.view_of(node.args[0])
    axes = reduced_axes(argument(node, 2), len(x.shape))
    sizes = t.call(node, "Elementwise", (x,), x.shape, {}, Activation("abs"), suffix="_sizes")
    return t.reshape(reduced(t, node, kind, sizes, axes), node.output.shape, node)


def squared(t: Translation, node: Node) -> Views:
    """Translate square."""
    x = t.view_of(node.args[0])
    return binary(t, node, "multiply", x, x)


def log_sigmoid(t: Translation, node: Node) -> Views:
    """Translate log_sigmoid: -softplus(-x)."""
    x = t.view_of(node.args[0])
    for suffix, function in (
        ("_negated", Activation("negate")),
        ("_softplus", Activation("softplus", 1.0, 20.0)),
        ("", Activation("negate")),
    ):
        x = t.call(node, "Elementwise", (x,), x.shape, {}, function, suffix=suffix)
    return x


def resampled(t: Translation, node: Node) -> Views:
    """Translate separable resampling as two products with constant matrices: R x C^T.

    The matrices are what PyTorch computes for an input of ones in one row, or one column.
    """
    x = t.view_of(node.args[0])
    channels, (height, width) = x.shape[1], x.shape[2:]
    rows = torch.eye(height).view(1, height, height, 1).expand(1, height, height, width)
    columns = torch.eye(width).view(1, width, 1, width).expand(1, width, height, width)
    row_matrix = t.constant(f"{node.name}.rows", apply(node, rows)[0, :, :, 0].T)
    column_matrix = t.constant(f"{node.name}.columns", apply(node, columns)[0, :, 0, :])
    target_width = node.output.shape[3]
    shape = (x.shape[0] * channels * height, target_width)
    flat = t.reshape(t.dense(x, node), (shape[0], width), node)
    wide = product(t, node, flat, column_matrix, suffix="_wide")
    maps = t.reshape(wide, (*x.shape[:2], height, target_width), node)
    return product(t, node, row_matrix, maps)


def apply(node: Node, x: torch.Tensor) -> np.ndarray:
    """Return what a node computes of another input."""
    args = [concrete(item, {}) for item in node.args[1:]]
    kwargs = {key: concrete(item, {}) for key, item in node.kwargs}
    array: np.ndarray = resolve_operator(node)(x, *args, **kwargs).numpy()
    return array


RULES: dict[str, Rule] = {
    "addcmul": with_product,
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), bounded),
    "lerp": interpolated,
    "glu": gated,
    "rms_norm": rms_norm,
    "var": variance,
    "std": variance,
    "var_mean": variance,
    "amin": least,
    "max": largest,
    "min": largest,
    "linalg_vector_norm": norm,
    "square": squared,
    "log_sigmoid": log_sigmoid,
    "upsample_bicubic2d": resampled,
    "_upsample_bilinear2d_aa": resampled,
    "_upsample_bicubic2d_aa": resampled,
}
