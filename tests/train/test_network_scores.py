"""Networks that act otherwise in training than in evaluation: one line says how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import SMALL, branched_plan, small_net
from torch import nn

from nnstretch.capture import load_model
from nnstretch.errors import BadInput
from nnstretch.stretch import stretch
from nnstretch.train import evaluate, fit
from nnstretch.train.losses import network_scores
from nnstretch.train.recipe import LossSettings


class Otherwise(nn.Module):
    """Gives something else of its scores in one of its modes."""

    def __init__(self, change: Callable[[torch.Tensor], Any], training: bool = True) -> None:
        super().__init__()
        self.inner = small_net()
        self.change, self.changes = change, training

    def forward(self, images: torch.Tensor) -> Any:
        scores = self.inner(images)
        is_meant = self.training == self.changes and len(images) > 1
        return self.change(scores) if is_meant else scores


@pytest.mark.parametrize("distill", [0.0, 0.5])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda scores: scores.nothing,
            "fails in training mode, 64 images of 3x16x16, AttributeError: .* no attribute"
            " 'nothing', mend its forward",
        ),
        (lambda scores: {"out": scores}, "gives a dict in training mode, data set digits needs a"),
        (
            lambda scores: scores[:, :3],
            r"gives 64x3 for 64 images in training mode, data set digits needs 64x10, make it with",
        ),
        (lambda scores: scores[:1], "gives 1x10 for 64 images in training mode, .* must give sc"),
    ],
    ids=["raises", "dict", "classes", "images"],
)
def test_what_fails_in_training_alone_is_one_line(
    change: Callable[[torch.Tensor], Any], reason: str, distill: float, tmp_path: Path
) -> None:
    recipe = replace(SMALL, loss=LossSettings(distill=distill))
    teacher = small_net() if distill else None
    with pytest.raises(BadInput, match=f"^the network {reason}"):
        fit(Otherwise(change), recipe, tmp_path, teacher=teacher, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_on_batches_of_held_out_images_is_one_line(tmp_path: Path) -> None:
    network = Otherwise(lambda scores: scores / None, training=False)
    with pytest.raises(BadInput, match=r"^the network fails in evaluation mode, .* TypeError: "):
        fit(network, SMALL, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            small_net(7),
            "gives 128x7 for 128 images in evaluation mode, data set digits needs 128x10",
        ),
        (Otherwise(lambda scores: [scores], training=False), "gives a list in evaluation mode"),
        (nn.Conv2d(1, 8, 3), "fails in evaluation mode, 128 images of 3x16x16, RuntimeError: "),
    ],
    ids=["classes", "list", "raises"],
)
def test_an_accuracy_is_of_a_network_that_fits_the_data(network: nn.Module, reason: str) -> None:
    with pytest.raises(BadInput, match=f"^the network {reason}"):
        evaluate(network, SMALL)


def test_errors_of_our_own_code_and_of_the_machine_stay_what_they_are(tmp_path: Path) -> None:
    plan = branched_plan(tmp_path)
    ours = stretch(load_model(plan.model), plan)
    ours.forward = small_net(3).forward  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="channels"):
        network_scores(ours, torch.zeros(2, 4, 16, 16), 10, "digits")
    for error in (MemoryError(), OSError(28, "full"), BadInput("ours")):

        def fail(scores: torch.Tensor, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            network_scores(Otherwise(fail), torch.zeros(2, 3, 16, 16), 10, "digits")
