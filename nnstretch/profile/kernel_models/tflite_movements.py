"""Movements of data as litert-torch lowers them."""

from __future__ import annotations

from itertools import permutations
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import changed_axis, growth
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder


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
        amounts = growth(size, shape)
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
    axis = changed_axis(size, shape, default=0)
    parts = []
    for piece in range(max(1, kernel.write_elements // max(1, prod(shape)))):
        start = [0] * len(size)
        start[axis] = min(piece * shape[axis], size[axis] - shape[axis])
        operands = (value, model.integers(start), model.integers(shape))
        parts.append(model.op("SLICE", operands, shape, "SliceOptions", like=value))
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
        return shuffle_channels(model, value, size)
    kept = tuple(range(len(size)))
    orders = [order for order in permutations(kept) if tuple(size[axis] for axis in order) == out]
    if not orders:
        raise UnsupportedOp(
            f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, {size} does not become"
            f" {out}"
        )
    moving = [order for order in orders if order != kept]
    return add_transpose(model, add_reshape(model, value, size), (moving or orders)[0])


def shuffle_channels(model: TfliteModelBuilder, value: int, size: tuple[int, ...]) -> int:
    """Add a shuffle of channels; `size` is batch, groups, channels of a group, height, width."""
    batch, groups, width, height, across = size
    flat = add_reshape(model, value, (batch, height, across, groups * width))
    planes = add_reshape(model, add_transpose(model, flat, (0, 3, 1, 2)), size)
    swapped = add_transpose(model, planes, (0, 2, 1, 3, 4))
    shuffled = add_reshape(model, swapped, (batch, groups * width, height, across))
    return add_transpose(model, shuffled, (0, 2, 3, 1))
