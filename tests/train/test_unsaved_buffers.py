"""Buffers that no file keeps: refused where training changes them, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.trainings import SMALL, small_net
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.train import fit
from nnstretch.train.recipe import AverageSettings

BRIEF = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))


class Centred(nn.Module):
    """Subtracts a moving mean of scores that is kept in no file unless `persistent`."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.inner = small_net()
        self.register_buffer("mean", torch.zeros(10), persistent=persistent)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.inner(images)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * scores.detach().mean(0)
        return scores - self.mean


class Positions(nn.Module):
    """Adds positions that are rebuilt at every image, of its size, the first time from nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()
        self.register_buffer("rows", None, persistent=False)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.rows = torch.linspace(0, 1, images.shape[-1]).sin()
        scores: torch.Tensor = self.inner(images + self.rows * self.scale)
        return scores


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_buffer_that_training_changes_and_no_file_keeps_is_refused(
    decay: float, tmp_path: Path
) -> None:
    recipe = replace(BRIEF, average=AverageSettings(decay=decay))
    fit(small_net(), BRIEF, tmp_path, progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    network = nn.Sequential(Centred(persistent=False))
    with pytest.raises(BadInput, match=r"buffer 0\.mean changes in training, .*persistent=True"):
        fit(network, recipe, tmp_path, progress=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_buffers_that_files_keep_or_training_leaves_alone_are_allowed(tmp_path: Path) -> None:
    fit(Centred(persistent=True), BRIEF, tmp_path / "kept", progress=False)
    sizes = replace(BRIEF, data=replace(BRIEF.data, val_px=24))
    fit(Positions(), sizes, tmp_path / "positions", progress=False)
