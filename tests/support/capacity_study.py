"""A small network to study, and variants that are judged without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.random_networks import Residual, conv
from torch import nn

from nnstretch.capture import capture
from nnstretch.stretch import NetworkAnalysis
from nnstretch.study.capacity.experiment import CapacityRequest
from nnstretch.train import TrainResult, load_recipe

FACTORY = """
from support.random_networks import Residual, conv
from torch import nn

def make(width=16):
    stage = [Residual(8, width, 2), Residual(width, width), Residual(width, width), Residual(width, width)]
    return nn.Sequential(conv(3, 8, stride=2), *stage, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
"""


QUICK = [
    "--data.image_px",
    "16",
    "--data.batch_images",
    "128",
    "--data.held_out",
    "0.8",
    "--trainer.threads",
    "1",
    "--trainer.precision",
    "fp32",
]


FEW = ["--depths", "1", "--widths", "0.5", "--seeds", "1"]


def net() -> nn.Module:
    stage = [Residual(8, 16, 2), Residual(16, 16), Residual(16, 16), Residual(16, 16)]
    return nn.Sequential(
        conv(3, 8, stride=2), *stage, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def stretcher_of(module: nn.Module) -> NetworkAnalysis:
    return NetworkAnalysis(capture(module, torch.zeros(1, 3, 16, 16), "net"))


def wanted_of(model: str, out: Path, epochs: int = 1, **changes: Any) -> CapacityRequest:
    recipe = load_recipe("digits", [f"model={model}", *QUICK, f"trainer.max_epochs={epochs}"])
    return CapacityRequest(
        model, recipe, out, **{"depths": (1.0,), "widths": (0.5,), "seeds": 1} | changes
    )


class Fits:
    """Stands in for training: accuracy as told for each call, or an interruption."""

    def __init__(self, *accuracies: float | None) -> None:
        self.accuracies, self.calls = list(accuracies), 0

    def __call__(self, module: nn.Module, recipe: Any, out: Path, **_: Any) -> TrainResult:
        self.calls += 1
        accuracy = self.accuracies.pop(0) if self.accuracies else 0.9
        if accuracy is None:
            raise KeyboardInterrupt
        return TrainResult(
            out / "weights", recipe.trainer.max_epochs, accuracy, 1.0, (), out / "best", accuracy
        )
