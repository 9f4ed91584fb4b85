"""ONNX operators on each element: activations, casts, constants."""

from __future__ import annotations

from math import isclose

import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue, require_batch_independent
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule

_FLOATS = dict.fromkeys((1, 10, 11, 16), torch.float32)
_INTEGERS = {2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64}
ONNX_TYPES = _FLOATS | _INTEGERS | {9: torch.bool}
"""TensorProto.DataType -> what we compute in: every float as float32."""
SELU_ALPHA, SELU_GAMMA = 1.6732632, 1.0507010
LARGEST_BOUND = 3e38
"""A bound of Clip beyond it bounds no float32."""


def unary_operator(op: str) -> TranslationRule:
    """Return the rule that translates a node into a unary aten operator."""
    return lambda call: call.emit(op, call.input(0))


def identity(call: NodeContext) -> OnnxValue:
    """Translate Identity, and Dropout, which does nothing in evaluation mode.

    Raises UnsupportedOp when a dropout's mask is read, or it is in training mode.
    """
    outputs = call.node.output
    training = call.optional_input(2) if call.node.op_type == "Dropout" else None
    if training is not None and bool(call.require_constant(training).constant_data):
        raise call.unsupported_error("it is in training mode")
    if call.node.op_type == "Dropout" and len(outputs) > 1 and call.builder.readers[outputs[1]]:
        raise call.unsupported_error("its mask is read")
    x = call.input(0)
    if not x.constant:
        return x
    return OnnxValue(x.probes, True, x.name, source=outputs[0] if x.source else "")


def clip(call: NodeContext) -> OnnxValue:
    """Translate Clip; its bounds are attributes or constant inputs."""
    x = call.input(0)
    low = call.number_value(1, "min", None)
    high = call.number_value(2, "max", None)
    if low is not None and low < -LARGEST_BOUND:
        low = None
    if high is not None and high > LARGEST_BOUND:
        high = None
    if low is None and high is None:
        return x
    if low == 0 and high is None:
        return call.emit("relu", x)
    if low is None or high is None or x.constant:
        return call.emit("clamp", x, low, high)
    return call.emit("hardtanh", x, low, high)


def hard_sigmoid(call: NodeContext) -> OnnxValue:
    """Translate HardSigmoid; PyTorch knows the slope 1/6, any other is spelled out."""
    x = call.input(0)
    alpha = call.get_attribute("alpha", 0.2)
    beta = call.get_attribute("beta", 0.5)
    if isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return call.emit("hardsigmoid", x)
    line = call.emit("add.Tensor", call.emit("mul.Tensor", x, alpha), beta)
    return call.emit("hardtanh", line, 0.0, 1.0)


def gelu(call: NodeContext) -> OnnxValue:
    """Translate Gelu."""
    return call.emit("gelu", call.input(0), approximate=call.get_attribute("approximate", "none"))


def activation_with_parameter(op: str, name: str, default: float) -> TranslationRule:
    """Return the rule of an activation with one number as attribute."""
    return lambda call: call.emit(op, call.input(0), call.get_attribute(name, default))


def prelu(call: NodeContext) -> OnnxValue:
    """Translate PRelu; its slope becomes a weight per channel.

    Raises UnsupportedOp when the slope is not one number or one per channel.
    """
    x = call.input(0)
    slope = call.input(1)
    channels = (1,) * max(x.rank - 2, 0)
    is_per_channel = slope.shape == (*x.shape[1:2], *channels)
    is_per_channel = is_per_channel or slope.shape == (1, *x.shape[1:2], *channels)
    if not slope.constant or not (slope.probes[0].numel() == 1 or is_per_channel):
        raise call.unsupported_error(f"a slope of {list(slope.shape)} for {list(x.shape)}")
    if slope.rank != 1:
        flat = call.emit("flatten.using_ints", slope)
        slope = OnnxValue(flat.probes, True, source=slope.source)
    (weight,) = call.builder.layer_weights(call.layer_path(), {"weight": slope})
    return call.emit("prelu", x, weight)


