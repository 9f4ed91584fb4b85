"""Operators of kernels as nodes of an ONNX graph; what has no ONNX form is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import (
    changed_axis,
    input_shapes,
    pool_window,
    window_of,
    window_padding,
    window_strides,
)
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder
from nnstretch.profile.kernel_models.onnx_movements import MOVEMENTS
from nnstretch.structure.macs import ATTENTION

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "hardswish": ("HardSwish", {}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "elu": ("Elu", {}),
    "gelu": ("Gelu", {}),
    "softplus": ("Softplus", {}),
    "mish": ("Mish", {}),
    "exp": ("Exp", {}),
    "sqrt": ("Sqrt", {}),
    "neg": ("Neg", {}),
}
CLIPS = {
    "relu6": (0.0, 6.0),
    "hardtanh": (0.0, 6.0),
    "clamp": (0.0, 6.0),
    "clamp_min": (0.0, 3e38),
    "clamp_max": (-3e38, 6.0),
}
WINDOWS = {
    "max_pool2d": "MaxPool",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AveragePool",
}
BINARY = {"add": "Add", "sub": "Sub", "rsub": "Sub", "mul": "Mul", "div": "Div"}


def emit(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a kernel and its epilogue; return the name of the result.

    `values` are what the main operator reads, then what the epilogue adds.

    Raises UnsupportedOp when the kind has no ONNX form here.
    """
    if kernel.kind not in EMITTERS:
        raise UnsupportedOp(
            f"kind {kernel.kind!r} cannot be measured, kernel {kernel.name}, known are"
            f" {', '.join(EMITTERS)}"
        )
    operands = len(values) - kernel.epilogue.count("add")
    value = EMITTERS[kernel.kind](model, kernel, values[:operands])
    summands = iter(values[operands:])
    for op in kernel.epilogue:
        if op == "add":
            value = model.add("Add", value, next(summands))
        else:
            value = follow(model, kernel, op, value)
    return value


def no_onnx_form(kernel: Kernel, op: str) -> UnsupportedOp:
    """Return the error of an operator that has no ONNX form here."""
    return UnsupportedOp(
        f"operator {op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form here"
    )


def follow(model: OnnxModelBuilder, kernel: Kernel, op: str, value: str) -> str:
    """Add an operator on one value that needs no weights, and return its result.

    Raises UnsupportedOp when the operator has no ONNX form here.
    """
    if op in CLIPS:
        low, high = CLIPS[op]
        return model.add("Clip", value, model.number(low), model.number(high))
    if op == "silu":
        return model.add("Mul", value, model.add("Sigmoid", value))
    if op == "pow":
        return model.add("Pow", value, model.number(2.0))
    if op in ("shift", "scale"):
        return model.add("Add" if op == "shift" else "Mul", value, model.number(1.5))
    if op not in ACTIVATIONS:
        raise no_onnx_form(kernel, op)
    name, attributes = ACTIVATIONS[op]
    return model.add(name, value, **attributes)


