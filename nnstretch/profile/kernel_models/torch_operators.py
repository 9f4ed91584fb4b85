"""Operators of kernels as eager PyTorch calls; what has none is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import (
    Shape,
    changed_axis,
    input_shapes,
    operand_count,
    pool_window,
    window_of,
    window_padding,
    window_strides,
)
from nnstretch.profile.kernel_models.torch_movements import MOVEMENTS, Run

ACTIVATIONS: dict[str, Run] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": partial(F.hardtanh, min_val=0.0, max_val=6.0),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "clamp": partial(torch.clamp, min=0.0, max=6.0),
    "clamp_min": partial(torch.clamp, min=0.0),
    "clamp_max": partial(torch.clamp, max=6.0),
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "neg": torch.neg,
    "pow": lambda x: torch.pow(x, 2.0),
    "shift": lambda x: torch.add(x, 1.5),
    "scale": lambda x: torch.mul(x, 1.5),
}
BINARY: dict[str, Run] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
}
PRODUCTS: dict[str, Run] = {
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "mm": torch.mm,
    "scaled_dot_product_attention": F.scaled_dot_product_attention,
}
POOLS: dict[str, Run] = {
    "max_pool2d": F.max_pool2d,
    "max_pool2d_with_indices": F.max_pool2d,
    "avg_pool2d": F.avg_pool2d,
}
REDUCTIONS: dict[str, Run] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "amax": torch.amax,
    "linalg_vector_norm": torch.linalg.vector_norm,
}
NORMS = {"batch_norm": nn.BatchNorm2d, "layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


def unsupported(kernel: Kernel, why: str) -> UnsupportedOp:
    """Return the error of a kernel that PyTorch cannot measure."""
    return UnsupportedOp(
        f"kind {kernel.kind!r} ({kernel.op}) cannot be measured in PyTorch, kernel {kernel.name},"
        f" {why}"
    )


def pick(known: dict[str, Run], op: str, kernel: Kernel) -> Run:
    """Return the call of an operator. Raises UnsupportedOp when it has none."""
    if op not in known:
        raise unsupported(kernel, f"operator {op!r} has no rule, known are {', '.join(known)}")
    return known[op]


def conv(kernel: Kernel) -> Run:
    """Return a convolution. Raises UnsupportedOp when it is not over maps."""
    if len(input_shapes(kernel)[0]) != 4:
        raise unsupported(kernel, f"it must be over maps, not {input_shapes(kernel)[0]}")
    window = window_of(kernel)
    rows, columns = window_padding(kernel, window)[:2]
    strides = window_strides(kernel, window)
    return nn.Conv2d(
        kernel.cin, kernel.cout, window, strides, (rows, columns), groups=kernel.groups
    )


def linear(kernel: Kernel) -> Run:
    """Return a linear layer."""
    return nn.Linear(kernel.cin, kernel.cout)


def pool(kernel: Kernel) -> Run:
    """Return a pooling."""
    if kernel.op.startswith("adaptive") and len(kernel.shape_out) == 4:
        return adaptive_pool(kernel, kernel.shape_out[2:])
    window = pool_window(kernel)
    return partial(
        pick(POOLS, kernel.op, kernel),
        kernel_size=window,
        stride=window_strides(kernel, window),
        padding=tuple(window_padding(kernel, window)[:2]),
    )


def adaptive_pool(kernel: Kernel, size: tuple[int, ...]) -> Run:
    """Return an adaptive pooling to `size` rows and columns."""
    run: Run = F.adaptive_max_pool2d if "max" in kernel.op else F.adaptive_avg_pool2d
    return partial(run, output_size=size)


def gap(kernel: Kernel) -> Run:
    """Return a mean over pixels, or another reduction."""
    if kernel.op.startswith("adaptive"):
        return adaptive_pool(kernel, (1, 1))
    dims, keeps_rank = reduced_axes(input_shapes(kernel)[0], kernel.shape_out)
    return partial(pick(REDUCTIONS, kernel.op or "mean", kernel), dim=dims, keepdim=keeps_rank)


def reduced_axes(shape: Shape, out: Shape) -> tuple[tuple[int, ...], bool]:
    """Return axes that are reduced away, and whether they stay with one element.

    Those behind the channels where the shapes do not tell.
    """
    if len(out) == len(shape):
        pairs = enumerate(zip(shape, out, strict=True))
        shorter = tuple(axis for axis, (size, size_out) in pairs if size != size_out)
        return shorter or tuple(range(2, len(shape))), True
    dims, sizes_out = [], list(out)
    for axis, size in enumerate(shape):
        if sizes_out and sizes_out[0] == size:
            sizes_out.pop(0)
        else:
            dims.append(axis)
    return tuple(dims), False


def binary(kernel: Kernel) -> Run:
    """Return an operator on two tensors, or on a tensor and a number."""
    run = pick(BINARY, kernel.op or kernel.kind, kernel)
    return run if operand_count(kernel) > 1 else lambda value: run(value, 1.5)


def concat(kernel: Kernel) -> Run:
    """Return a concatenation."""
    join = torch.stack if kernel.op == "stack" else torch.cat
    axis = changed_axis(input_shapes(kernel)[0], kernel.shape_out, default=1)
    return lambda *values: join(values, axis)


def activation(kernel: Kernel) -> Run:
    """Return an activation."""
    return nn.PReLU(kernel.cin) if kernel.op == "prelu" else pick(ACTIVATIONS, kernel.op, kernel)


def norm(kernel: Kernel) -> Run:
    """Return a normalization. Raises UnsupportedOp when the operator has no builder."""
    if kernel.op == "linalg_vector_norm":
        return gap(kernel)
    if kernel.op not in NORMS:
        raise unsupported(kernel, f"known are {', '.join((*NORMS, 'linalg_vector_norm'))}")
    width = kernel.cin if kernel.op == "batch_norm" else input_shapes(kernel)[0][-1]
    return NORMS[kernel.op](width)


def softmax(kernel: Kernel) -> Run:
    """Return a softmax over the last axis."""
    return partial(torch.log_softmax if kernel.op == "log_softmax" else torch.softmax, dim=-1)


def matmul(kernel: Kernel) -> Run:
    """Return a product of two computed matrices."""
    return pick(PRODUCTS, kernel.op, kernel)


def reshape(kernel: Kernel) -> Run:
    """Return a movement of data. Raises UnsupportedOp when the operator has no builder."""
    shape, out = input_shapes(kernel)[0], kernel.shape_out
    if kernel.op not in MOVEMENTS or len(out) < len(shape) - 1:
        raise unsupported(kernel, f"known are {', '.join(MOVEMENTS)}")
    return MOVEMENTS[kernel.op](shape, out)


BUILDERS: dict[str, Callable[[Kernel], Run]] = {
    "conv": conv,
    "gconv": conv,
    "dwconv": conv,
    "linear": linear,
    "pool": pool,
    "gap": gap,
    "add": binary,
    "mul": binary,
    "concat": concat,
    "activation": activation,
    "norm": norm,
    "softmax": softmax,
    "matmul": matmul,
    "reshape": reshape,
}
