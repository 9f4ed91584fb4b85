"""ONNX operators with windows: convolution and pooling."""

from __future__ import annotations

from math import ceil, inf

import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule

PadPairs = tuple[tuple[int, int], ...]
"""Padding before and after each pixel dimension."""


def window_settings(
    call: NodeContext, kernel: tuple[int, ...], x: OnnxValue
) -> tuple[tuple[int, ...], tuple[int, ...], PadPairs]:
    """Return stride, dilation and padding, with `auto_pad` resolved at this input size."""
    n = len(kernel)
    stride = tuple(call.get_attribute("strides", (1,) * n))
    dilation = tuple(call.get_attribute("dilations", (1,) * n))
    auto = call.get_attribute("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = (0,) * 2 * n
        if auto == "NOTSET":
            pads = tuple(call.get_attribute("pads", pads))
        return stride, dilation, tuple(zip(pads[:n], pads[n:], strict=True))
    pairs: list[tuple[int, int]] = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True):
        total = max(0, (ceil(size / s) - 1) * s + (k - 1) * d + 1 - size)
        small = total // 2
        large = total - small
        pairs.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return stride, dilation, tuple(pairs)


def floor_windows(
    x: OnnxValue,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pads: PadPairs,
) -> PadPairs:
    """Return the padding at which rounding down gives the windows that rounding up asks for.

    None of them starts behind the map and the padding before it.
    """
    pairs: list[tuple[int, int]] = []
    for size, k, s, d, (low, high) in zip(x.shape[2:], kernel, stride, dilation, pads, strict=True):
        reach = (k - 1) * d + 1
        last = ceil((size + low + high - reach) / s) * s
        if last >= size + low:
            last -= s
        pairs.append((low, max(0, last + reach - size - low)))
    return tuple(pairs)


def drops_windows(
    x: OnnxValue,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pads: PadPairs,
) -> bool:
    """Return whether rounding up would have a last window start behind the map."""
    for size, k, s, d, (low, high) in zip(x.shape[2:], kernel, stride, dilation, pads, strict=True):
        if ceil((size + low + high - (k - 1) * d - 1) / s) * s >= size + low:
            return True
    return False


def fits_pytorch(pads: PadPairs, largest: tuple[int, ...] | None = None) -> bool:
    """Return whether a PyTorch operator can pad so itself: equal on both sides, not too wide."""
    if any(low != high for low, high in pads):
        return False
    return largest is None or all(
        low <= limit for (low, _), limit in zip(pads, largest, strict=False)
    )


def pad_unequal_sides(
    call: NodeContext,
    x: OnnxValue,
    pads: PadPairs,
    value: float,
    largest: tuple[int, ...] | None = None,
) -> tuple[OnnxValue, tuple[int, ...]]:
    """Return the input, padded where a PyTorch operator cannot, and the padding that it can do."""
    if fits_pytorch(pads, largest):
        return x, tuple(low for low, _ in pads)
    return call.emit("constant_pad_nd", x, flat_pads(pads), value), (0,) * len(pads)


def flat_pads(pads: PadPairs) -> list[int]:
    """Return padding as PyTorch lists it, the last dimension first."""
    flat: list[int] = []
    for pair in reversed(pads):
        flat += pair
    return flat


def conv(call: NodeContext) -> OnnxValue:
    """Translate Conv of one, two or three dimensions.

    Raises UnsupportedOp when the filters are computed from the input.
    """
    x = call.input(0)
    weight = call.input(1)
    if not weight.constant or weight.rank not in (3, 4, 5):
        raise call.unsupported_error("its filters are computed from the input")
    stride, dilation, pads = window_settings(call, weight.shape[2:], x)
    x, padding = pad_unequal_sides(call, x, pads, 0.0)
    weights = call.layer_weights(weight, call.optional_input(2))
    groups = call.get_attribute("group", 1)
    return call.emit(f"conv{weight.rank - 2}d", x, *weights, stride, padding, dilation, groups)