def conv(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a convolution. Raises UnsupportedOp when it is not over maps."""
    shape = input_shapes(kernel)[0]
    if len(shape) != 4:
        raise UnsupportedOp(
            f"a convolution over {shape} cannot be measured, kernel {kernel.name},"
            " it must be over maps"
        )
    window = window_of(kernel)
    return model.add(
        "Conv",
        values[0],
        model.weight(kernel.cout, kernel.cin // kernel.groups, *window),
        model.weight(kernel.cout),
        group=kernel.groups,
        kernel_shape=list(window),
        pads=window_padding(kernel, window),
        strides=list(window_strides(kernel, window)),
    )


def transposed_conv(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a transposed convolution whose map comes out with its size."""
    window = window_of(kernel)
    return model.add(
        "ConvTranspose",
        values[0],
        model.weight(kernel.cin, kernel.cout // kernel.groups, *window),
        model.weight(kernel.cout),
        group=kernel.groups,
        kernel_shape=list(window),
        strides=[kernel.stride] * 2,
        output_shape=list(kernel.shape_out[-2:]),
    )


def linear(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a matrix product with bias."""
    if len(input_shapes(kernel)[0]) == 2:
        weight = model.weight(kernel.cout, kernel.cin)
        return model.add("Gemm", values[0], weight, model.weight(kernel.cout), transB=1)
    product = model.add("MatMul", values[0], model.weight(kernel.cin, kernel.cout))
    return model.add("Add", product, model.weight(kernel.cout))


def pool(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a pooling. Raises UnsupportedOp when the operator has no ONNX form here."""
    if kernel.op not in WINDOWS:
        raise no_onnx_form(kernel, kernel.op)
    window = pool_window(kernel)
    return model.add(
        WINDOWS[kernel.op],
        values[0],
        kernel_shape=list(window),
        strides=list(window_strides(kernel, window)),
        pads=window_padding(kernel, window),
    )


def gap(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a mean over all pixels."""
    rank = len(input_shapes(kernel)[0])
    axes = range(2, rank) if rank > 2 else (1,)
    return model.add("ReduceMean", values[0], model.integers(*axes), keepdims=1)


def binary(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add an operator on two tensors, or on one and a number."""
    operand = values[1] if len(values) > 1 else model.number(1.5)
    return model.add(BINARY.get(kernel.op, BINARY[kernel.kind]), values[0], operand)


def concat(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a concatenation along the axis that grows."""
    axis = changed_axis(input_shapes(kernel)[0], kernel.shape_out, default=1)
    return model.add("Concat", *values, axis=axis)


def activation(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add an activation."""
    return follow(model, kernel, kernel.op, values[0])


def norm(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a normalization. Raises UnsupportedOp when it has no ONNX form."""
    if kernel.op == "batch_norm":
        parameters = [model.weight(kernel.cin, low=0.5, high=1.5) for _ in range(4)]
        return model.add("BatchNormalization", values[0], *parameters)
    if kernel.op == "layer_norm":
        width = input_shapes(kernel)[0][-1]
        parameters = [model.weight(width), model.weight(width)]
        return model.add("LayerNormalization", values[0], *parameters, axis=-1)
    raise no_onnx_form(kernel, kernel.op)


def softmax(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a softmax over the last axis."""
    return model.add("Softmax", values[0], axis=-1)


def matmul(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a product of two computed matrices.

    Raises UnsupportedOp when the operator has no ONNX form here.
    """
    if kernel.op == ATTENTION:
        return attention(model, kernel, (values * 3)[:3])
    if kernel.op not in ("matmul", "bmm", "mm") or len(values) != 2:
        raise no_onnx_form(kernel, kernel.op)
    return model.add("MatMul", values[0], values[1])


def attention(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add scaled dot-product attention as PyTorch's exporter writes it, without a mask."""
    rank = len(kernel.shapes_in[0])
    order = [*range(rank - 2), rank - 1, rank - 2]
    scale = model.number(kernel.shapes_in[0][-1] ** -0.25)
    query = model.add("Mul", values[0], scale)
    key = model.add("Mul", model.add("Transpose", values[1], perm=order), scale)
    scores = model.add("Softmax", model.add("MatMul", query, key), axis=-1)
    return model.add("MatMul", scores, values[2])


def reshape(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a movement of data. Raises UnsupportedOp when it has no ONNX form."""
    if kernel.op not in MOVEMENTS:
        raise no_onnx_form(kernel, kernel.op)
    return MOVEMENTS[kernel.op](model, kernel, values[0])


EMITTERS: dict[str, Callable[[OnnxModelBuilder, Kernel, list[str]], str]] = {
    "conv": conv,
    "gconv": conv,
    "dwconv": conv,
    "linear": linear,
    "pool": pool,
    "gap": gap,
    "tconv": transposed_conv,
    "add": binary,
    "mul": binary,
    "concat": concat,
    "activation": activation,
    "norm": norm,
    "softmax": softmax,
    "matmul": matmul,
    "reshape": reshape,
}
