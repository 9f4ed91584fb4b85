"""ONNX operators without weights: activations, arithmetic, reductions; and the table of all rules."""

from __future__ import annotations

from math import isclose

import torch

from nnstretch.capture.onnx_call import Call
from nnstretch.capture.onnx_layers import LAYERS, Rule, add_bias
from nnstretch.capture.onnx_picks import PICKS
from nnstretch.capture.onnx_shapes import SHAPES
from nnstretch.capture.onnx_walk import Value, fixed

ONNX_TYPES = {
    **{1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool},
    **{10: torch.float32, 11: torch.float32, 16: torch.float32},
}
"""TensorProto.DataType -> what we compute in: every float as float32."""


def unary(op: str) -> Rule:
    return lambda call: call.emit(op, call.input(0))


def identity(call: Call) -> Value:
    """Also dropout, which does nothing in evaluation mode."""
    if call.node.op_type == "Dropout" and len(call.node.output) > 1 and call.walker.readers[call.node.output[1]]:
        raise call.refuse("its mask is read")
    x = call.input(0)
    if not x.constant:
        return x
    return Value(x.probes, True, x.name, source=call.node.output[0] if x.source else "")


def clip(call: Call) -> Value:
    x, low, high = call.input(0), call.number(1, "min", None), call.number(2, "max", None)
    low = None if low is not None and low < -3e38 else low
    high = None if high is not None and high > 3e38 else high
    if low is None and high is None:
        return x
    if low == 0 and high is None:
        return call.emit("relu", x)
    if low is None or high is None or x.constant:
        return call.emit("clamp", x, low, high)
    return call.emit("hardtanh", x, low, high)


def hard_sigmoid(call: Call) -> Value:
    """PyTorch knows the slope 1/6; any other is spelled out."""
    x, alpha, beta = call.input(0), call.attr("alpha", 0.2), call.attr("beta", 0.5)
    if isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return call.emit("hardsigmoid", x)
    return call.emit("hardtanh", call.emit("add.Tensor", call.emit("mul.Tensor", x, alpha), beta), 0.0, 1.0)


def gelu(call: Call) -> Value:
    return call.emit("gelu", call.input(0), approximate=call.attr("approximate", "none"))


def slope(op: str, name: str, otherwise: float) -> Rule:
    return lambda call: call.emit(op, call.input(0), call.attr(name, otherwise))


def prelu(call: Call) -> Value:
    x, factor = call.input(0), call.input(1)
    if not factor.constant or factor.probes[0].numel() not in (1, x.shape[1]):
        raise call.refuse(f"a slope of {list(factor.shape)} for {x.shape[1]} channels")
    if factor.rank != 1:
        factor = Value(call.emit("flatten.using_ints", factor).probes, True, source=factor.source)
    (weight,) = call.walker.layer_weights(call.path(), {"weight": factor})
    return call.emit("prelu", x, weight)


def swish(call: Call) -> Value:
    x, alpha = call.input(0), call.attr("alpha", 1.0)
    inner = x if alpha == 1 else call.emit("mul.Tensor", x, alpha)
    return call.emit("silu", x) if alpha == 1 else call.emit("mul.Tensor", x, call.emit("sigmoid", inner))


def softmax(op: str) -> Rule:
    def rule(call: Call) -> Value:
        x = call.input(0)
        axis = call.attr("axis", -1 if call.opset >= 13 else 1) % x.rank
        if call.opset < 13 and any(d != 1 for d in x.shape[axis + 1 :]):
            raise call.refuse(f"axis {axis} of {list(x.shape)} in opset {call.opset}, which takes all later dimensions together")
        fixed(x, axis, call.where)
        return call.emit(f"{op}.int", x, axis)

    return rule


def scalar(value: Value, beside: Value) -> float | int | bool | None:
    """A one-element constant as a plain number, where that changes no shape."""
    if not value.constant or value.varies or value.data.numel() != 1 or value.rank > beside.rank:
        return None
    if value.data.is_floating_point() != beside.probes[0].is_floating_point():
        return None
    return value.data.item()


def binary(op: str) -> Rule:
    """Two tensors, or a tensor and a number; sums and products take the number second."""

    def rule(call: Call) -> Value:
        x, y = call.input(0), call.input(1)
        if x.constant and y.constant:
            return call.emit(f"{op}.Tensor", x, y)
        if op in ("add", "mul") and x.constant:
            x, y = y, x
        if op == "add" and (whole := add_bias(call, x, y)) is not None:
            return whole
        if (number := scalar(y, x)) is not None:
            return call.emit(f"{op}.Tensor", x, number)
        return call.emit(f"{op}.Tensor", x, y)

    return rule


def subtract(call: Call) -> Value:
    x, y = call.input(0), call.input(1)
    if not y.constant and (number := scalar(x, y)) is not None:
        return call.emit("rsub.Scalar", y, number)
    return binary("sub")(call)  # type: ignore[return-value]


