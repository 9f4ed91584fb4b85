"""A small detector: every cell of 8 x 8 pixels says what is there, and how far its box reaches to
each side.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

CLASSES = ("disc", "square", "star", "heart")
MIDDLE = 5
"""Layers at a quarter of the input's size.

Enough that the network takes longer than decoding its photograph.
"""
STRIDE_PX = 8
"""Side of the part of the input that a cell answers for."""
WEIGHTS = Path(__file__).with_name("weights.safetensors")


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class Detector(nn.Module):
    """Two outputs for one image.

    Scores [n, classes, h/8, w/8] before the sigmoid, and logarithms of distances [n, 4, h/8, w/8]
    from the middle of a cell to the left, top, right and bottom side of its box, in cells.
    """

    def __init__(self, classes: int = len(CLASSES)) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 16, 2), block(16, 24, 2))
        self.middle = nn.Sequential(
            block(24, 32, 1), *(block(32, 32, 1) for _ in range(MIDDLE - 1))
        )
        self.body = nn.Sequential(block(32, 48, 2), block(48, 48, 1), block(48, 48, 1))
        self.scores, self.distances = nn.Conv2d(48, classes, 1), nn.Conv2d(48, 4, 1)
        nn.init.constant_(self.scores.bias, -3.0)  # nearly every cell is empty

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(self.middle(self.stem(images)))
        return self.scores(found), self.distances(found)


def make() -> nn.Module:
    """For the command line: `detector.py:make`, weights by --weights."""
    torch.manual_seed(0)
    return Detector().eval()
