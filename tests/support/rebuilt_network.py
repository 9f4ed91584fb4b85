"""A module captured and built anew, beside what it was."""

from __future__ import annotations

from collections.abc import Callable

import torch
from support.random_networks import relative
from torch import nn

from nnstretch.capture import build, trace
from nnstretch.graph import Graph


class Of(nn.Module):
    def __init__(self, function: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer, x)


def rebuilt(module: nn.Module, x: torch.Tensor) -> tuple[Graph, float]:
    """The graph, and how far the module built from it is from the original."""
    captured = trace(module, x, "net")
    with torch.no_grad():
        return captured.graph, relative(
            module.eval()(x), build(captured.graph, captured.weights).eval()(x)
        )
