"""Kernel -> .tflite, with the operators that litert-torch and ai-edge-quantizer emit for it in a
network.

What they emit was read off converted networks (litert-torch 0.10): convolutions keep their padding
only where TFLite's SAME or VALID says the same and get a PAD of their own elsewhere; batch norms
behind a convolution are gone; clamps are attributes of the operator before them. Shapes come in
PyTorch's order and go out as LiteRT keeps them: maps NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import PADDED, WEIGHTED, Kernel
from nnstretch.profile.backends.tflite_ops import (
    CLAMPS,
    activation,
    add_matmul,
    norm,
    reshape,
    scale_by,
)
from nnstretch.profile.backends.tflite_writer import TfliteModelBuilder

SAME, VALID = 0, 1
FOLDED = ("scale", "shift", "batch_norm")
"""What the converter multiplies into the weights of the operator before it."""


def build(chain: Sequence[Kernel], dtype: str, copies: int = 1) -> bytes:
    """Build a model of kernels that each read what the one before wrote.

    Everything else they read is an input.

    Copies run one after the other, each with weights of its own, on the same inputs. Of what a copy
    writes, one number is kept: nothing else needs the memory any more, so the next copy writes
    there, as kernels of a network do. Raises UnsupportedOp for a kernel without a TFLite form.
    """
    model = TfliteModelBuilder(dtype)
    for _ in range(copies):
        model.reread()
        value: int | None = None
        for kernel in chain:
            if not kernel.shapes_in or not kernel.shape_out:
                raise UnsupportedOp(
                    f"cannot build {kernel.kind} for LiteRT, kernel {kernel.name}, its shapes are"
                    " not known"
                )
            value = append(model, kernel, value)
        assert value is not None, "a chain has at least one kernel"
        model.outputs.append(value if copies == 1 else model.first_number(value))
    return model.bytes()


def append(model: TfliteModelBuilder, kernel: Kernel, before: int | None) -> int:
    """Append one kernel behind the value of the one before; return its own value."""
    values = inputs(model, kernel, before)
    fused = [op for op in kernel.epilogue if op != "batch_norm"]
    if kernel.kind in WEIGHTED:
        while fused and fused[0] in FOLDED:
            fused.pop(0)
    clamp = CLAMPS[fused.pop(0)] if fused and fused[0] in CLAMPS and kernel.kind in CLAMPED else 0
    if kernel.kind in WEIGHTED and fused and fused[0] == "hardsigmoid":
        clamp = CLAMPS["relu6"]
    value = main(model, kernel, values, clamp)
    spare = list(values[1:])
    while fused:
        op = fused.pop(0)
        if op == "add":
            clamp = CLAMPS[fused.pop(0)] if fused and fused[0] in CLAMPS else 0
            value_in = spare.pop() if spare else value
            value = model.op(
                "ADD",
                (value, value_in),
                model.shape(value),
                "AddOptions",
                fusedActivationFunction=clamp,
            )
        elif op == "hardsigmoid" and kernel.kind in WEIGHTED:
            value = scale_by(model, value, 1 / 6)
        else:
            value = activation(model, kernel, value, op)
    return value


def inputs(model: TfliteModelBuilder, kernel: Kernel, before: int | None) -> list[int]:
    """Return a kernel's inputs: its first of the size that the kernel before wrote is that value.

    The others are read.

    Raises UnsupportedOp when no input has the size that was written.
    """
    values: list[int] = []
    for shape in kernel.shapes_in:
        wanted = kernel_shape(kernel, shape)
        if before is not None and prod(wanted) == prod(model.shape(before)):
            if model.shape(before) != wanted:
                before = model.op(
                    "RESHAPE",
                    (before, model.integers(wanted)),
                    wanted,
                    "ReshapeOptions",
                    like=before,
                    newShape=list(wanted),
                )
            values.append(before)
            before = None
        else:
            values.append(model.read(wanted))
    if before is not None:
        raise UnsupportedOp(
            f"cannot chain {kernel.kind} for LiteRT, kernel {kernel.name} reads {kernel.shapes_in},"
            f" the one before it writes {model.shape(before)}"
        )
    return values


def kernel_shape(kernel: Kernel, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as LiteRT sees it.

    Maps are NCHW in PyTorch, operators along the last axis as they are.
    """
    last = kernel.kind in ("linear", "matmul", "softmax") or kernel.op in ("layer_norm", "rms_norm")
    return shape if last or len(shape) != 4 else (shape[0], shape[2], shape[3], shape[1])


