"""Chains of kernels -> one eager PyTorch module with random weights, operator by operator as a
network calls them.

What moves data is followed by the copy that a view puts off (`permute`, `transpose`); what only
selects is a view and costs its call (`chunk`, `split`, `slice`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isqrt, prod

import torch
import torch.nn.functional as F
from torch import nn

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.backends.onnx_operators import axis_of, inputs_of, padding, permutation

Run = Callable[..., torch.Tensor]
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
NORMS = {"batch_norm": nn.BatchNorm2d, "layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


@dataclass(frozen=True, slots=True)
class EagerCall:
    """One eager call on the value before it and on further inputs of the chain."""

    run: Run
    extra: int = 0
    """Inputs it reads besides the value before it."""


class EagerChain(nn.Module):
    """Reads the inputs of its first kernel, then what each further one reads besides the value
    before it.
    """

    def __init__(self, calls: Sequence[EagerCall]) -> None:
        super().__init__()
        self.calls = [(call.run, call.extra) for call in calls]
        self.weighted = nn.ModuleList(call.run for call in calls if isinstance(call.run, nn.Module))

    def forward(self, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Run the chain of kernels."""
        inputs = iter(others)
        for run, extra in self.calls:
            value = run(value, *islice(inputs, extra))
        return value


def build(chain: Sequence[Kernel]) -> EagerChain:
    """Build a kernel's module. Raises UnsupportedOp, naming the kernel, for a kind that has no
    eager form here.
    """
    return EagerChain([call for kernel in chain for call in calls_of(kernel)]).eval()


def shapes_of(chain: Sequence[Kernel]) -> list[tuple[int, ...]]:
    """Return the shapes that the module of a chain reads."""
    return [
        shape
        for position, kernel in enumerate(chain)
        for i, shape in enumerate(inputs_of(kernel))
        if i or not position
    ]


def calls_of(kernel: Kernel) -> list[EagerCall]:
    """Return the eager calls of a kernel: its main operator and those fused to it.

    Raises UnsupportedOp when the kind has no builder.
    """
    if kernel.kind not in BUILDERS:
        raise unsupported(kernel, f"known are {', '.join(BUILDERS)}")
    operands = len(inputs_of(kernel)) - kernel.epilogue.count("add")
    calls = [EagerCall(BUILDERS[kernel.kind](kernel), operands - 1)]
    for op in kernel.epilogue:
        calls.append(
            EagerCall(torch.add, 1) if op == "add" else EagerCall(pick(ACTIVATIONS, op, kernel))
        )
    return calls


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
    if len(inputs_of(kernel)[0]) != 4:
        raise unsupported(kernel, f"it must be over maps, not {inputs_of(kernel)[0]}")
    top, left_pad = padding(kernel)[:2]
    return nn.Conv2d(
        kernel.cin, kernel.cout, kernel.kernel, kernel.stride, (top, left_pad), groups=kernel.groups
    )


def linear(kernel: Kernel) -> Run:
    """Return a linear layer."""
    return nn.Linear(kernel.cin, kernel.cout)


def pool(kernel: Kernel) -> Run:
    """Return a pooling."""
    if kernel.op.startswith("adaptive") and len(kernel.shape_out) == 4:
        return partial(
            F.adaptive_max_pool2d if "max" in kernel.op else F.adaptive_avg_pool2d,
            output_size=kernel.shape_out[2:],
        )
    known: dict[str, Run] = {
        "max_pool2d": F.max_pool2d,
        "max_pool2d_with_indices": F.max_pool2d,
        "avg_pool2d": F.avg_pool2d,
    }
    window = min(kernel.kernel, inputs_of(kernel)[0][-1])
    return partial(
        pick(known, kernel.op, kernel),
        kernel_size=window,
        stride=kernel.stride,
        padding=tuple(padding(kernel)[:2]),
    )


def gap(kernel: Kernel) -> Run:
    """Return a mean over pixels."""
    if kernel.op.startswith("adaptive"):
        return partial(
            F.adaptive_max_pool2d if "max" in kernel.op else F.adaptive_avg_pool2d, output_size=1
        )
    known: dict[str, Run] = {
        "mean": torch.mean,
        "sum": torch.sum,
        "amax": torch.amax,
        "linalg_vector_norm": torch.linalg.vector_norm,
    }
    dims, kept = reduced(inputs_of(kernel)[0], kernel.shape_out)
    return partial(pick(known, kernel.op or "mean", kernel), dim=dims, keepdim=kept)


