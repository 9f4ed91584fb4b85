"""Layers and functions side by side, compared in C++ and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from support.cpp import CppRuntime, assert_close, outputs_in_cpp, outputs_in_torch
from torch import nn

Step = Callable[[torch.Tensor], torch.Tensor]


class Layers(nn.Module):
    """Layers side by side on one input, each an output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all layers."""
        return tuple(layer(x) for layer in self.layers)


class Steps(nn.Module):
    """Functions side by side on one input, each an output."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all functions."""
        return tuple(step(x) for step in self.steps)


def compare(runtime: CppRuntime, module: nn.Module, folder: Path, *inputs: torch.Tensor) -> None:
    """Compare C++ and PyTorch on some inputs."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            child.running_mean.uniform_(-0.5, 0.5)
            child.running_var.uniform_(0.5, 2.0)
    computed = outputs_in_cpp(runtime, module, inputs, folder)
    assert_close(computed, outputs_in_torch(module, inputs))
