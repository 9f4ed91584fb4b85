"""ONNX operators without weights: activations, arithmetic, reductions.

And the table of all rules.
"""

from __future__ import annotations

from math import isclose

import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue, require_batch_independent
from nnstretch.capture.onnx.ops_indexing import INDEXING_RULES
from nnstretch.capture.onnx.ops_layers import LAYER_RULES, TranslationRule, add_bias
from nnstretch.capture.onnx.ops_shapes import SHAPE_RULES
from nnstretch.capture.onnx.translation_context import NodeContext

ONNX_TYPES = {
    **{
        1: torch.float32,
        2: torch.uint8,
        3: torch.int8,
        5: torch.int16,
        6: torch.int32,
        7: torch.int64,
        9: torch.bool,
    },
    **{10: torch.float32, 11: torch.float32, 16: torch.float32},
}
"""TensorProto.DataType -> what we compute in: every float as float32."""


def unary_operator(op: str) -> TranslationRule:
    """Return the rule that translates a node into a unary aten operator."""
    return lambda call: call.emit(op, call.input(0))


def identity(call: NodeContext) -> OnnxValue:
    """Translate Identity, and Dropout, which does nothing in evaluation mode.

    Raises UnsupportedOp when a dropout's mask is read.
    """
    if (
        call.node.op_type == "Dropout"
        and len(call.node.output) > 1
        and call.builder.readers[call.node.output[1]]
    ):
        raise call.unsupported_error("its mask is read")
    x = call.input(0)
    if not x.constant:
        return x
    return OnnxValue(x.probes, True, x.name, source=call.node.output[0] if x.source else "")


def clip(call: NodeContext) -> OnnxValue:
    """Translate Clip; its bounds are attributes or constant inputs."""
    x, low, high = (
        call.input(0),
        call.number_value(1, "min", None),
        call.number_value(2, "max", None),
    )
    low = None if low is not None and low < -3e38 else low
    high = None if high is not None and high > 3e38 else high
    if low is None and high is None:
        return x
    if low == 0 and high is None:
        return call.emit("relu", x)
    if low is None or high is None or x.constant:
        return call.emit("clamp", x, low, high)
    return call.emit("hardtanh", x, low, high)


def hard_sigmoid(call: NodeContext) -> OnnxValue:
    """Translate HardSigmoid; PyTorch knows the slope 1/6, any other is spelled out."""
    x, alpha, beta = (
        call.input(0),
        call.get_attribute("alpha", 0.2),
        call.get_attribute("beta", 0.5),
    )
    if isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return call.emit("hardsigmoid", x)
    return call.emit(
        "hardtanh", call.emit("add.Tensor", call.emit("mul.Tensor", x, alpha), beta), 0.0, 1.0
    )


def gelu(call: NodeContext) -> OnnxValue:
    """Translate Gelu."""
    return call.emit("gelu", call.input(0), approximate=call.get_attribute("approximate", "none"))


def activation_with_parameter(op: str, name: str, otherwise: float) -> TranslationRule:
    """Return the rule of an activation with one number as attribute."""
    return lambda call: call.emit(op, call.input(0), call.get_attribute(name, otherwise))


def prelu(call: NodeContext) -> OnnxValue:
    """Translate PRelu; its slope becomes a weight per channel.

    Raises UnsupportedOp when the slope is not one number or one per channel.
    """
    x, factor = call.input(0), call.input(1)
    if not factor.constant or factor.probes[0].numel() not in (1, x.shape[1]):
        raise call.unsupported_error(f"a slope of {list(factor.shape)} for {x.shape[1]} channels")
    if factor.rank != 1:
        factor = OnnxValue(
            call.emit("flatten.using_ints", factor).probes, True, source=factor.source
        )
    (weight,) = call.builder.layer_weights(call.layer_path(), {"weight": factor})
    return call.emit("prelu", x, weight)


def swish(call: NodeContext) -> OnnxValue:
    """Translate Swish: `x * sigmoid(alpha * x)`."""
    x, alpha = call.input(0), call.get_attribute("alpha", 1.0)
    inner = x if alpha == 1 else call.emit("mul.Tensor", x, alpha)
    return (
        call.emit("silu", x)
        if alpha == 1
        else call.emit("mul.Tensor", x, call.emit("sigmoid", inner))
    )