def divide(call: Call) -> Value:
    """Whole numbers (shape arithmetic) divide towards zero."""
    x, y = call.input(0), call.input(1)
    if not x.probes[0].is_floating_point():
        return call.emit("div.Tensor_mode", x, y, rounding_mode="trunc")
    if not y.constant and (number := scalar(x, y)) is not None:
        inverse = call.emit("reciprocal", y)
        return inverse if number == 1 else call.emit("mul.Tensor", inverse, number)
    return binary("div")(call)  # type: ignore[return-value]


def power(call: Call) -> Value:
    x, y = call.input(0), call.input(1)
    if not y.constant or y.data.numel() != 1:
        return call.emit("pow.Tensor_Tensor", x, y)
    number = y.data.item()
    return call.emit("pow.Tensor_Scalar", x, int(number) if float(number).is_integer() else number)


def many(op: str) -> Rule:
    """Sum, Max and Min of any number of tensors, two at a time."""

    def rule(call: Call) -> Value:
        result = call.input(0)
        for i in range(1, len(call.node.input)):
            result = call.emit(op, result, call.input(i))
        return result

    return rule


def compare(op: str) -> Rule:
    return lambda call: call.emit(f"{op}.Tensor", call.input(0), call.input(1))


def logical(op: str) -> Rule:
    return lambda call: call.emit(op, call.input(0), call.input(1))


def modulo(call: Call) -> Value:
    return call.emit("fmod.Tensor" if call.attr("fmod", 0) else "remainder.Tensor", call.input(0), call.input(1))


def where(call: Call) -> Value:
    return call.emit("where.self", call.input(0), call.input(1), call.input(2))


def cast(call: Call) -> Value:
    x, wanted = call.input(0), ONNX_TYPES.get(call.attr("to"))
    if wanted is None:
        raise call.refuse(f"to element type {call.attr('to')}")
    return x if x.probes[0].dtype == wanted else call.emit("to.dtype", x, wanted)


def reduction(op: str) -> Rule:
    def rule(call: Call) -> Value:
        x, axes = call.input(0), call.ints(1, "axes")
        keep = bool(call.attr("keepdims", 1))
        if not axes and call.attr("noop_with_empty_axes", 0):
            return x
        axes = tuple(a % x.rank for a in axes) if axes else tuple(range(x.rank))
        for axis in axes:
            fixed(x, axis, call.where)
        if op == "linalg_vector_norm":
            return call.emit(op, x, 2, axes, keep)
        return call.emit(op, x, axes, keep)

    return rule


def constant(call: Call) -> Value:
    given = [(k, v) for k, v in call.attributes.items() if k.startswith("value")]
    if len(given) != 1 or given[0][0] in ("value_string", "value_strings"):
        raise call.refuse("a constant that is no tensor")
    key, value = given[0]
    if key == "value":
        return call.walker.constant(value)
    kind = torch.float32 if "float" in key else torch.int64
    return call.walker.constant(torch.tensor(value, dtype=kind))


RULES: dict[str, Rule] = {
    **LAYERS,
    **SHAPES,
    **PICKS,
    **{name: unary(name.lower()) for name in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Reciprocal", "Floor")},
    **{name: unary(name.lower()) for name in ("Ceil", "Round", "Sin", "Cos", "Softplus", "Selu", "Mish", "HardSwish", "Sign")},
    **dict.fromkeys(("Identity", "Dropout"), identity),
    **{"LeakyRelu": slope("leaky_relu", "alpha", 0.01), "Elu": slope("elu", "alpha", 1.0), "Celu": slope("celu", "alpha", 1.0)},
    **{"Clip": clip, "HardSigmoid": hard_sigmoid, "Gelu": gelu, "PRelu": prelu, "Swish": swish},
    **{"Softmax": softmax("softmax"), "LogSoftmax": softmax("log_softmax")},
    **{"Add": binary("add"), "Mul": binary("mul"), "Sub": subtract, "Div": divide, "Pow": power},
    **{"Sum": many("add.Tensor"), "Max": many("maximum"), "Min": many("minimum"), "Where": where, "Cast": cast, "Mod": modulo},
    **{"Equal": compare("eq"), "Greater": compare("gt"), "Less": compare("lt")},
    **{"GreaterOrEqual": compare("ge"), "LessOrEqual": compare("le"), "Not": unary("logical_not")},
    **{"And": logical("logical_and"), "Or": logical("logical_or")},
    **{"ReduceMean": reduction("mean.dim"), "ReduceSum": reduction("sum.dim_IntList"), "ReduceMax": reduction("amax")},
    **{"ReduceMin": reduction("amin"), "ReduceL2": reduction("linalg_vector_norm"), "Constant": constant},
}
