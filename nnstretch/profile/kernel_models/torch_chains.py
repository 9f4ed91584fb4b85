"""Chains of kernels -> one eager PyTorch module with random weights, operator by operator as a
network calls them.

What moves data is followed by the copy that a view puts off (`permute`, `transpose`); what only
selects is a view and costs its call (`chunk`, `split`, `slice`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch
from torch import nn

from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import input_shapes, operand_count
from nnstretch.profile.kernel_models.torch_movements import Run
from nnstretch.profile.kernel_models.torch_operators import (
    ACTIVATIONS,
    BUILDERS,
    pick,
    unsupported,
)


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
    calls: list[EagerCall] = []
    for kernel in chain:
        calls += calls_of(kernel)
    return EagerChain(calls).eval()


def shapes_of(chain: Sequence[Kernel]) -> list[tuple[int, ...]]:
    """Return the shapes that the module of a chain reads."""
    shapes = list(input_shapes(chain[0]))
    for kernel in chain[1:]:
        shapes += input_shapes(kernel)[1:]
    return shapes


def calls_of(kernel: Kernel) -> list[EagerCall]:
    """Return the eager calls of a kernel: its main operator and those fused to it.

    Raises UnsupportedOp when the kind has no builder.
    """
    if kernel.kind not in BUILDERS:
        raise unsupported(kernel, f"known are {', '.join(BUILDERS)}")
    calls = [EagerCall(BUILDERS[kernel.kind](kernel), operand_count(kernel) - 1)]
    for op in kernel.epilogue:
        if op == "add":
            calls.append(EagerCall(torch.add, 1))
        else:
            calls.append(EagerCall(pick(ACTIVATIONS, op, kernel)))
    return calls


def writes(kernel: Kernel, value: torch.Tensor) -> bool:
    """Return whether a value has the size that the kernel is described with."""
    return not kernel.shape_out or value.numel() == prod(kernel.shape_out)