def selu(call: NodeContext) -> OnnxValue:
    """Translate Selu; PyTorch knows the usual numbers, others are spelled out."""
    x = call.input(0)
    alpha = call.get_attribute("alpha", SELU_ALPHA)
    gamma = call.get_attribute("gamma", SELU_GAMMA)
    if isclose(alpha, SELU_ALPHA, rel_tol=1e-5) and isclose(gamma, SELU_GAMMA, rel_tol=1e-5):
        return call.emit("selu", x)
    return call.emit("mul.Tensor", call.emit("elu", x, alpha), gamma)


def swish(call: NodeContext) -> OnnxValue:
    """Translate Swish: `x * sigmoid(alpha * x)`."""
    x = call.input(0)
    alpha = call.get_attribute("alpha", 1.0)
    if alpha == 1:
        return call.emit("silu", x)
    gate = call.emit("sigmoid", call.emit("mul.Tensor", x, alpha))
    return call.emit("mul.Tensor", x, gate)


def softmax(op: str) -> TranslationRule:
    """Return the rule of Softmax or LogSoftmax; before opset 13 they flatten what follows the axis.

    Raises UnsupportedOp when an old softmax spans several dimensions.
    """

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        axis = call.get_attribute("axis", -1 if call.opset >= 13 else 1) % x.rank
        if call.opset < 13 and any(size != 1 for size in x.shape[axis + 1 :]):
            raise call.unsupported_error(
                f"axis {axis} of {list(x.shape)} in opset {call.opset}, which takes all later"
                " dimensions together"
            )
        require_batch_independent(x, axis, call.location)
        return call.emit(f"{op}.int", x, axis)

    return rule


def where(call: NodeContext) -> OnnxValue:
    """Translate Where."""
    return call.emit("where.self", call.input(0), call.input(1), call.input(2))


def cast(call: NodeContext) -> OnnxValue:
    """Translate Cast; a cast to the dtype that is there already vanishes.

    Raises UnsupportedOp when PyTorch lacks the type.
    """
    x = call.input(0)
    dtype = ONNX_TYPES.get(call.get_attribute("to"))
    if dtype is None:
        raise call.unsupported_error(f"to element type {call.get_attribute('to')}")
    return as_type(call, x, dtype)


def as_type(call: NodeContext, x: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    """Return a value in an element type; as it is where it has that type."""
    return x if x.probes[0].dtype == dtype else call.emit("to.dtype", x, dtype)


def constant(call: NodeContext) -> OnnxValue:
    """Translate Constant. Raises UnsupportedOp when the constant is no tensor."""
    keys = [key for key in call.attributes if key.startswith("value")]
    if len(keys) != 1 or keys[0] in ("value_string", "value_strings"):
        raise call.unsupported_error("a constant that is no tensor")
    value = call.attributes[keys[0]]
    if keys[0] == "value":
        return call.builder.add_constant(value)
    dtype = torch.float32 if "float" in keys[0] else torch.int64
    return call.builder.add_constant(torch.tensor(value, dtype=dtype))


_UNARY_NAMES = """
    Relu Sigmoid Tanh Erf Exp Log Sqrt Neg Abs Reciprocal Floor Ceil Round Sin Cos Softplus
    Mish HardSwish Sign
"""
ELEMENTWISE_RULES: dict[str, TranslationRule] = {
    **{name: unary_operator(name.lower()) for name in _UNARY_NAMES.split()},
    "Not": unary_operator("logical_not"),
    "Identity": identity,
    "Dropout": identity,
    "LeakyRelu": activation_with_parameter("leaky_relu", "alpha", 0.01),
    "Elu": activation_with_parameter("elu", "alpha", 1.0),
    "Celu": activation_with_parameter("celu", "alpha", 1.0),
    "Clip": clip,
    "HardSigmoid": hard_sigmoid,
    "Gelu": gelu,
    "PRelu": prelu,
    "Selu": selu,
    "Swish": swish,
    "Softmax": softmax("softmax"),
    "LogSoftmax": softmax("log_softmax"),
    "Where": where,
    "Cast": cast,
    "Constant": constant,
}