def softmax(op: str) -> TranslationRule:
    """Return the rule of Softmax or LogSoftmax.

    Before opset 13 they flatten what follows the axis.

    Raises UnsupportedOp when an old softmax spans several dimensions.
    """

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        axis = call.get_attribute("axis", -1 if call.opset >= 13 else 1) % x.rank
        if call.opset < 13 and any(d != 1 for d in x.shape[axis + 1 :]):
            raise call.unsupported_error(
                f"axis {axis} of {list(x.shape)} in opset {call.opset}, which takes all later"
                " dimensions together"
            )
        require_batch_independent(x, axis, call.location)
        return call.emit(f"{op}.int", x, axis)

    return rule


def as_scalar(value: OnnxValue, beside: OnnxValue) -> float | int | bool | None:
    """Return a one-element constant as a plain number, where that changes no shape."""
    if (
        not value.constant
        or value.varies_with_batch
        or value.constant_data.numel() != 1
        or value.rank > beside.rank
    ):
        return None
    if value.constant_data.is_floating_point() != beside.probes[0].is_floating_point():
        return None
    return value.constant_data.item()


def binary_operator(op: str) -> TranslationRule:
    """Return the rule of an operator on two tensors, or a tensor and a number; sums and products
    take the number second.
    """

    def rule(call: NodeContext) -> OnnxValue:
        x, y = call.input(0), call.input(1)
        if x.constant and y.constant:
            return call.emit(f"{op}.Tensor", x, y)
        if op in ("add", "mul") and x.constant:
            x, y = y, x
        if op == "add" and (whole := add_bias(call, x, y)) is not None:
            return whole
        if (number := as_scalar(y, x)) is not None:
            return call.emit(f"{op}.Tensor", x, number)
        return call.emit(f"{op}.Tensor", x, y)

    return rule


def subtract(call: NodeContext) -> OnnxValue:
    """Translate Sub."""
    x, y = call.input(0), call.input(1)
    if not y.constant and (number := as_scalar(x, y)) is not None:
        return call.emit("rsub.Scalar", y, number)
    return binary_operator("sub")(call)  # type: ignore[return-value]


def divide(call: NodeContext) -> OnnxValue:
    """Translate Div; whole numbers (shape arithmetic) divide towards zero."""
    x, y = call.input(0), call.input(1)
    if not x.probes[0].is_floating_point():
        return call.emit("div.Tensor_mode", x, y, rounding_mode="trunc")
    if not y.constant and (number := as_scalar(x, y)) is not None:
        inverse = call.emit("reciprocal", y)
        return inverse if number == 1 else call.emit("mul.Tensor", inverse, number)
    return binary_operator("div")(call)  # type: ignore[return-value]


def power(call: NodeContext) -> OnnxValue:
    """Translate Pow with a constant exponent."""
    x, y = call.input(0), call.input(1)
    if not y.constant or y.constant_data.numel() != 1:
        return call.emit("pow.Tensor_Tensor", x, y)
    number = y.constant_data.item()
    return call.emit("pow.Tensor_Scalar", x, int(number) if float(number).is_integer() else number)


def variadic_operator(op: str) -> TranslationRule:
    """Sum, Max and Min of any number of tensors, two at a time."""

    def rule(call: NodeContext) -> OnnxValue:
        result = call.input(0)
        for i in range(1, len(call.node.input)):
            result = call.emit(op, result, call.input(i))
        return result

    return rule


def comparison_operator(op: str) -> TranslationRule:
    """Return the rule of a comparison of two tensors."""
    return lambda call: call.emit(f"{op}.Tensor", call.input(0), call.input(1))


def logical_operator(op: str) -> TranslationRule:
    """Return the rule of a logical operator of two tensors."""
    return lambda call: call.emit(op, call.input(0), call.input(1))


def modulo(call: NodeContext) -> OnnxValue:
    """Translate Mod: `fmod` has the sign of the dividend, else that of the divisor."""
    return call.emit(
        "fmod.Tensor" if call.get_attribute("fmod", 0) else "remainder.Tensor",
        call.input(0),
        call.input(1),
    )


