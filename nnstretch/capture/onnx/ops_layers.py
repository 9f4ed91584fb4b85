"""ONNX operators with weights or windows.

Convolution, pooling, normalisation, products, resizing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, prod

import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.translation_context import NodeContext
from nnstretch.graph import ValueRef

TranslationRule = Callable[[NodeContext], OnnxValue | tuple[OnnxValue, ...]]
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
        pads = tuple(call.get_attribute("pads", (0,) * 2 * n)) if auto == "NOTSET" else (0,) * 2 * n
        return stride, dilation, tuple(zip(pads[:n], pads[n:], strict=True))
    sizes = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True):
        total = max(0, (ceil(size / s) - 1) * s + (k - 1) * d + 1 - size)
        small, large = total // 2, total - total // 2
        sizes.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return stride, dilation, tuple(sizes)


def pad_unequal_sides(
    call: NodeContext,
    x: OnnxValue,
    pads: PadPairs,
    value: float,
    largest: tuple[int, ...] | None = None,
) -> tuple[OnnxValue, tuple[int, ...]]:
    """Return the input, and the padding a PyTorch operator can do itself.

    Padding of unequal sides is done before.
    """
    if all(low == high for low, high in pads) and all(
        largest is None or p[0] <= m for p, m in zip(pads, largest or (), strict=False)
    ):
        return x, tuple(low for low, _ in pads)
    flat = [side for pair in reversed(pads) for side in pair]
    return call.emit("constant_pad_nd", x, flat, value), (0,) * len(pads)


def conv(call: NodeContext) -> OnnxValue:
    """Translate Conv of one, two or three dimensions.

    Raises UnsupportedOp when the filters are computed from the input.
    """
    x, weight, bias = call.input(0), call.input(1), call.optional_input(2)
    if not weight.constant or weight.rank not in (3, 4, 5):
        raise call.unsupported_error("its filters are computed from the input")
    stride, dilation, pads = window_settings(call, weight.shape[2:], x)
    x, padding = pad_unequal_sides(call, x, pads, 0.0)
    weight, bias = call.builder.layer_weights(  # type: ignore[assignment]
        call.layer_path(weight), {"weight": weight, "bias": bias}
    )  # type: ignore[assignment]
    op = f"conv{weight.rank - 2}d"
    return call.emit(op, x, weight, bias, stride, padding, dilation, call.get_attribute("group", 1))


def conv_transpose(call: NodeContext) -> OnnxValue:
    """Translate ConvTranspose. Raises UnsupportedOp when the padding is not equal and explicit."""
    x, weight, bias = call.input(0), call.input(1), call.optional_input(2)
    stride, dilation, pads = window_settings(call, weight.shape[2:], x)
    if (
        call.get_attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        or call.get_attribute("output_shape")
        or any(a != b for a, b in pads)
    ):
        raise call.unsupported_error("only equal explicit padding is known")
    weight, bias = call.builder.layer_weights(  # type: ignore[assignment]
        call.layer_path(weight), {"weight": weight, "bias": bias}
    )  # type: ignore[assignment]
    extra = tuple(call.get_attribute("output_padding", (0,) * len(stride)))
    op = {3: "conv_transpose1d", 4: "conv_transpose2d.input", 5: "conv_transpose3d.input"}[
        weight.rank
    ]
    return call.emit(
        op,
        x,
        weight,
        bias,
        stride,
        tuple(a for a, _ in pads),
        extra,
        call.get_attribute("group", 1),
        dilation,
    )


def max_pool(call: NodeContext) -> OnnxValue:
    """Translate MaxPool. Raises UnsupportedOp when indices are written, too."""
    x, kernel = call.input(0), tuple(call.get_attribute("kernel_shape"))
    if len(call.node.output) > 1 and call.node.output[1]:
        raise call.unsupported_error("it also writes indices")
    stride, dilation, pads = window_settings(call, kernel, x)
    x, padding = pad_unequal_sides(call, x, pads, -inf, tuple(k // 2 for k in kernel))
    return call.emit(
        f"max_pool{len(kernel)}d",
        x,
        kernel,
        stride,
        padding,
        dilation,
        bool(call.get_attribute("ceil_mode", 0)),
    )


def average_pool(call: NodeContext) -> OnnxValue:
    """Translate AveragePool; unequal padding that does not count is corrected by a map of how much
    of each window is real.

    Raises UnsupportedOp when PyTorch has no such pooling.
    """
    x, kernel = call.input(0), tuple(call.get_attribute("kernel_shape"))
    stride, dilation, pads = window_settings(call, kernel, x)
    if any(d != 1 for d in dilation):
        raise call.unsupported_error(f"dilation {list(dilation)}")
    op, counted, up = (
        f"avg_pool{len(kernel)}d",
        bool(call.get_attribute("count_include_pad", 0)),
        bool(call.get_attribute("ceil_mode", 0)),
    )
    wide, padding = pad_unequal_sides(call, x, pads, 0.0, tuple(k // 2 for k in kernel))
    if wide is x or counted:
        if wide is not x and up:
            raise call.unsupported_error("unequal padding together with ceil_mode")
        return call.emit(op, wide, kernel, stride, padding, up, counted)
    ones = call.emit(
        "constant_pad_nd",
        call.builder.add_constant(torch.ones(1, 1, *x.shape[2:])),
        [s for p in reversed(pads) for s in p],
        0.0,
    )
    share = call.emit("reciprocal", call.emit(op, ones, kernel, stride, padding, up, True))
    return call.emit("mul.Tensor", call.emit(op, wide, kernel, stride, padding, up, True), share)


def global_pool(name: str) -> TranslationRule:
    """Return the rule of a pooling over the whole map."""

    def rule(call: NodeContext) -> OnnxValue:
        x = call.input(0)
        if x.rank == 4 and name == "avg":
            return call.emit("adaptive_avg_pool2d", x, (1, 1))
        return call.emit("mean.dim" if name == "avg" else "amax", x, tuple(range(2, x.rank)), True)

    return rule


def batch_norm(call: NodeContext) -> OnnxValue:
    """Translate BatchNormalization. Raises UnsupportedOp when it is in training mode."""
    x = call.input(0)
    if (
        call.get_attribute("training_mode", 0)
        or not call.get_attribute("is_test", 1)
        or any(name for name in call.node.output[1:])
    ):
        raise call.unsupported_error(
            "it is in training mode, export the network in evaluation mode"
        )
    roles = dict(
        zip(
            ("weight", "bias", "running_mean", "running_var"),
            (call.input(i) for i in range(1, 5)),
            strict=True,
        )
    )
    weights = call.builder.layer_weights(call.layer_path(roles["weight"]), roles)
    return call.emit(
        "batch_norm",
        x,
        *weights,
        False,
        1 - call.get_attribute("momentum", 0.9),
        call.get_attribute("epsilon", 1e-5),
        False,
    )


def instance_norm(call: NodeContext) -> OnnxValue:
    """Translate InstanceNormalization."""
    weight, bias = call.builder.layer_weights(
        call.layer_path(), {"weight": call.input(1), "bias": call.input(2)}
    )
    return call.emit(
        "instance_norm",
        call.input(0),
        weight,
        bias,
        None,
        None,
        True,
        0.0,
        call.get_attribute("epsilon", 1e-5),
        False,
    )


def layer_norm(call: NodeContext) -> OnnxValue:
    """Translate LayerNormalization.

    Raises UnsupportedOp when mean and deviation are written, too.
    """
    x, axis = call.input(0), call.get_attribute("axis", -1)
    shape = x.shape[axis % x.rank :]
    if any(name for name in call.node.output[1:]):
        raise call.unsupported_error("it also writes mean and deviation")
    scale, shift = call.input(1), call.optional_input(2)
    roles = {
        "weight": expand_parameter(call, scale, shape),
        "bias": None if shift is None else expand_parameter(call, shift, shape),
    }
    weight, bias = call.builder.layer_weights(call.layer_path(scale), roles)
    return call.emit(
        "layer_norm", x, shape, weight, bias, call.get_attribute("epsilon", 1e-5), False
    )


def expand_parameter(call: NodeContext, value: OnnxValue, shape: tuple[int, ...]) -> OnnxValue:
    """Return a parameter in the very shape PyTorch wants it."""
    return (
        value
        if value.shape == shape or not value.constant
        else call.emit("clone", call.emit("expand", value, shape))
    )


def group_norm(call: NodeContext) -> OnnxValue:
    """Translate GroupNormalization."""
    x, groups = call.input(0), call.get_attribute("num_groups")
    roles = {}
    for i, role in ((1, "weight"), (2, "bias")):
        value = call.input(i)
        if value.shape == (groups,) and groups != x.shape[1]:
            value = call.emit("repeat_interleave.self_int", value, x.shape[1] // groups)
        roles[role] = value
    weight, bias = call.builder.layer_weights(call.layer_path(roles["weight"]), roles)
    return call.emit(
        "group_norm", x, groups, weight, bias, call.get_attribute("epsilon", 1e-5), False
    )


def gemm(call: NodeContext) -> OnnxValue:
    """Translate Gemm: alpha * A B + beta * C, with both factors folded into the constants."""
    x, weight, bias = call.input(0), call.input(1), call.optional_input(2)
    alpha, beta = call.get_attribute("alpha", 1.0), call.get_attribute("beta", 1.0)
    x = call.emit("permute", x, (1, 0)) if call.get_attribute("transA", 0) else x
    if not weight.constant or (bias is not None and not bias.constant):
        right = call.emit("permute", weight, (1, 0)) if call.get_attribute("transB", 0) else weight
        y = call.emit("matmul", x, right)
        y = y if alpha == 1 else call.emit("mul.Tensor", y, alpha)
        return (
            y
            if bias is None
            else call.emit(
                "add.Tensor", y, bias if beta == 1 else call.emit("mul.Tensor", bias, beta)
            )
        )
    weight = weight if call.get_attribute("transB", 0) else transpose_weight(call, weight)
    weight = weight if alpha == 1 else call.emit("mul.Tensor", weight, alpha)
    if bias is not None:
        bias = bias if beta == 1 else call.emit("mul.Tensor", bias, beta)
        bias = (
            expand_parameter(call, call.emit("flatten.using_ints", bias), weight.shape[:1])
            if is_row_vector(bias)
            else bias
        )
    if bias is not None and bias.rank != 1:
        return call.emit("add.Tensor", emit_linear(call, x, weight, None), bias)
    return emit_linear(call, x, weight, bias)


def is_row_vector(bias: OnnxValue) -> bool:
    """Return whether all elements of a bias lie along its last axis."""
    return prod(bias.shape[:-1]) == 1


def transpose_weight(call: NodeContext, weight: OnnxValue) -> OnnxValue:
    """Return the transposed weight, the same one for every reader."""
    transposed = call.builder.transposed_weights
    key = id(weight.constant_data)
    if key not in transposed:
        transposed[key] = call.emit("contiguous", call.emit("permute", weight, (1, 0)))
    return transposed[key]


def emit_linear(
    call: NodeContext, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None
) -> OnnxValue:
    """Emit a linear layer."""
    named = call.builder.layer_weights(call.layer_path(weight), {"weight": weight, "bias": bias})
    return call.emit("linear", x, *named)


def matmul(call: NodeContext) -> OnnxValue:
    """Translate MatMul; with a constant matrix it is a linear layer."""
    x, y = call.input(0), call.input(1)
    if y.constant and y.rank == 2 and not x.constant:
        return emit_linear(call, x, transpose_weight(call, y), None)
    return call.emit("matmul", x, y)


def add_bias(call: NodeContext, x: OnnxValue, bias: OnnxValue) -> OnnxValue | None:
    """Fold a bias that the file adds behind a linear layer or a convolution into it.

    None where it is no bias.
    """
    walker = call.builder
    node = walker.nodes.get(x.name or "")
    source = next((n for n in call.node.input if walker.values.get(n) is x), "")
    if node is None or node.kind not in ("linear", "conv2d") or node.args[2] is not None:
        return None
    if walker.readers[source] != 1 or not bias.constant:
        return None
    channel = x.rank - 1 if node.kind == "linear" else 1
    aligned = (1,) * (x.rank - bias.rank) + bias.shape
    if bias.rank > x.rank or any(
        d != (x.shape[channel] if i == channel else 1) for i, d in enumerate(aligned)
    ):
        return None
    assert isinstance(node.args[1], ValueRef)
    path = node.args[1].name.rpartition(".")[0]
    name = walker.add_weight(
        f"{path}.bias" if path else "bias", bias.constant_data.flatten(), trainable=True
    )
    value = replace(bias, name=name, probes=tuple(p.flatten() for p in bias.probes))
    work = node.macs + node.output.elements
    walker.nodes[node.name] = replace(
        node, args=(*node.args[:2], walker.to_reference(value), *node.args[3:]), macs=work
    )
    return x


def resize(call: NodeContext) -> OnnxValue:
    """Translate Resize: nearest and bilinear enlargement of pixels, in the coordinate conventions
    that PyTorch shares.

    Raises UnsupportedOp when PyTorch has no such mode.
    """
    x = call.input(0)
    mode, how = (
        call.get_attribute("mode", "nearest"),
        call.get_attribute("coordinate_transformation_mode", "half_pixel"),
    )
    how = "asymmetric" if call.node.op_type == "Upsample" or call.opset < 11 else how
    size, scales = target_size(call, x)
    if x.rank != 4 or size[:2] != x.shape[:2]:
        raise call.unsupported_error(
            f"from {list(x.shape)} to {list(size)}, only the last two of four dimensions may change"
        )
    whole = all(s % p == 0 for s, p in zip(size[2:], x.shape[2:], strict=True))
    rounding = call.get_attribute("nearest_mode", "round_prefer_floor")
    if mode == "nearest" and (
        (how == "asymmetric" and rounding == "floor") or call.opset < 11 or whole
    ):
        return (
            call.emit("upsample_nearest2d.vec", x, None, scales)
            if scales
            else call.emit("upsample_nearest2d.vec", x, size[2:], None)
        )
    if mode == "linear" and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = how == "align_corners"
        return call.emit(
            "upsample_bilinear2d.vec", x, None if scales else size[2:], corners, scales or None
        )
    raise call.unsupported_error(
        f"mode {mode}, {how}, {rounding} from {list(x.shape)} to {list(size)}"
    )


def target_size(call: NodeContext, x: OnnxValue) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return output shape at the file's batch, and the pixel scales where the file gives scales.

    Raises UnsupportedOp when the file does not tell it.
    """
    scales, sizes = (
        call.optional_input(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2),
        call.optional_input(3),
    )
    factors = (
        call.require_constant(scales).probes[0].tolist()
        if scales is not None and scales.probes[0].numel()
        else call.get_attribute("scales")
    )
    if factors:
        return tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True)), tuple(
            float(f) for f in factors[2:]
        )
    if sizes is None or call.get_attribute("axes"):
        raise call.unsupported_error("neither scales nor sizes of all dimensions are given")
    return tuple(int(d) for d in call.require_constant(sizes).probes[0].tolist()), ()


LAYER_RULES: dict[str, TranslationRule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("avg"),
    "GlobalMaxPool": global_pool("max"),
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "GroupNormalization": group_norm,
    "Gemm": gemm,
    "MatMul": matmul,
    "Resize": resize,
    "Upsample": resize,
}
