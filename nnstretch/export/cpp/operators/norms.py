"""Norms: batch norms inside the weights before them where there are any, others as calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import Attribute, OperatorCall, TensorView, whole_view
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


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
    if number is None or not scales_by_rows(t, t.calls[number], node):
        return None
    call = t.calls[number]
    weight_view, bias_view = call.reads[1:3]
    assert weight_view is not None
    weight = t.weights[weight_view.buffer.name]
    bias = np.zeros_like(shift) if bias_view is None else t.weights[bias_view.buffer.name]
    factors = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    new_weight = t.constant(f"{weight_view.buffer.name}.folded", weight * factors)
    new_bias = t.constant(f"{weight_view.buffer.name}.shift", bias * scale + shift)
    read_weight = replace(weight_view, buffer=new_weight.buffer)
    reads = (call.reads[0], read_weight, new_bias, *call.reads[3:])
    t.calls[number] = replace(call, reads=reads)
    t.pass_on(node.args[0], node)
    return call.write


def scales_by_rows(t: Translation, call: OperatorCall, node: Node) -> bool:
    """Return whether a factor for each channel of `node` is one for each row of a call's weight."""
    if call.operation not in ("Conv2d", "Matmul") or call.activation is not None:
        return False
    _, weight, bias, residual = call.reads
    if weight is None or residual is not None or weight.buffer.name not in t.weights:
        return False
    if bias is not None and bias.buffer.name not in t.weights:
        return False
    if call.operation == "Conv2d":
        return call.write.shape[:2] == node.output.shape[:2]
    rows_last = view_algebra.transpose(whole_view(weight.buffer), 0, 1)
    return weight == rows_last and call.write.shape == node.output.shape


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
    reads = (x, *(t.optional_dense(argument(node, number), node) for number in (2, 3)))
    attributes: dict[str, Attribute] = {"axes": axes, "epsilon": float(argument(node, 4, 1e-5))}
    return t.call(node, "LayerNorm", reads, node.output.shape, attributes)


def group_norm(t: Translation, node: Node) -> Views:
    """Translate group_norm."""
    x = t.dense(t.view_of(node.args[0]), node)
    reads = (x, *(t.optional_dense(argument(node, number), node) for number in (2, 3)))
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
    reads = (x, *(t.optional_dense(argument(node, number), node) for number in (1, 2)))
    attributes: dict[str, Attribute] = {
        "groups": x.shape[1],
        "epsilon": float(argument(node, 7, 1e-5)),
    }
    return t.call(node, "GroupNorm", reads, node.output.shape, attributes)


RULES: dict[str, Rule] = {
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