def main(model: TfliteModelBuilder, kernel: Kernel, values: list[int], clamp: int) -> int:
    """Add a kernel's main operator. Raises UnsupportedOp when no rule builds it."""
    shape = kernel_shape(kernel, kernel.shape_out)
    if kernel.kind in ("conv", "gconv", "dwconv") and len(shape) == 4:
        return convolution(model, kernel, values[0], shape, clamp)
    if kernel.kind == "linear":
        return linear(model, kernel, values[0], shape, clamp)
    if kernel.kind == "pool" and len(shape) == 4:
        return pool(model, kernel, values[0], shape, clamp)
    if kernel.kind == "gap":
        return gap(model, kernel, values[0], shape)
    if kernel.kind in ("add", "mul"):
        return elementwise(model, kernel, values, shape, clamp)
    if kernel.kind == "concat" and kernel.op != "stack":
        return concatenation(model, kernel, values, shape)
    if kernel.kind == "activation":
        return activation(model, kernel, values[0], kernel.op)
    if kernel.kind == "softmax" and kernel.op != "log_softmax":
        return model.op(
            "SOFTMAX", values[:1], shape, "SoftmaxOptions", scale=(1 / 256, -128), beta=1.0
        )
    if kernel.kind == "norm":
        return norm(model, kernel, values[0], clamp)
    if kernel.kind == "matmul":
        return add_matmul(model, kernel, values, shape)
    if kernel.kind == "reshape":
        return reshape(model, kernel, values[0], shape)
    raise UnsupportedOp(
        f"cannot build {kernel.kind} ({kernel.op}) for LiteRT, kernel {kernel.name}, no rule for it"
    )


CLAMPED = frozenset({*WEIGHTED, "add", "mul", "pool", "norm"})
"""Kinds whose last operator has a fused clamp."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros before and after an axis."""

    before: int
    after: int


