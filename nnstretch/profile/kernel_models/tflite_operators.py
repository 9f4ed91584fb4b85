"""Norms, softmax and products of matrices as litert-torch lowers them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.tflite_activations import scale_by
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder
from nnstretch.profile.kernel_models.tflite_movements import add_reshape, add_transpose


def norm(model: TfliteModelBuilder, kernel: Kernel, value: int, clamp: int) -> int:
    """Add a normalization as litert-torch emits it. Raises UnsupportedOp when no rule builds it."""
    if kernel.op == "batch_norm":
        return batch_norm(model, kernel, value, clamp)
    if kernel.op == "layer_norm" and not clamp:
        return layer_norm(model, value)
    raise UnsupportedOp(
        f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, no rule for this norm"
    )


def batch_norm(model: TfliteModelBuilder, kernel: Kernel, value: int, clamp: int) -> int:
    """Add a batch norm as four operators with a number a channel."""
    shape = model.shape(value)
    if len(shape) == 4:
        sides: tuple[int, ...] = (1, 1, 1, shape[-1])
    else:
        sides = (1, kernel.cin, *[1] * (len(shape) - 2))
    for name in ("SUB", "MUL", "MUL"):
        operands = (value, model.constant(sides))
        value = model.op(name, operands, shape, f"{name.capitalize()}Options")
    operands = (value, model.constant(sides))
    return model.op("ADD", operands, shape, "AddOptions", fusedActivationFunction=clamp)


def layer_norm(model: TfliteModelBuilder, value: int) -> int:
    """Add a layer norm along the last axis; statistics have one number a row.

    Its gain and offset go into the linear layer that nearly always follows.
    """
    shape, width = model.shape(value), model.shape(value)[-1]
    rows = prod(shape[:-1])
    flat = (1, rows, width)
    source = add_reshape(model, value, flat)

    def per_row(statistic: int) -> int:
        return add_reshape(model, statistic, (1, rows, 1))

    def mean(of: int) -> int:
        return model.op(
            "MEAN", (of, model.integers([0, 2])), (rows,), "ReducerOptions", keepDims=False
        )

    average = mean(source)
    spread = model.op(
        "SQUARED_DIFFERENCE",
        (source, per_row(average)),
        flat,
        "SquaredDifferenceOptions",
        scale=(0.01, -128),
    )
    shifted = model.op(
        "ADD", (mean(spread), model.constant((), 0.001)), (rows,), "AddOptions", scale=(0.01, -128)
    )
    inverse = model.op("RSQRT", (shifted,), (rows,), scale=(0.05, -128))
    offset = model.op("MUL", (average, inverse), (rows,), "MulOptions")
    offset = model.op("SUB", (model.constant((), 0.001), offset), (rows,), "SubOptions")
    value = model.op("MUL", (source, per_row(inverse)), flat, "MulOptions")
    value = model.op("ADD", (value, per_row(offset)), flat, "AddOptions")
    return add_reshape(model, value, shape)


def softmax(model: TfliteModelBuilder, value: int) -> int:
    """Add a softmax along the last axis."""
    shape = model.shape(value)
    return model.op("SOFTMAX", (value,), shape, "SoftmaxOptions", scale=(1 / 256, -128), beta=1.0)


def add_matmul(model: TfliteModelBuilder, kernel: Kernel, values: Sequence[int]) -> int:
    """Add batched products of matrices; attention is two of them around a softmax.

    Raises UnsupportedOp when no rule builds the product.
    """
    if kernel.op == "scaled_dot_product_attention":
        return attention(model, [*values, *values, *values][:3])
    rows, columns = model.shape(values[0]), model.shape(values[-1])
    if (
        kernel.op not in ("matmul", "bmm", "mm")
        or len(values) != 2
        or rows[-1] != columns[-2]
        or len(rows) != len(columns)
    ):
        raise UnsupportedOp(
            f"cannot build {kernel.op} for LiteRT, kernel {kernel.name} of {kernel.shapes_in}, no"
            " rule for this product"
        )
    return fold_batch_axes(model, values[0], values[1])


def attention(model: TfliteModelBuilder, values: Sequence[int]) -> int:
    """Add the attention of a query to keys and values."""
    query, key, content = values
    query, key = scale_by(model, query, 0.35), scale_by(model, key, 0.35)
    rank = len(model.shape(key))
    transposed = add_transpose(model, key, (*range(rank - 2), rank - 1, rank - 2))
    weights = softmax(model, fold_batch_axes(model, query, transposed))
    return fold_batch_axes(model, weights, content)


def fold_batch_axes(model: TfliteModelBuilder, first: int, second: int) -> int:
    """Add a product with all batch axes folded into one: BATCH_MATMUL takes no more."""
    shape = (*model.shape(first)[:-1], model.shape(second)[-1])
    folded = []
    for value in (first, second):
        sides = model.shape(value)
        folded.append(add_reshape(model, value, (prod(sides[:-2]), *sides[-2:])))
    product_shape = (model.shape(folded[0])[0], *shape[-2:])
    product = model.op("BATCH_MATMUL", folded, product_shape, "BatchMatMulOptions")
    return add_reshape(model, product, shape)