def where(call: NodeContext) -> OnnxValue:
    """Translate Where."""
    return call.emit("where.self", call.input(0), call.input(1), call.input(2))


def cast(call: NodeContext) -> OnnxValue:
    """Translate Cast; a cast to the dtype that is there already vanishes.

    Raises UnsupportedOp when PyTorch lacks the type.
    """
    x, wanted = call.input(0), ONNX_TYPES.get(call.get_attribute("to"))
    if wanted is None:
        raise call.unsupported_error(f"to element type {call.get_attribute('to')}")
    return x if x.probes[0].dtype == wanted else call.emit("to.dtype", x, wanted)


def reduction(op: str) -> TranslationRule:
    """Return the rule of a reduction over axes (ReduceMean, ReduceSum, ...)."""

    def rule(call: NodeContext) -> OnnxValue:
        x, axes = call.input(0), call.int_values(1, "axes")
        keep = bool(call.get_attribute("keepdims", 1))
        if not axes and call.get_attribute("noop_with_empty_axes", 0):
            return x
        axes = tuple(a % x.rank for a in axes) if axes else tuple(range(x.rank))
        for axis in axes:
            require_batch_independent(x, axis, call.location)
        if op == "linalg_vector_norm":
            return call.emit(op, x, 2, axes, keep)
        return call.emit(op, x, axes, keep)

    return rule


def constant(call: NodeContext) -> OnnxValue:
    """Translate Constant. Raises UnsupportedOp when the constant is no tensor."""
    value_attributes = [(k, v) for k, v in call.attributes.items() if k.startswith("value")]
    if len(value_attributes) != 1 or value_attributes[0][0] in ("value_string", "value_strings"):
        raise call.unsupported_error("a constant that is no tensor")
    key, value = value_attributes[0]
    if key == "value":
        return call.builder.add_constant(value)
    kind = torch.float32 if "float" in key else torch.int64
    return call.builder.add_constant(torch.tensor(value, dtype=kind))


TRANSLATION_RULES: dict[str, TranslationRule] = {
    **LAYER_RULES,
    **SHAPE_RULES,
    **INDEXING_RULES,
    **{
        name: unary_operator(name.lower())
        for name in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Erf",
            "Exp",
            "Log",
            "Sqrt",
            "Neg",
            "Abs",
            "Reciprocal",
            "Floor",
        )
    },
    **{
        name: unary_operator(name.lower())
        for name in ("Ceil", "Round", "Sin", "Cos", "Softplus", "Selu", "Mish", "HardSwish", "Sign")
    },
    **dict.fromkeys(("Identity", "Dropout"), identity),
    **{
        "LeakyRelu": activation_with_parameter("leaky_relu", "alpha", 0.01),
        "Elu": activation_with_parameter("elu", "alpha", 1.0),
        "Celu": activation_with_parameter("celu", "alpha", 1.0),
    },
    **{"Clip": clip, "HardSigmoid": hard_sigmoid, "Gelu": gelu, "PRelu": prelu, "Swish": swish},
    **{"Softmax": softmax("softmax"), "LogSoftmax": softmax("log_softmax")},
    **{
        "Add": binary_operator("add"),
        "Mul": binary_operator("mul"),
        "Sub": subtract,
        "Div": divide,
        "Pow": power,
    },
    **{
        "Sum": variadic_operator("add.Tensor"),
        "Max": variadic_operator("maximum"),
        "Min": variadic_operator("minimum"),
        "Where": where,
        "Cast": cast,
        "Mod": modulo,
    },
    **{
        "Equal": comparison_operator("eq"),
        "Greater": comparison_operator("gt"),
        "Less": comparison_operator("lt"),
    },
    **{
        "GreaterOrEqual": comparison_operator("ge"),
        "LessOrEqual": comparison_operator("le"),
        "Not": unary_operator("logical_not"),
    },
    **{"And": logical_operator("logical_and"), "Or": logical_operator("logical_or")},
    **{
        "ReduceMean": reduction("mean.dim"),
        "ReduceSum": reduction("sum.dim_IntList"),
        "ReduceMax": reduction("amax"),
    },
    **{
        "ReduceMin": reduction("amin"),
        "ReduceL2": reduction("linalg_vector_norm"),
        "Constant": constant,
    },
}