def padding(size: int, window: int, stride: int, out: int) -> Padding:
    """Return PyTorch's padding.

    Both ends alike where that gives the output's size, or more at the end.
    """
    for side in dict.fromkeys(((window - 1) // 2, 0, *range(window))):
        if (size + 2 * side - window) // stride + 1 == out and size + 2 * side >= window:
            return Padding(side, side)
    return end_padding(size, window, stride, out)


def end_padding(size: int, window: int, stride: int, out: int) -> Padding:
    """Return the padding at the end: no more than the windows need, the odd one at the end.

    Pools in ceil mode, and networks made for TensorFlow.
    """
    total = max(0, (out - 1) * stride + window - size)
    return Padding(total // 2, total - total // 2)


def is_same(size: int, window: int, stride: int, out: int, pad: Padding) -> bool:
    """Return whether TFLite's SAME pads exactly so."""
    total = max(0, (out - 1) * stride + window - size)
    return out == -(-size // stride) and (pad.before, pad.after) == (total // 2, total - total // 2)


def pad_for_window(
    model: TfliteModelBuilder,
    value: int,
    window: tuple[int, int],
    kernel: Kernel,
    out: tuple[int, ...],
) -> tuple[int, int]:
    """Return the value to slide over, and SAME or VALID; a PAD where neither says what PyTorch
    pads.
    """
    batch, height, width, channels = model.shape(value)
    stride, lowest = max(1, kernel.stride), kernel.kind == "pool" and "max" in kernel.op
    alike = stride == 1 or kernel.layout == PADDED
    scheme = padding if alike else end_padding
    pads = [
        scheme(size, w, stride, o)
        for size, w, o in zip((height, width), window, out[1:3], strict=True)
    ]
    if all(pad == Padding(0, 0) for pad in pads):
        return value, VALID
    if all(
        is_same(s, w, stride, o, p)
        for s, w, o, p in zip((height, width), window, out[1:3], pads, strict=True)
    ):
        return value, SAME
    amounts = model.integers([[0, 0], *([pad.before, pad.after] for pad in pads), [0, 0]])
    shape = (
        batch,
        height + pads[0].before + pads[0].after,
        width + pads[1].before + pads[1].after,
        channels,
    )
    if lowest:
        return (
            model.op(
                "PADV2",
                (value, amounts, model.lowest_value(value)),
                shape,
                "PadV2Options",
                like=value,
            ),
            VALID,
        )
    return model.op("PAD", (value, amounts), shape, "PadOptions", like=value), VALID


def window_of(kernel: Kernel) -> tuple[int, int]:
    """Return height and width: the kernel knows the longer side, and its work tells how many taps
    there are.
    """
    outputs = max(1, prod(kernel.shape_out)) * max(1, kernel.cin // kernel.groups)
    taps, side = kernel.macs / outputs, kernel.kernel
    short_side = min(range(1, side + 1), key=lambda short: (abs(side * short - taps), -short))
    if short_side == side:
        return side, side
    height_in, height_out = kernel.shapes_in[0][2], kernel.shape_out[2]
    width_in, width_out = kernel.shapes_in[0][3], kernel.shape_out[3]
    upright = height_out < height_in and width_out == width_in and kernel.stride == 1
    return (side, short_side) if upright else (short_side, side)


def convolution(
    model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...], clamp: int
) -> int:
    """Add a convolution with its padding."""
    window = window_of(kernel)
    source, kind = pad_for_window(model, value, window, kernel, shape)
    slide = {
        "padding": kind,
        "strideH": kernel.stride,
        "strideW": kernel.stride,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
    }
    if kernel.kind == "dwconv":
        weight = model.weight((1, *window, kernel.cout), 3)
        return model.op(
            "DEPTHWISE_CONV_2D",
            (source, weight, model.bias(kernel.cout, source)),
            shape,
            "DepthwiseConv2DOptions",
            **slide,  # type: ignore[arg-type]
            depthMultiplier=kernel.cout // kernel.cin,
            fusedActivationFunction=clamp,
        )
    weight = model.weight((kernel.cout, *window, kernel.cin // kernel.groups), 0)
    return model.op(
        "CONV_2D",
        (source, weight, model.bias(kernel.cout, source)),
        shape,
        "Conv2DOptions",
        **slide,  # type: ignore[arg-type]
        fusedActivationFunction=clamp,
    )


def linear(
    model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...], clamp: int
) -> int:
    """Add a fully connected layer."""
    weight = model.weight((kernel.cout, kernel.cin), 0)
    return model.op(
        "FULLY_CONNECTED",
        (value, weight, model.bias(kernel.cout, value)),
        shape,
        "FullyConnectedOptions",
        keepNumDims=True,
        fusedActivationFunction=clamp,
    )


def pool(
    model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...], clamp: int
) -> int:
    """Add a pooling with its padding. Raises UnsupportedOp when the windows are not equal."""
    window, stride = kernel.kernel, kernel.stride
    if kernel.op.startswith("adaptive"):
        if shape == model.shape(value):
            return value
        if any(size % out for size, out in zip(model.shape(value)[1:3], shape[1:3], strict=True)):
            raise UnsupportedOp(
                f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, {kernel.shapes_in[0]}"
                " has no equal windows"
            )
        window = stride = model.shape(value)[1] // shape[1]
    largest = "max" in kernel.op
    source, kind = pad_for_window(
        model, value, (window, window), replace(kernel, stride=stride), shape
    )
    return model.op(
        "MAX_POOL_2D" if largest else "AVERAGE_POOL_2D",
        (source,),
        shape,
        "Pool2DOptions",
        like=value,
        padding=kind,
        strideH=stride,
        strideW=stride,
        filterHeight=window,
        filterWidth=window,
        fusedActivationFunction=clamp,
    )


def gap(model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...]) -> int:
    """Add a mean over the pixels of a map; elsewhere over the axes that are gone or one long."""
    size = model.shape(value)
    if len(size) == len(shape):
        axes = [axis for axis, (a, b) in enumerate(zip(size, shape, strict=True)) if a != b]
    else:
        axes = list(range(1, 1 + len(size) - len(shape)))
    if kernel.op == "amax" or kernel.op.startswith("adaptive_max"):
        return model.op(
            "REDUCE_MAX",
            (value, model.integers(axes)),
            shape,
            "ReducerOptions",
            like=value,
            keepDims=len(size) == len(shape),
        )
    name = "SUM" if kernel.op == "sum" else "MEAN"
    return model.op(
        name,
        (value, model.integers(axes)),
        shape,
        "ReducerOptions",
        keepDims=len(size) == len(shape),
    )


def elementwise(
    model: TfliteModelBuilder, kernel: Kernel, values: list[int], shape: tuple[int, ...], clamp: int
) -> int:
    """Add a sum or product of two activations, or with a number or weight where there is only
    one.
    """
    name, options = {"sub": ("SUB", "SubOptions"), "rsub": ("SUB", "SubOptions")}.get(
        kernel.op, ("ADD", "AddOptions")
    )
    if kernel.kind == "mul":
        name, options = "MUL", "MulOptions"
    if len(values) == 1:
        return model.op(
            name,
            (values[0], operand(model, kernel, shape)),
            shape,
            options,
            fusedActivationFunction=clamp,
        )
    return model.op(name, values[:2], shape, options, fusedActivationFunction=clamp)


def operand(model: TfliteModelBuilder, kernel: Kernel, shape: tuple[int, ...]) -> int:
    """Return the constant of a sum or product, as large as the kernel's weights."""
    if kernel.weight_elements > 1:
        for axis in range(len(shape)):
            if prod(shape[axis:]) == kernel.weight_elements:
                return model.constant(shape[axis:])
    return model.constant((), 0.5)


def concatenation(
    model: TfliteModelBuilder, kernel: Kernel, values: list[int], shape: tuple[int, ...]
) -> int:
    """Add a concatenation; inputs that are read twice are listed once in a kernel, so the axis is
    where the first one is shorter.

    Raises UnsupportedOp when the sizes do not add up.
    """
    first = model.shape(values[0])
    axis = next(
        (i for i, (a, b) in enumerate(zip(first, shape, strict=True)) if a != b), len(shape) - 1
    )
    if sum(model.shape(value)[axis] for value in values) != shape[axis]:
        raise UnsupportedOp(
            f"cannot build concat for LiteRT, kernel {kernel.name}, {kernel.shapes_in} do not make"
            f" {kernel.shape_out}"
        )
    return model.op(
        "CONCATENATION", values, shape, "ConcatenationOptions", like=values[0], axis=axis
    )
