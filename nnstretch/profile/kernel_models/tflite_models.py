"""Kernel -> .tflite, with the operators that litert-torch and ai-edge-quantizer emit for it in a
network.

What they emit was read off converted networks (litert-torch 0.10): convolutions keep their padding
only where TFLite's SAME or VALID says the same and get a PAD of their own elsewhere; batch norms
behind a convolution are gone; clamps are attributes of the operator before them. Shapes come in
PyTorch's order and go out as LiteRT keeps them: maps NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import WEIGHTED, Kernel
from nnstretch.profile.kernel_models.tflite_activations import CLAMPS, activation, scale_by
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder
from nnstretch.profile.kernel_models.tflite_layers import (
    concatenation,
    elementwise,
    gap,
    linear,
)
from nnstretch.profile.kernel_models.tflite_movements import add_reshape, reshape
from nnstretch.profile.kernel_models.tflite_operators import add_matmul, norm, softmax
from nnstretch.profile.kernel_models.tflite_windows import convolution, pool

FOLDED = ("scale", "shift", "batch_norm")
"""What the converter multiplies into the weights of the operator before it."""
CLAMPED = frozenset({*WEIGHTED, "add", "mul", "pool", "norm"})
"""Kinds whose last operator has a fused clamp."""


def build(chain: Sequence[Kernel], dtype: str, copies: int = 1) -> bytes:
    """Build a model of kernels that each read what the one before wrote.

    Everything else they read is an input.

    Copies run one after the other, each with weights of its own, on the same inputs. Of what a copy
    writes, one number is kept: nothing else needs the memory any more, so the next copy writes
    there, as kernels of a network do. Raises UnsupportedOp for a kernel without a TFLite form.
    """
    model = TfliteModelBuilder(dtype)
    for _ in range(copies):
        model.reread()
        value: int | None = None
        for kernel in chain:
            if not kernel.shapes_in or not kernel.shape_out:
                raise UnsupportedOp(
                    f"cannot build {kernel.kind} for LiteRT, kernel {kernel.name}, its shapes are"
                    " not known"
                )
            value = append(model, kernel, value)
        assert value is not None, "a chain has at least one kernel"
        model.outputs.append(value if copies == 1 else model.first_number(value))
    return model.bytes()


def append(model: TfliteModelBuilder, kernel: Kernel, before: int | None) -> int:
    """Append one kernel behind the value of the one before; return its own value."""
    values = inputs(model, kernel, before)
    followers = unfolded_followers(kernel)
    clamp = 0
    if kernel.kind in CLAMPED:
        clamp = take_clamp(followers)
    if kernel.kind in WEIGHTED and followers and followers[0] == "hardsigmoid":
        clamp = CLAMPS["relu6"]
    value = main(model, kernel, values, clamp)
    summands = values[1:]
    while followers:
        op = followers.pop(0)
        if op == "add":
            clamp = take_clamp(followers)
            pair = (value, summands.pop() if summands else value)
            shape = model.shape(value)
            value = model.op("ADD", pair, shape, "AddOptions", fusedActivationFunction=clamp)
        elif op == "hardsigmoid" and kernel.kind in WEIGHTED:
            value = scale_by(model, value, 1 / 6)
        else:
            value = activation(model, kernel, value, op)
    return value


def unfolded_followers(kernel: Kernel) -> list[str]:
    """Return the operators of an epilogue that the converter does not fold into weights."""
    followers = [op for op in kernel.epilogue if op != "batch_norm"]
    if kernel.kind in WEIGHTED:
        while followers and followers[0] in FOLDED:
            followers.pop(0)
    return followers


def take_clamp(followers: list[str]) -> int:
    """Take the first follower where it is a clamp; return the fused activation, 0 for none."""
    if followers and followers[0] in CLAMPS:
        return CLAMPS[followers.pop(0)]
    return 0


def inputs(model: TfliteModelBuilder, kernel: Kernel, before: int | None) -> list[int]:
    """Return a kernel's inputs: its first of the size that the kernel before wrote is that value.

    The others are read.

    Raises UnsupportedOp when no input has the size that was written.
    """
    values: list[int] = []
    for shape in kernel.shapes_in:
        wanted = kernel_shape(kernel, shape)
        if before is not None and prod(wanted) == prod(model.shape(before)):
            values.append(add_reshape(model, before, wanted))
            before = None
        else:
            values.append(model.read(wanted))
    if before is not None:
        raise UnsupportedOp(
            f"cannot chain {kernel.kind} for LiteRT, kernel {kernel.name} reads {kernel.shapes_in},"
            f" the one before it writes {model.shape(before)}"
        )
    return values


def kernel_shape(kernel: Kernel, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as LiteRT sees it.

    Maps are NCHW in PyTorch, operators along the last axis as they are.
    """
    last = kernel.kind in ("linear", "matmul", "softmax") or kernel.op in ("layer_norm", "rms_norm")
    return shape if last or len(shape) != 4 else (shape[0], shape[2], shape[3], shape[1])


def main(model: TfliteModelBuilder, kernel: Kernel, values: list[int], clamp: int) -> int:
    """Add a kernel's main operator. Raises UnsupportedOp when no rule builds it."""
    shape = kernel_shape(kernel, kernel.shape_out)
    if kernel.kind in ("conv", "gconv", "dwconv") and len(shape) == 4:
        return convolution(model, kernel, values[0], shape, clamp)
    if kernel.kind == "linear":
        return linear(model, kernel, values[0], shape, clamp)
    if kernel.kind == "pool" and len(shape) == 4:
        return pool(model, kernel, values[0], shape, clamp)
    if kernel.kind == "gap":
        return gap(model, kernel, values[0], shape)
    if kernel.kind in ("add", "mul"):
        return elementwise(model, kernel, values, shape, clamp)
    if kernel.kind == "concat" and kernel.op != "stack":
        return concatenation(model, kernel, values, shape)
    if kernel.kind == "activation":
        return activation(model, kernel, values[0], kernel.op)
    if kernel.kind == "softmax" and kernel.op != "log_softmax":
        return softmax(model, values[0])
    if kernel.kind == "norm":
        return norm(model, kernel, values[0], clamp)
    if kernel.kind == "matmul":
        return add_matmul(model, kernel, values)
    if kernel.kind == "reshape":
        return reshape(model, kernel, values[0], shape)
    raise UnsupportedOp(
        f"cannot build {kernel.kind} ({kernel.op}) for LiteRT, kernel {kernel.name}, no rule for it"
    )
