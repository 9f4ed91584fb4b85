"""Activations, norms, attention and data movement as litert-torch lowers them."""

from __future__ import annotations

from itertools import permutations
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.backends.tflite_writer import TfliteModelBuilder

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
    if op in ("scale", "shift"):
        return (
            scale_by(model, value, 0.5)
            if op == "scale"
            else model.op("ADD", (value, model.constant((), 0.5)), shape, "AddOptions")
        )
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
    real = model.op(
        name, (model.op("DEQUANTIZE", (value,), shape, "DequantizeOptions"),), shape, options
    )
    model.dtype = "int8"
    return model.op("QUANTIZE", (real,), shape, "QuantizeOptions")


def norm(model: TfliteModelBuilder, kernel: Kernel, value: int, clamp: int) -> int:
    """Add a normalization as litert-torch emits it. Raises UnsupportedOp when no rule builds it."""
    shape = model.shape(value)
    if kernel.op == "batch_norm":
        sides = (
            (*(1 for _ in shape[:-1]), shape[-1])
            if len(shape) == 4
            else (1, kernel.cin, *(1 for _ in shape[2:]))
        )
        for name in ("SUB", "MUL", "MUL"):
            value = model.op(
                name, (value, model.constant(sides)), shape, f"{name.capitalize()}Options"
            )
        return model.op(
            "ADD",
            (value, model.constant(sides)),
            shape,
            "AddOptions",
            fusedActivationFunction=clamp,
        )
    if kernel.op == "layer_norm" and not clamp:
        return layer_norm(model, value)
    raise UnsupportedOp(
        f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, no rule for this norm"
    )


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


def add_reshape(model: TfliteModelBuilder, value: int, shape: tuple[int, ...]) -> int:
    """Add a reshape."""
    if model.shape(value) == shape:
        return value
    return model.op(
        "RESHAPE",
        (value, model.integers(shape)),
        shape,
        "ReshapeOptions",
        like=value,
        newShape=list(shape),
    )


def add_transpose(model: TfliteModelBuilder, value: int, order: tuple[int, ...]) -> int:
    """Add a transpose."""
    shape = tuple(model.shape(value)[axis] for axis in order)
    return model.op(
        "TRANSPOSE", (value, model.integers(order)), shape, "TransposeOptions", like=value
    )


def add_matmul(
    model: TfliteModelBuilder, kernel: Kernel, values: list[int], shape: tuple[int, ...]
) -> int:
    """Add batched products of matrices; attention is two of them around a softmax.

    Raises UnsupportedOp when no rule builds the product.
    """
    if kernel.op == "scaled_dot_product_attention":
        query, key, content = (values * 3)[:3]
        query, key = scale_by(model, query, 0.35), scale_by(model, key, 0.35)
        rank = len(model.shape(key))
        scores = fold_batch_axes(
            model, query, add_transpose(model, key, (*range(rank - 2), rank - 1, rank - 2))
        )
        weights = model.op(
            "SOFTMAX",
            (scores,),
            model.shape(scores),
            "SoftmaxOptions",
            scale=(1 / 256, -128),
            beta=1.0,
        )
        return fold_batch_axes(model, weights, content)
    first, right = model.shape(values[0]), model.shape(values[-1])
    if (
        kernel.op not in ("matmul", "bmm", "mm")
        or len(values) != 2
        or first[-1] != right[-2]
        or len(first) != len(right)
    ):
        raise UnsupportedOp(
            f"cannot build {kernel.op} for LiteRT, kernel {kernel.name} of {kernel.shapes_in}, no"
            " rule for this product"
        )
    return fold_batch_axes(model, values[0], values[1])


def fold_batch_axes(model: TfliteModelBuilder, first_shape: int, right: int) -> int:
    """Fold batch axes into one: BATCH_MATMUL takes no more."""
    shape = (*model.shape(first_shape)[:-1], model.shape(right)[-1])
    folded = [
        add_reshape(model, v, (prod(model.shape(v)[:-2]), *model.shape(v)[-2:]))
        for v in (first_shape, right)
    ]
    value = model.op(
        "BATCH_MATMUL", folded, (model.shape(folded[0])[0], *shape[-2:]), "BatchMatMulOptions"
    )
    return add_reshape(model, value, shape)


