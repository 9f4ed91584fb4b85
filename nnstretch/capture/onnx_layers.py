"""ONNX operators with weights or windows: convolution, pooling, normalisation, products, resizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, prod

import torch

from nnstretch.capture.onnx_call import Call
from nnstretch.capture.onnx_walk import Value
from nnstretch.graph import Ref

Rule = Callable[[Call], Value | tuple[Value, ...]]
LOW_HIGH = tuple[tuple[int, int], ...]
"""Padding before and after each pixel dimension."""


def windows(call: Call, kernel: tuple[int, ...], x: Value) -> tuple[tuple[int, ...], tuple[int, ...], LOW_HIGH]:
    """Stride, dilation and padding, with `auto_pad` resolved at this input size."""
    n = len(kernel)
    stride = tuple(call.attr("strides", (1,) * n))
    dilation = tuple(call.attr("dilations", (1,) * n))
    auto = call.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = tuple(call.attr("pads", (0,) * 2 * n)) if auto == "NOTSET" else (0,) * 2 * n
        return stride, dilation, tuple(zip(pads[:n], pads[n:], strict=True))
    found = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True):
        total = max(0, (ceil(size / s) - 1) * s + (k - 1) * d + 1 - size)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return stride, dilation, tuple(found)


def padded(call: Call, x: Value, pads: LOW_HIGH, value: float, largest: tuple[int, ...] | None = None) -> tuple[Value, tuple[int, ...]]:
    """The input, and the padding a PyTorch operator can do itself; padding of unequal sides is done before."""
    if all(low == high for low, high in pads) and all(largest is None or p[0] <= m for p, m in zip(pads, largest or (), strict=False)):
        return x, tuple(low for low, _ in pads)
    flat = [side for pair in reversed(pads) for side in pair]
    return call.emit("constant_pad_nd", x, flat, value), (0,) * len(pads)


def conv(call: Call) -> Value:
    x, weight, bias = call.input(0), call.input(1), call.optional(2)
    if not weight.constant or weight.rank not in (3, 4, 5):
        raise call.refuse("its filters are computed from the input")
    stride, dilation, pads = windows(call, weight.shape[2:], x)
    x, padding = padded(call, x, pads, 0.0)
    weight, bias = call.walker.layer_weights(call.path(weight), {"weight": weight, "bias": bias})  # type: ignore[assignment]
    op = f"conv{weight.rank - 2}d"
    return call.emit(op, x, weight, bias, stride, padding, dilation, call.attr("group", 1))


def conv_transpose(call: Call) -> Value:
    x, weight, bias = call.input(0), call.input(1), call.optional(2)
    stride, dilation, pads = windows(call, weight.shape[2:], x)
    if call.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or call.attr("output_shape") or any(a != b for a, b in pads):
        raise call.refuse("only equal explicit padding is known")
    weight, bias = call.walker.layer_weights(call.path(weight), {"weight": weight, "bias": bias})  # type: ignore[assignment]
    extra = tuple(call.attr("output_padding", (0,) * len(stride)))
    op = {3: "conv_transpose1d", 4: "conv_transpose2d.input", 5: "conv_transpose3d.input"}[weight.rank]
    return call.emit(op, x, weight, bias, stride, tuple(a for a, _ in pads), extra, call.attr("group", 1), dilation)


def max_pool(call: Call) -> Value:
    x, kernel = call.input(0), tuple(call.attr("kernel_shape"))
    if len(call.node.output) > 1 and call.node.output[1]:
        raise call.refuse("it also writes indices")
    stride, dilation, pads = windows(call, kernel, x)
    x, padding = padded(call, x, pads, -inf, tuple(k // 2 for k in kernel))
    return call.emit(f"max_pool{len(kernel)}d", x, kernel, stride, padding, dilation, bool(call.attr("ceil_mode", 0)))


def average_pool(call: Call) -> Value:
    """Unequal padding that does not count is corrected by a map of how much of each window is real."""
    x, kernel = call.input(0), tuple(call.attr("kernel_shape"))
    stride, dilation, pads = windows(call, kernel, x)
    if any(d != 1 for d in dilation):
        raise call.refuse(f"dilation {list(dilation)}")
    op, counted, up = f"avg_pool{len(kernel)}d", bool(call.attr("count_include_pad", 0)), bool(call.attr("ceil_mode", 0))
    wide, padding = padded(call, x, pads, 0.0, tuple(k // 2 for k in kernel))
    if wide is x or counted:
        if wide is not x and up:
            raise call.refuse("unequal padding together with ceil_mode")
        return call.emit(op, wide, kernel, stride, padding, up, counted)
    ones = call.emit("constant_pad_nd", call.walker.constant(torch.ones(1, 1, *x.shape[2:])), [s for p in reversed(pads) for s in p], 0.0)
    share = call.emit("reciprocal", call.emit(op, ones, kernel, stride, padding, up, True))
    return call.emit("mul.Tensor", call.emit(op, wide, kernel, stride, padding, up, True), share)


def global_pool(name: str) -> Rule:
    def rule(call: Call) -> Value:
        x = call.input(0)
        if x.rank == 4 and name == "avg":
            return call.emit("adaptive_avg_pool2d", x, (1, 1))
        return call.emit("mean.dim" if name == "avg" else "amax", x, tuple(range(2, x.rank)), True)

    return rule


def batch_norm(call: Call) -> Value:
    x = call.input(0)
    if call.attr("training_mode", 0) or not call.attr("is_test", 1) or any(name for name in call.node.output[1:]):
        raise call.refuse("it is in training mode, export the network in evaluation mode")
    roles = dict(zip(("weight", "bias", "running_mean", "running_var"), (call.input(i) for i in range(1, 5)), strict=True))
    weights = call.walker.layer_weights(call.path(roles["weight"]), roles)
    return call.emit("batch_norm", x, *weights, False, 1 - call.attr("momentum", 0.9), call.attr("epsilon", 1e-5), False)


def instance_norm(call: Call) -> Value:
    weight, bias = call.walker.layer_weights(call.path(), {"weight": call.input(1), "bias": call.input(2)})
    return call.emit("instance_norm", call.input(0), weight, bias, None, None, True, 0.0, call.attr("epsilon", 1e-5), False)


def layer_norm(call: Call) -> Value:
    x, axis = call.input(0), call.attr("axis", -1)
    shape = x.shape[axis % x.rank :]
    if any(name for name in call.node.output[1:]):
        raise call.refuse("it also writes mean and deviation")
    scale, shift = call.input(1), call.optional(2)
    roles = {"weight": full(call, scale, shape), "bias": None if shift is None else full(call, shift, shape)}
    weight, bias = call.walker.layer_weights(call.path(scale), roles)
    return call.emit("layer_norm", x, shape, weight, bias, call.attr("epsilon", 1e-5), False)


def full(call: Call, value: Value, shape: tuple[int, ...]) -> Value:
    """A parameter in the very shape PyTorch wants it."""
    return value if value.shape == shape or not value.constant else call.emit("clone", call.emit("expand", value, shape))


def group_norm(call: Call) -> Value:
    x, groups = call.input(0), call.attr("num_groups")
    roles = {}
    for i, role in ((1, "weight"), (2, "bias")):
        value = call.input(i)
        if value.shape == (groups,) and groups != x.shape[1]:
            value = call.emit("repeat_interleave.self_int", value, x.shape[1] // groups)
        roles[role] = value
    weight, bias = call.walker.layer_weights(call.path(roles["weight"]), roles)
    return call.emit("group_norm", x, groups, weight, bias, call.attr("epsilon", 1e-5), False)


def gemm(call: Call) -> Value:
    """alpha * A B + beta * C, with both factors folded into the constants."""
    x, weight, bias = call.input(0), call.input(1), call.optional(2)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    x = call.emit("permute", x, (1, 0)) if call.attr("transA", 0) else x
    if not weight.constant or (bias is not None and not bias.constant):
        right = call.emit("permute", weight, (1, 0)) if call.attr("transB", 0) else weight
        y = call.emit("matmul", x, right)
        y = y if alpha == 1 else call.emit("mul.Tensor", y, alpha)
        return y if bias is None else call.emit("add.Tensor", y, bias if beta == 1 else call.emit("mul.Tensor", bias, beta))
    weight = weight if call.attr("transB", 0) else transposed(call, weight)
    weight = weight if alpha == 1 else call.emit("mul.Tensor", weight, alpha)
    if bias is not None:
        bias = bias if beta == 1 else call.emit("mul.Tensor", bias, beta)
        bias = full(call, call.emit("flatten.using_ints", bias), weight.shape[:1]) if elements_in_row(bias) else bias
    if bias is not None and bias.rank != 1:
        return call.emit("add.Tensor", linear(call, x, weight, None), bias)
    return linear(call, x, weight, bias)


def elements_in_row(bias: Value) -> bool:
    return prod(bias.shape[:-1]) == 1


def transposed(call: Call, weight: Value) -> Value:
    found = call.walker.transposed
    key = id(weight.data)
    if key not in found:
        found[key] = call.emit("contiguous", call.emit("permute", weight, (1, 0)))
    return found[key]


def linear(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    named = call.walker.layer_weights(call.path(weight), {"weight": weight, "bias": bias})
    return call.emit("linear", x, *named)


def matmul(call: Call) -> Value:
    x, y = call.input(0), call.input(1)
    if y.constant and y.rank == 2 and not x.constant:
        return linear(call, x, transposed(call, y), None)
    return call.emit("matmul", x, y)


def add_bias(call: Call, x: Value, bias: Value) -> Value | None:
    """A bias that the file adds behind a linear layer or a convolution goes into it; None where it is no bias."""
    walker = call.walker
    node = walker.nodes.get(x.name or "")
    source = next((n for n in call.node.input if walker.values.get(n) is x), "")
    if node is None or node.kind not in ("linear", "conv2d") or node.args[2] is not None:
        return None
    if walker.readers[source] != 1 or not bias.constant:
        return None
    channel = x.rank - 1 if node.kind == "linear" else 1
    aligned = (1,) * (x.rank - bias.rank) + bias.shape
    if bias.rank > x.rank or any(d != (x.shape[channel] if i == channel else 1) for i, d in enumerate(aligned)):
        return None
    assert isinstance(node.args[1], Ref)
    path = node.args[1].name.rpartition(".")[0]
    name = walker.add_weight(f"{path}.bias" if path else "bias", bias.data.flatten(), trainable=True)
    value = replace(bias, name=name, probes=tuple(p.flatten() for p in bias.probes))
    work = node.macs + node.output.elements
    walker.nodes[node.name] = replace(node, args=(*node.args[:2], walker.reference(value), *node.args[3:]), macs=work)
    return x


def resize(call: Call) -> Value:
    """Nearest and bilinear enlargement of pixels, in the coordinate conventions that PyTorch shares."""
    x = call.input(0)
    mode, how = call.attr("mode", "nearest"), call.attr("coordinate_transformation_mode", "half_pixel")
    how = "asymmetric" if call.node.op_type == "Upsample" or call.opset < 11 else how
    size, scales = target_size(call, x)
    if x.rank != 4 or size[:2] != x.shape[:2]:
        raise call.refuse(f"from {list(x.shape)} to {list(size)}, only the last two of four dimensions may change")
    whole = all(s % p == 0 for s, p in zip(size[2:], x.shape[2:], strict=True))
    rounding = call.attr("nearest_mode", "round_prefer_floor")
    if mode == "nearest" and ((how == "asymmetric" and rounding == "floor") or call.opset < 11 or whole):
        return call.emit("upsample_nearest2d.vec", x, None, scales) if scales else call.emit("upsample_nearest2d.vec", x, size[2:], None)
    if mode == "linear" and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = how == "align_corners"
        return call.emit("upsample_bilinear2d.vec", x, None if scales else size[2:], corners, scales or None)
    raise call.refuse(f"mode {mode}, {how}, {rounding} from {list(x.shape)} to {list(size)}")


def target_size(call: Call, x: Value) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Output shape at the file's batch, and the pixel scales where the file gives scales."""
    given, sizes = call.optional(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2), call.optional(3)
    factors = call.known(given).probes[0].tolist() if given is not None and given.probes[0].numel() else call.attr("scales")
    if factors:
        return tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True)), tuple(float(f) for f in factors[2:])
    if sizes is None or call.attr("axes"):
        raise call.refuse("neither scales nor sizes of all dimensions are given")
    return tuple(int(d) for d in call.known(sizes).probes[0].tolist()), ()


LAYERS: dict[str, Rule] = {
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
