"""The example model of the slides on CEDR's translator, and what the slides say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

EXAMPLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "cedr" / "translator_example.json").read_text()
)
INPUT = (1, 3, 66, 66)


class Model(nn.Module):
    """The slides' model; its variables are theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_relu = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.linear = nn.Linear(32, 16)
        self.maxpool = nn.MaxPool2d(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the model."""
        conv1 = self.conv_relu(x)
        pool1 = self.maxpool(conv1)
        linear1 = self.linear(pool1)
        return linear1  # noqa: RET504