def conv_transpose(call: NodeContext) -> OnnxValue:
    """Translate ConvTranspose. Raises UnsupportedOp when the padding is not equal and explicit."""
    x = call.input(0)
    weight = call.input(1)
    stride, dilation, pads = window_settings(call, weight.shape[2:], x)
    automatic = call.get_attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    unequal = any(low != high for low, high in pads)
    if automatic or unequal or call.get_attribute("output_shape"):
        raise call.unsupported_error("only equal explicit padding is known")
    weights = call.layer_weights(weight, call.optional_input(2))
    padding = tuple(low for low, _ in pads)
    extra = tuple(call.get_attribute("output_padding", (0,) * len(stride)))
    groups = call.get_attribute("group", 1)
    ops = {3: "conv_transpose1d", 4: "conv_transpose2d.input", 5: "conv_transpose3d.input"}
    return call.emit(ops[weight.rank], x, *weights, stride, padding, extra, groups, dilation)


def max_pool(call: NodeContext) -> OnnxValue:
    """Translate MaxPool. Raises UnsupportedOp when indices are written, too."""
    x = call.input(0)
    kernel = tuple(call.get_attribute("kernel_shape"))
    if any(call.node.output[1:2]):
        raise call.unsupported_error("it also writes indices")
    stride, dilation, pads = window_settings(call, kernel, x)
    up = bool(call.get_attribute("ceil_mode", 0))
    call.builder.drops_windows |= up and drops_windows(x, kernel, stride, dilation, pads)
    if up and not fits_pytorch(pads, half(kernel)):
        # PyTorch would not know where the padding of another operator begins.
        pads, up = floor_windows(x, kernel, stride, dilation, pads), False
    x, padding = pad_unequal_sides(call, x, pads, -inf, half(kernel))
    return call.emit(f"max_pool{len(kernel)}d", x, kernel, stride, padding, dilation, up)


def half(kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return the largest padding that PyTorch's pools accept."""
    return tuple(k // 2 for k in kernel)


def average_pool(call: NodeContext) -> OnnxValue:
    """Translate AveragePool; where unequal padding does not count, by the share of real pixels.

    Raises UnsupportedOp when PyTorch has no such pooling.
    """
    x = call.input(0)
    kernel = tuple(call.get_attribute("kernel_shape"))
    stride, dilation, pads = window_settings(call, kernel, x)
    if any(d != 1 for d in dilation):
        raise call.unsupported_error(f"dilation {list(dilation)}")
    op = f"avg_pool{len(kernel)}d"
    counted = bool(call.get_attribute("count_include_pad", 0))
    up = bool(call.get_attribute("ceil_mode", 0))
    call.builder.drops_windows |= up and drops_windows(x, kernel, stride, dilation, pads)
    if up and not fits_pytorch(pads, half(kernel)):
        if counted:
            raise call.unsupported_error("unequal padding together with ceil_mode")
        pads, up = floor_windows(x, kernel, stride, dilation, pads), False
    wide, padding = pad_unequal_sides(call, x, pads, 0.0, half(kernel))
    if wide is x or counted:
        return call.emit(op, wide, kernel, stride, padding, up, counted)
    ones = call.builder.add_constant(torch.ones(1, 1, *x.shape[2:]))
    real = call.emit("constant_pad_nd", ones, flat_pads(pads), 0.0)
    share = call.emit("reciprocal", call.emit(op, real, kernel, stride, padding, up, True))
    return call.emit("mul.Tensor", call.emit(op, wide, kernel, stride, padding, up, True), share)


def global_pool(name: str) -> TranslationRule:
    """Return the rule of a pooling over the whole map."""

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        if x.rank == 4 and name == "avg":
            return call.emit("adaptive_avg_pool2d", x, (1, 1))
        return call.emit("mean.dim" if name == "avg" else "amax", x, tuple(range(2, x.rank)), True)

    return rule


WINDOW_RULES: dict[str, TranslationRule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("avg"),
    "GlobalMaxPool": global_pool("max"),
}