def reshape(model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...]) -> int:
    """Add a movement of data. Raises UnsupportedOp when no rule builds it."""
    size = model.shape(value)
    if kernel.op in ("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T"):
        return permute(model, kernel, value)
    if kernel.op in ("chunk", "split", "split_with_sizes", "slice") and len(size) == len(shape):
        return slices(model, kernel, value, shape)
    if kernel.op in ("unbind", "select"):
        return picks(model, kernel, value, shape)
    if kernel.op in ("pad", "constant_pad_nd"):
        amounts = [[(b - a) // 2, b - a - (b - a) // 2] for a, b in zip(size, shape, strict=True)]
        if min(map(min, amounts)) >= 0:
            return model.op(
                "PAD", (value, model.integers(amounts)), shape, "PadOptions", like=value
            )
    if kernel.op == "upsample_nearest2d":
        return model.op(
            "RESIZE_NEAREST_NEIGHBOR",
            (value, model.integers(shape[1:3])),
            shape,
            "ResizeNearestNeighborOptions",
            like=value,
            halfPixelCenters=True,
        )
    raise UnsupportedOp(
        f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, no rule for this movement of"
        " data"
    )


def slices(model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...]) -> int:
    """Add as many slices of the first one's size as the kernel writes; return the first."""
    size = model.shape(value)
    axis = next((i for i, (a, b) in enumerate(zip(size, shape, strict=True)) if a != b), 0)
    parts = []
    for piece in range(max(1, kernel.write_elements // max(1, prod(shape)))):
        start = [0] * len(size)
        start[axis] = min(piece * shape[axis], size[axis] - shape[axis])
        parts.append(
            model.op(
                "SLICE",
                (value, model.integers(start), model.integers(shape)),
                shape,
                "SliceOptions",
                like=value,
            )
        )
    return parts[0]


def picks(model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...]) -> int:
    """Add slices one long along an axis that is gone afterwards.

    Raises UnsupportedOp when no axis fits.
    """
    size = kernel.shapes_in[0]
    axis = next(
        (i for i in range(len(size)) if (*size[:i], *size[i + 1 :]) == kernel.shape_out), None
    )
    if axis is None:
        raise UnsupportedOp(
            f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, {size} does not become"
            f" {kernel.shape_out}"
        )
    piece = (*size[:axis], 1, *size[axis + 1 :])
    return add_reshape(model, slices(model, kernel, add_reshape(model, value, size), piece), shape)


def permute(model: TfliteModelBuilder, kernel: Kernel, value: int) -> int:
    """Add a permutation; NCHW to NHWC costs nothing where maps are NHWC anyway.

    A shuffle of channels goes through NCHW and back.

    Raises UnsupportedOp when no order of axes fits.
    """
    size, out = kernel.shapes_in[0], kernel.shape_out
    if len(size) == 4 and out in (
        (size[0], size[2], size[3], size[1]),
        (size[0], size[3], size[1], size[2]),
    ):
        return value
    if len(size) == 5 and size[3:] == out[3:] and size[1:3] == (out[2], out[1]):
        batch, groups, width, height, across = size
        flat = add_reshape(model, value, (batch, height, across, groups * width))
        planes = add_reshape(model, add_transpose(model, flat, (0, 3, 1, 2)), size)
        shuffled = add_reshape(
            model,
            add_transpose(model, planes, (0, 2, 1, 3, 4)),
            (batch, groups * width, height, across),
        )
        return add_transpose(model, shuffled, (0, 2, 3, 1))
    orders = [
        order
        for order in permutations(range(len(size)))
        if tuple(size[axis] for axis in order) == out
    ]
    if not orders:
        raise UnsupportedOp(
            f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, {size} does not become"
            f" {out}"
        )
    moved = next((order for order in orders if order != tuple(range(len(size)))), orders[0])
    return add_transpose(model, add_reshape(model, value, size), moved)
