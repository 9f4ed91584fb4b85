"""A small network, a short recipe and what tests of training share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.train.recipe import (
    AugmentSettings,
    DataSettings,
    OptimizerSettings,
    Recipe,
    TrainerSettings,
)

SMALL = Recipe(
    data=DataSettings(image_px=16, batch_images=64),
    augment=AugmentSettings(shift=0.06, rotate_deg=10.0, scale=0.1),
    optimizer=OptimizerSettings(lr=0.1),
    trainer=TrainerSettings(max_epochs=2, precision="fp32", threads=1, tensorboard=False),
)


def small_net(classes: int = 10, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(128, classes),
        )


UNMOVED = replace(SMALL, augment=AugmentSettings())


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


FACTORY = """
from torch import nn

def make():
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
"""


def branched_plan(path: Path, processors: tuple[str, str] = ("cpu", "dsp")) -> Plan:
    """Of a network that is written to `path`; the second of its three segments has two branches."""
    (path / "net.py").write_text(FACTORY)
    halves = (Branch(processors[0], width=4), Branch(processors[1], width=4))
    whole = (Branch("cpu"),)
    return Plan(
        f"{path / 'net.py'}:make",
        (1, 3, 16, 16),
        (Segment("input", "2", whole), Segment("2", "5", halves), Segment("5", "output", whole)),
    )


def picture(seed: int, side_px: int = 8) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (side_px, side_px + 2, 3), dtype=np.uint8)
    )


def write_images(root: Path, classes: Mapping[str, int]) -> Path:
    """PNG and JPEG files by turns, `classes` says how many of each."""
    for label, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            picture(100 * label + k).save(root / name / f"{k}.{('png', 'jpg')[k % 2]}")
    return root


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        space: dict[str, object] = {}
        exec(FACTORY, space)
        return space["make"]()  # type: ignore[operator, no-any-return]


def pretend_slurm(monkeypatch: pytest.MonkeyPatch, **counts: int) -> None:
    """Set the variables of the first process of a job under Slurm, which started so many."""
    job = {"JOB_ID": "1", "JOB_NAME": "x", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in (job | counts).items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
