"""Where ONNX Runtime keeps feature maps in blocks of channels.

Read off the copies that it runs around probes.
"""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.kernel import ChannelBlockedLayout, Kernel
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec

CANDIDATES = (
    "add",
    "mul",
    "batch_norm",
    "relu",
    "silu",
    "gelu",
    "sigmoid",
    "tanh",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "hardtanh",
)
BLOCKS = (4, 8, 16, 32)
SIDE = 8
Copies = Callable[[tuple[Kernel, ...]], int | None]
"""How many copies between layouts a chain makes; None where it cannot run."""


def blocked_of(copies: Copies) -> ChannelBlockedLayout | None:
    """Return the blocked layout, None where not even a wide convolution works on blocks."""
    if not copies((depthwise(64),)):
        return None
    block = next((size for size in BLOCKS if copies((grouped(size),))), BLOCKS[-1])
    align = next((size for size in (1, 2, 4, 8) if copies((depthwise(64 + size),))), block)
    kept = frozenset(op for op in CANDIDATES if keeps_layout(copies, op))
    return ChannelBlockedLayout(block, align, kept)


def keeps_layout(copies: Copies, op: str) -> bool:
    """Return whether conv, op, conv needs no more copies than conv, conv.

    The first ends in an activation, so nothing fuses.

    What else the operator reads is copied to blocks once more, by the carrier that brings it.
    """
    first = depthwise(64, ("relu",))
    kernel = lone_convolution(op, first)
    without, with_kernel = copies((first, depthwise(64))), copies((first, kernel, depthwise(64)))
    return (
        with_kernel is not None
        and without is not None
        and with_kernel == without + len(kernel.shapes_in) - 1
    )


def lone_convolution(op: str, before: Kernel) -> Kernel:
    """Return a blocked convolution that reads a plain map."""
    out = before.shape_out
    kind = {"add": "add", "mul": "mul", "batch_norm": "norm"}.get(op, "activation")
    shapes = (out, out) if op in ("add", "mul") else (out,)
    return kernel_of_spec(KernelSpec(kind, op, shapes, out), op, layout="blocked")


def depthwise(channels: int, epilogue: tuple[str, ...] = ()) -> Kernel:
    """Return a depthwise convolution with its epilogue."""
    shape = (1, channels, SIDE, SIDE)
    return kernel_of_spec(
        KernelSpec("dwconv", "conv2d", (shape,), shape, 3, 1, channels), "depthwise", epilogue
    )


def grouped(width: int) -> Kernel:
    """Return a convolution in four groups of a width."""
    shape = (1, 4 * width, SIDE, SIDE)
    return kernel_of_spec(KernelSpec("gconv", "conv2d", (shape,), shape, 3, 1, 4), "grouped")
