"""Linear layers, means, sums, products and concatenations of TFLite."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import changed_axis
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder


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


def gap(model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...]) -> int:
    """Add a mean, sum or maximum over the pixels of a map, or over the axes that are gone."""
    size = model.shape(value)
    keeps_rank = len(size) == len(shape)
    if keeps_rank:
        pairs = enumerate(zip(size, shape, strict=True))
        axes = [axis for axis, (side, side_out) in pairs if side != side_out]
    else:
        axes = list(range(1, 1 + len(size) - len(shape)))
    operands = (value, model.integers(axes))
    if kernel.op == "amax" or kernel.op.startswith("adaptive_max"):
        return model.op(
            "REDUCE_MAX", operands, shape, "ReducerOptions", like=value, keepDims=keeps_rank
        )
    name = "SUM" if kernel.op == "sum" else "MEAN"
    return model.op(name, operands, shape, "ReducerOptions", keepDims=keeps_rank)


def elementwise(
    model: TfliteModelBuilder,
    kernel: Kernel,
    values: Sequence[int],
    shape: tuple[int, ...],
    clamp: int,
) -> int:
    """Add a sum or product of two activations, or of one with a number or a weight."""
    if kernel.kind == "mul":
        name = "MUL"
    else:
        name = "SUB" if kernel.op in ("sub", "rsub") else "ADD"
    second = values[1] if len(values) > 1 else constant_operand(model, kernel, shape)
    options = f"{name.capitalize()}Options"
    return model.op(name, (values[0], second), shape, options, fusedActivationFunction=clamp)


def constant_operand(model: TfliteModelBuilder, kernel: Kernel, shape: tuple[int, ...]) -> int:
    """Return the constant of a sum or product, as large as the kernel's weights."""
    if kernel.weight_elements > 1:
        for axis in range(len(shape)):
            if prod(shape[axis:]) == kernel.weight_elements:
                return model.constant(shape[axis:])
    return model.constant((), 0.5)


def concatenation(
    model: TfliteModelBuilder, kernel: Kernel, values: Sequence[int], shape: tuple[int, ...]
) -> int:
    """Add a concatenation along the axis where the first input is shorter.

    An input that is read twice stands once in a kernel's description.

    Raises UnsupportedOp when the sizes do not add up.
    """
    axis = changed_axis(model.shape(values[0]), shape, default=len(shape) - 1)
    if sum(model.shape(value)[axis] for value in values) != shape[axis]:
        raise UnsupportedOp(
            f"cannot build concat for LiteRT, kernel {kernel.name}, {kernel.shapes_in} do not make"
            f" {kernel.shape_out}"
        )
    return model.op(
        "CONCATENATION", values, shape, "ConcatenationOptions", like=values[0], axis=axis
    )
