"""Elementwise operators: activations, arithmetic with broadcasting, softmax, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.operators.shapes import axis_number, integer
from nnstretch.export.cpp.program import Activation, Attribute
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]
ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "rsub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "maximum": "maximum",
    "minimum": "minimum",
}
_SAME_NAMES = """
    relu silu hardswish hardsigmoid sigmoid selu mish tanh softsign exp log sqrt rsqrt abs
    reciprocal sin cos erf log1p expm1 sign floor ceil trunc round
"""
PLAIN_FUNCTIONS = {name: name for name in _SAME_NAMES.split()} | {"neg": "negate"}


def number(value: Argument, default: float) -> float:
    """Return a numeric argument. Raises UnsupportedArguments for a tensor."""
    if value is None:
        return default
    if isinstance(value, int | float):
        return float(value)
    raise UnsupportedArguments(f"{value} where a number is read")


def activation_of(node: Node) -> Activation:
    """Return the activation that a node applies."""
    kind = node.kind
    keywords = dict(node.kwargs)
    if kind in PLAIN_FUNCTIONS:
        if keywords.get("decimals", 0):
            raise UnsupportedArguments("rounding to decimals")
        return Activation(PLAIN_FUNCTIONS[kind])
    if kind == "gelu":
        style = keywords.get("approximate", argument(node, 1, "none"))
        return Activation("gelu_tanh" if style == "tanh" else "gelu")
    if kind == "relu6":
        return Activation("clamp", 0.0, 6.0)
    if kind == "hardtanh":
        return Activation("clamp", number(argument(node, 1), -1.0), number(argument(node, 2), 1.0))
    if kind == "clamp":
        lowest = number(argument(node, 1), -math.inf)
        return Activation("clamp", lowest, number(argument(node, 2), math.inf))
    if kind == "leaky_relu":
        return Activation("leaky_relu", number(argument(node, 1), 0.01))
    if kind == "elu":
        return Activation("elu", number(argument(node, 1), 1.0), 1.0)
    if kind == "celu":
        alpha = number(argument(node, 1), 1.0)
        return Activation("elu", alpha, 1.0 / alpha)
    if kind == "softplus":
        return Activation("softplus", number(argument(node, 1), 1.0), number(argument(node, 2), 20))
    exponent = number(argument(node, 1), 1.0)
    root = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent)
    return Activation("power", exponent) if root is None else Activation(root)


def activation(t: Translation, node: Node) -> Views:
    """Apply an activation, inside the call before it where that is possible."""
    function = activation_of(node)
    fused = t.fuse_activation(node, function)
    if fused is not None:
        return t.reshape(fused, node.output.shape, node)
    x = t.view_of(node.args[0])
    return t.call(node, "Elementwise", (x,), node.output.shape, activation=function)


def arithmetic(t: Translation, node: Node) -> Views:
    """Translate sums, differences, products and quotients of two tensors, or with a number."""
    kind = ARITHMETIC[node.kind]
    keywords = dict(node.kwargs)
    if keywords.get("rounding_mode") is not None:
        raise UnsupportedArguments("a division that rounds")
    scale = number(keywords.get("alpha", argument(node, 2)), 1.0)
    first, second = node.args[0], node.args[1]
    if node.kind == "rsub":
        first, second = second, first
    if not isinstance(first, ValueRef) or not isinstance(second, ValueRef):
        return with_number(t, node, kind, first, second, scale)
    if node.kind == "add" and scale == 1.0:
        fused = t.fuse_residual(node)
        if fused is not None:
            return t.reshape(fused, node.output.shape, node)
    shape = node.output.shape
    a = view_algebra.broadcast(t.view_of(first), shape)
    b = view_algebra.broadcast(t.view_of(second), shape)
    attributes: dict[str, Attribute] = {"arithmetic": kind, "scale": scale}
    return t.call(node, "Binary", (a, b), shape, attributes)


def with_number(
    t: Translation, node: Node, kind: str, first: Argument, second: Argument, scale: float
) -> Views:
    """Translate arithmetic of a tensor and a number, in either order."""
    is_reversed = not isinstance(first, ValueRef)
    tensor, operand = (second, first) if is_reversed else (first, second)
    attributes: dict[str, Attribute] = {
        "arithmetic": kind,
        "number": number(operand, 0.0) * (1.0 if is_reversed else scale),
        "reversed": is_reversed,
    }
    if is_reversed and scale != 1.0:
        raise UnsupportedArguments("a factor of a tensor that is subtracted from a number")
    x = view_algebra.broadcast(t.view_of(tensor), node.output.shape)
    return t.call(node, "Scalar", (x,), node.output.shape, attributes)


def prelu(t: Translation, node: Node) -> Views:
    """Translate prelu with one slope, or one a channel."""
    x = t.view_of(node.args[0])
    slope = t.view_of(node.args[1])
    if slope.elements > 1:
        for _ in range(len(x.shape) - 2):
            slope = view_algebra.insert_axis(slope, len(slope.shape))
    reads = (x, view_algebra.broadcast(slope, x.shape))
    return t.call(node, "Binary", reads, node.output.shape, {"arithmetic": "prelu"})


def softmax(t: Translation, node: Node) -> Views:
    """Translate softmax and log_softmax over any axis: that axis is read last."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(node.args[1]), len(x.shape))
    reads = view_algebra.transpose(x, axis, len(x.shape) - 1)
    attributes: dict[str, Attribute] = {"logarithm": "log" in node.kind}
    result = t.call(node, "Softmax", (reads,), reads.shape, attributes)
    return view_algebra.transpose(result, axis, len(x.shape) - 1)


REDUCTIONS = {"mean": "mean", "sum": "sum", "amax": "max", "linalg_vector_norm": "norm2"}


def reduction(t: Translation, node: Node) -> Views:
    """Translate mean, sum, amax and the Euclidean norm over some axes."""
    x = t.view_of(node.args[0])
    position = 1
    if node.kind == "linalg_vector_norm":
        position = 2
    axes_argument = argument(node, position)
    rank = len(x.shape)
    named = axes_argument if isinstance(axes_argument, tuple) else (axes_argument,)
    axes = [axis_number(axis, rank) for axis in named if isinstance(axis, int)]
    axes = axes or list(range(rank))
    kept = [axis for axis in range(rank) if axis not in axes]
    reads = view_algebra.permute(x, (*kept, *axes))
    attributes: dict[str, Attribute] = {"reduction": REDUCTIONS[node.kind], "axes": len(axes)}
    shape = tuple(x.shape[axis] for axis in kept)
    result = t.call(node, "Reduce", (reads,), shape, attributes)
    return t.reshape(result, node.output.shape, node)


RULES: dict[str, Rule] = dict.fromkeys(
    (
        *PLAIN_FUNCTIONS,
        *("gelu", "relu6", "hardtanh", "leaky_relu", "elu", "celu", "softplus", "pow"),
    ),
    activation,
)
RULES |= dict.fromkeys(ARITHMETIC, arithmetic)
RULES |= dict.fromkeys(("mean", "sum", "amax"), reduction)
RULES |= {
    "prelu": prelu,
    "softmax": softmax,
    "_softmax": softmax,
    "log_softmax": softmax,
}
