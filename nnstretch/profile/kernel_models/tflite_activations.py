"""Activations as litert-torch lowers them, in float32 or int8."""

from __future__ import annotations

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder

CLAMPS = {"relu": 1, "relu6": 3, "hardtanh": 3}
"""Fused activation functions; `hardtanh` is what PyTorch's ReLU6 becomes."""
PLAIN = {
    "relu": ("RELU", ""),
    "hardswish": ("HARD_SWISH", "HardSwishOptions"),
    "gelu": ("GELU", "GeluOptions"),
    "tanh": ("TANH", ""),
}
UNQUANTISED = {
    "relu6": ("RELU6", ""),
    "hardtanh": ("RELU6", ""),
    "leaky_relu": ("LEAKY_RELU", "LeakyReluOptions"),
    "exp": ("EXP", ""),
}
"""They stay in float32, between a DEQUANTIZE and a QUANTIZE, in an int8 network."""
FIXED = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
"""Scales of int8 outputs that the operator dictates."""


def activation(model: TfliteModelBuilder, kernel: Kernel, value: int, op: str) -> int:
    """Add an activation as litert-torch emits it. Raises UnsupportedOp when no rule builds it."""
    shape = model.shape(value)
    if op in PLAIN:
        name, options = PLAIN[op]
        return model.op(name, (value,), shape, options, scale=FIXED.get(name))
    if op in ("sigmoid", "silu"):
        gate = model.op("LOGISTIC", (value,), shape, scale=FIXED["LOGISTIC"])
        return gate if op == "sigmoid" else model.op("MUL", (value, gate), shape, "MulOptions")
    if op == "hardsigmoid":
        clamped = model.op(
            "ADD",
            (value, model.constant((), 3.0)),
            shape,
            "AddOptions",
            fusedActivationFunction=CLAMPS["relu6"],
        )
        return scale_by(model, clamped, 1 / 6)
    if op == "scale":
        return scale_by(model, value, 0.5)
    if op == "shift":
        return model.op("ADD", (value, model.constant((), 0.5)), shape, "AddOptions")
    if op in UNQUANTISED:
        return compute_in_float(model, value, *UNQUANTISED[op])
    raise UnsupportedOp(
        f"cannot build {op} for LiteRT, kernel {kernel.name}, no rule for this activation"
    )


def scale_by(model: TfliteModelBuilder, value: int, factor: float) -> int:
    """Add a product with a constant number."""
    return model.op("MUL", (value, model.constant((), factor)), model.shape(value), "MulOptions")


def compute_in_float(model: TfliteModelBuilder, value: int, name: str, options: str) -> int:
    """Add an operator that has no int8 form between dequantize and quantize."""
    shape = model.shape(value)
    if model.dtype == "float32":
        return model.op(name, (value,), shape, options)
    model.dtype = "float32"
    real = model.op("DEQUANTIZE", (value,), shape, "DequantizeOptions")
    real = model.op(name, (real,), shape, options)
    model.dtype = "int8"
    return model.op("QUANTIZE", (real,), shape, "QuantizeOptions")
