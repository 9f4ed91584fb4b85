"""Convolutions and pools of TFLite, with the padding that PyTorch means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import PADDED, Kernel
from nnstretch.profile.kernel_models.kernel_shapes import pool_window, window_of, window_strides
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder

SAME, VALID = 0, 1


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
    """Return the value to slide over, and SAME or VALID.

    The value is behind a PAD of its own where neither says what PyTorch pads.
    """
    sizes = model.shape(value)[1:3]
    pads: list[Padding] = []
    is_all_same = True
    strides = window_strides(kernel, window)
    for stride, size, side, size_out in zip(strides, sizes, window, out[1:3], strict=True):
        scheme = padding if stride == 1 or kernel.layout == PADDED else end_padding
        pad = scheme(size, side, stride, size_out)
        is_all_same = is_all_same and is_same(size, side, stride, size_out, pad)
        pads.append(pad)
    if pads == [Padding(0, 0)] * len(pads):
        return value, VALID
    if is_all_same:
        return value, SAME
    largest = kernel.kind == "pool" and "max" in kernel.op
    return add_padding(model, value, pads, largest), VALID


def add_padding(model: TfliteModelBuilder, value: int, pads: list[Padding], below_all: bool) -> int:
    """Add a PAD around a map: zeros, or numbers that no maximum chooses."""
    batch, height, width, channels = model.shape(value)
    rows, columns = pads
    ends = [[0, 0], [rows.before, rows.after], [columns.before, columns.after], [0, 0]]
    amounts = model.integers(ends)
    padded_height = height + rows.before + rows.after
    padded_width = width + columns.before + columns.after
    shape = (batch, padded_height, padded_width, channels)
    if below_all:
        lowest = model.lowest_value(value)
        return model.op("PADV2", (value, amounts, lowest), shape, "PadV2Options", like=value)
    return model.op("PAD", (value, amounts), shape, "PadOptions", like=value)


def convolution(
    model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...], clamp: int
) -> int:
    """Add a convolution with its padding."""
    window = window_of(kernel)
    source, scheme = pad_for_window(model, value, window, kernel, shape)
    rows, columns = window_strides(kernel, window)
    slide: dict[str, Any] = {
        "padding": scheme,
        "strideH": rows,
        "strideW": columns,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": clamp,
    }
    if kernel.kind == "dwconv":
        weight = model.weight((1, *window, kernel.cout), 3)
        name, options = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
        slide["depthMultiplier"] = kernel.cout // kernel.cin
    else:
        weight = model.weight((kernel.cout, *window, kernel.cin // kernel.groups), 0)
        name, options = "CONV_2D", "Conv2DOptions"
    bias = model.bias(kernel.cout, source)
    return model.op(name, (source, weight, bias), shape, options, **slide)


def pool(
    model: TfliteModelBuilder, kernel: Kernel, value: int, shape: tuple[int, ...], clamp: int
) -> int:
    """Add a pooling with its padding. Raises UnsupportedOp when the windows are not equal."""
    window = pool_window(kernel)
    stride = window_strides(kernel, window)
    if kernel.op.startswith("adaptive"):
        sizes = model.shape(value)
        if shape == sizes:
            return value
        if sizes[1] % shape[1] or sizes[2] % shape[2]:
            raise UnsupportedOp(
                f"cannot build {kernel.op} for LiteRT, kernel {kernel.name}, {kernel.shapes_in[0]}"
                " has no equal windows"
            )
        window = stride = sizes[1] // shape[1], sizes[2] // shape[2]
        source, scheme = value, VALID  # such windows tile the map
    else:
        source, scheme = pad_for_window(model, value, window, kernel, shape)
    return model.op(
        "MAX_POOL_2D" if "max" in kernel.op else "AVERAGE_POOL_2D",
        (source,),
        shape,
        "Pool2DOptions",
        like=value,
        padding=scheme,
        strideH=stride[0],
        strideW=stride[1],
        filterHeight=window[0],
        filterWidth=window[1],
        fusedActivationFunction=clamp,
    )