def reduced(shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return axes that are reduced away, and whether they stay with one element.

    Those behind the channels where the shapes do not tell.
    """
    if len(out) == len(shape):
        return (
            tuple(i for i, (a, b) in enumerate(zip(shape, out, strict=True)) if a != b)
            or tuple(range(2, len(shape))),
            True,
        )
    dims, remaining = [], list(out)
    for axis, size in enumerate(shape):
        if remaining and remaining[0] == size:
            remaining.pop(0)
        else:
            dims.append(axis)
    return tuple(dims), False


def binary(kernel: Kernel) -> Run:
    """Return an operator on two tensors, or on a tensor and a number."""
    run = pick(BINARY, kernel.op or kernel.kind, kernel)
    operands = len(inputs_of(kernel)) - kernel.epilogue.count("add")
    return run if operands > 1 else partial(second, run)


def second(run: Run, value: torch.Tensor) -> torch.Tensor:
    """Call a binary operator with a number as second operand."""
    return run(value, 1.5)


def concat(kernel: Kernel) -> Run:
    """Return a concatenation."""
    joined, axis = (torch.stack if kernel.op == "stack" else torch.cat), axis_of(kernel)
    return lambda *values: joined(values, axis)


def activation(kernel: Kernel) -> Run:
    """Return an activation."""
    return nn.PReLU(kernel.cin) if kernel.op == "prelu" else pick(ACTIVATIONS, kernel.op, kernel)


def norm(kernel: Kernel) -> Run:
    """Return a normalization. Raises UnsupportedOp when the operator has no builder."""
    if kernel.op == "linalg_vector_norm":
        return gap(kernel)
    if kernel.op not in NORMS:
        raise unsupported(kernel, f"known are {', '.join((*NORMS, 'linalg_vector_norm'))}")
    return NORMS[kernel.op](kernel.cin if kernel.op == "batch_norm" else inputs_of(kernel)[0][-1])


def softmax(kernel: Kernel) -> Run:
    """Return a softmax over the last axis."""
    return partial(torch.log_softmax if kernel.op == "log_softmax" else torch.softmax, dim=-1)


def matmul(kernel: Kernel) -> Run:
    """Return a product of two computed matrices."""
    return pick(PRODUCTS, kernel.op, kernel)


def reshape(kernel: Kernel) -> Run:
    """Return a movement of data. Raises UnsupportedOp when the operator has no builder."""
    shape, out = inputs_of(kernel)[0], kernel.shape_out
    axis = next(
        (i for i, (a, b) in enumerate(zip(shape, out, strict=False)) if a != b), len(shape) - 1
    )
    known: dict[str, Callable[[], Run]] = {
        **dict.fromkeys(("permute", "transpose", "t"), lambda: copied(permutation(shape, out))),
        **dict.fromkeys(
            ("chunk", "split", "split_with_sizes"),
            lambda: lambda x: torch.split(x, out[axis], axis)[0],
        ),
        **dict.fromkeys(("pad", "constant_pad_nd"), lambda: partial(F.pad, pad=grown(shape, out))),
        "unbind": lambda: lambda x: torch.unbind(x, axis)[0],
        "select": lambda: lambda x: torch.select(x, axis, 0),
        "slice": lambda: lambda x: torch.narrow(x, axis, 0, out[axis]),
        "roll": lambda: partial(torch.roll, shifts=(shape[1] // 2, shape[2] // 2), dims=(1, 2)),
        "flip": lambda: partial(torch.flip, dims=(-1,)),
        "channel_shuffle": lambda: partial(F.channel_shuffle, groups=2),
        "pixel_shuffle": lambda: partial(F.pixel_shuffle, upscale_factor=isqrt(shape[1] // out[1])),
        "pixel_unshuffle": lambda: partial(
            F.pixel_unshuffle, downscale_factor=isqrt(out[1] // shape[1])
        ),
        "upsample_nearest2d": lambda: partial(F.interpolate, size=out[2:]),
    }
    if kernel.op not in known or len(out) < len(shape) - 1:
        raise unsupported(kernel, f"known are {', '.join(known)}")
    return known[kernel.op]()


def copied(order: list[int]) -> Run:
    """Return a permutation that copies."""
    return lambda x: x.permute(order).contiguous()


def grown(shape: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    """Return padding as `F.pad` wants it: the last axis first, both ends of each."""
    more = [b - a for a, b in zip(shape, out, strict=True)]
    return [end for size in reversed(more) for end in (size // 2, size - size // 2)]


def writes(kernel: Kernel, value: torch.Tensor) -> bool:
    """Return whether a value has the size that the kernel is described with."""
    return not kernel.shape_out or value.numel() == prod(kernel.shape_out)


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
