"""ONNX operators on two or more tensors, and reductions."""

from __future__ import annotations

from math import prod

import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue, require_batch_independent
from nnstretch.capture.onnx.ops.elementwise import as_type
from nnstretch.capture.onnx.ops.products import add_bias
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule


def as_scalar(value: OnnxValue, beside: OnnxValue) -> float | int | bool | None:
    """Return a one-element constant as a plain number, where that changes no shape."""
    if not value.constant or value.varies_with_batch or value.rank > beside.rank:
        return None
    data = value.constant_data
    if data.numel() != 1 or data.is_floating_point() != beside.probes[0].is_floating_point():
        return None
    return data.item()


def binary_operator(op: str) -> TranslationRule:
    """Return the rule of an operator on two tensors; sums and products take a number second."""

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        y = call.input(1)
        if x.constant and y.constant:
            return call.emit(f"{op}.Tensor", x, y)
        if op in ("add", "mul") and x.constant:
            x, y = y, x
        if op == "add":
            biased = add_bias(call, x, y)
            if biased is not None:
                return biased
        number = as_scalar(y, x)
        return call.emit(f"{op}.Tensor", x, y if number is None else number)

    return rule


def subtract(call: NodeContext) -> OnnxValue | tuple[OnnxValue, ...]:
    """Translate Sub."""
    x = call.input(0)
    y = call.input(1)
    number = None if y.constant else as_scalar(x, y)
    if number is not None:
        return call.emit("rsub.Scalar", y, number)
    return binary_operator("sub")(call)


def divide(call: NodeContext) -> OnnxValue | tuple[OnnxValue, ...]:
    """Translate Div; whole numbers (shape arithmetic) divide towards zero."""
    x = call.input(0)
    y = call.input(1)
    if not x.probes[0].is_floating_point():
        return call.emit("div.Tensor_mode", x, y, rounding_mode="trunc")
    number = None if y.constant else as_scalar(x, y)
    if number is None:
        return binary_operator("div")(call)
    inverse = call.emit("reciprocal", y)
    return inverse if number == 1 else call.emit("mul.Tensor", inverse, number)


def power(call: NodeContext) -> OnnxValue:
    """Translate Pow, whose result has the type of the base; a constant exponent becomes a number.

    Roots and inverses of whole numbers are computed in float64 and cut off, as onnxruntime does.
    """
    x = call.input(0)
    y = call.input(1)
    exponent: OnnxValue | float = y
    if y.constant and y.constant_data.numel() == 1 and y.rank <= x.rank:
        number = y.constant_data.item()
        exponent = int(number) if float(number).is_integer() else number
    op = "pow.Tensor_Tensor" if isinstance(exponent, OnnxValue) else "pow.Tensor_Scalar"
    if x.probes[0].is_floating_point():
        return call.emit(op, x, exponent)
    if isinstance(exponent, OnnxValue):
        is_whole = not y.probes[0].is_floating_point()
    else:
        is_whole = isinstance(exponent, int) and exponent >= 0
    base = x if is_whole else as_type(call, x, torch.float64)
    return as_type(call, call.emit(op, base, exponent), x.probes[0].dtype)


def variadic_operator(op: str) -> TranslationRule:
    """Return the rule of Sum, Max or Min of any number of tensors, two at a time."""

    def rule(call: NodeContext) -> OnnxValue:
        result = call.input(0)
        for i in range(1, len(call.node.input)):
            result = call.emit(op, result, call.input(i))
        return result

    return rule


def tensor_pair(op: str) -> TranslationRule:
    """Return the rule of a comparison or logical operator of two tensors."""
    return lambda call: call.emit(op, call.input(0), call.input(1))


def modulo(call: NodeContext) -> OnnxValue:
    """Translate Mod: `fmod` has the sign of the dividend, else that of the divisor."""
    op = "fmod.Tensor" if call.get_attribute("fmod", 0) else "remainder.Tensor"
    return call.emit(op, call.input(0), call.input(1))


def reduction(op: str) -> TranslationRule:
    """Return the rule of a reduction over axes (ReduceMean, ReduceSum, ...).

    Its result has the type of what it reads.
    """

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        axes = call.int_values(1, "axes")
        keep = bool(call.get_attribute("keepdims", 1))
        if not axes and call.get_attribute("noop_with_empty_axes", 0):
            # Every number is its own sum, mean and maximum; its norm has no sign.
            return call.emit("abs", x) if op == "linalg_vector_norm" else x
        axes = tuple(axis % x.rank for axis in axes or range(x.rank))
        for axis in axes:
            require_batch_independent(x, axis, call.location)
        dtype = x.probes[0].dtype
        if op == "mean.dim" and not dtype.is_floating_point:
            total = call.emit("sum.dim_IntList", x, axes, keep)
            count = prod(x.shape[axis] for axis in axes)
            mean = call.emit("div.Tensor_mode", total, count, rounding_mode="trunc")
            return as_type(call, mean, dtype)
        if op != "linalg_vector_norm":
            return as_type(call, call.emit(op, x, axes, keep), dtype)
        x = x if dtype.is_floating_point else as_type(call, x, torch.float64)
        return as_type(call, call.emit(op, x, 2, axes, keep), dtype)

    return rule


ARITHMETIC_RULES: dict[str, TranslationRule] = {
    "Add": binary_operator("add"),
    "Mul": binary_operator("mul"),
    "Sub": subtract,
    "Div": divide,
    "Pow": power,
    "Mod": modulo,
    "Sum": variadic_operator("add.Tensor"),
    "Max": variadic_operator("maximum"),
    "Min": variadic_operator("minimum"),
    "Equal": tensor_pair("eq.Tensor"),
    "Greater": tensor_pair("gt.Tensor"),
    "Less": tensor_pair("lt.Tensor"),
    "GreaterOrEqual": tensor_pair("ge.Tensor"),
    "LessOrEqual": tensor_pair("le.Tensor"),
    "And": tensor_pair("logical_and"),
    "Or": tensor_pair("logical_or"),
    "ReduceMean": reduction("mean.dim"),
    "ReduceSum": reduction("sum.dim_IntList"),
    "ReduceMax": reduction("amax"),
    "ReduceMin": reduction("amin"),
    "ReduceL2": reduction("linalg_vector_norm"),
}
