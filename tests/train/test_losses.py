"""Losses, mixed labels, and optimizers that lower them."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trainings import UNMOVED, net
from torch import nn

from nnstretch.train import fit
from nnstretch.train.data.transforms import make_mixer
from nnstretch.train.losses import label_loss
from nnstretch.train.optimizers import make_optimizer
from nnstretch.train.recipe import (
    AugmentSettings,
    LossSettings,
    OptimizerSettings,
)


@given(st.floats(0, 0.9), st.sampled_from(["softmax", "binary"]))
def test_labels_as_shares_cost_what_labels_as_numbers_cost(smoothing: float, kind: str) -> None:
    scores, labels = (
        torch.randn(6, 5, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 4, 0]),
    )
    loss = LossSettings(kind=kind, label_smoothing=smoothing)  # type: ignore[arg-type]
    shares = nn.functional.one_hot(labels, 5).float()
    assert torch.allclose(
        label_loss(scores, labels, loss), label_loss(scores, shares, loss), atol=1e-6
    )


def test_smoothing_spreads_a_share_of_the_label_over_all_classes() -> None:
    """Szegedy et al. 2016: of 0.3 over 3 classes the right one keeps 0.8.

    Scores 0, 0 and log 2 are chances 1/4, 1/4, 1/2; alone 1/2, 1/2, 2/3.
    """
    scores, labels = torch.tensor([[0.0, 0.0, log(2)]]), torch.tensor([2])
    softmax, binary = (
        float(label_loss(scores, labels, LossSettings(kind=kind, label_smoothing=0.3)))
        for kind in ("softmax", "binary")
    )
    assert softmax == pytest.approx(0.8 * log(2) + 0.2 * log(4), rel=1e-5)
    assert binary == pytest.approx((2 * log(2) + 0.8 * log(3 / 2) + 0.2 * log(3)) / 3, rel=1e-5)


def test_binary_loss_is_zero_for_certain_and_right_scores() -> None:
    labels = torch.tensor([1, 0])
    right = 40 * (2 * nn.functional.one_hot(labels, 3).float() - 1)
    assert float(label_loss(right, labels, LossSettings(kind="binary", label_smoothing=0.0))) < 1e-6
    assert float(label_loss(-right, labels, LossSettings(kind="binary", label_smoothing=0.0))) > 10


@pytest.mark.parametrize(
    "augment",
    [
        AugmentSettings(mixup=1.0),
        AugmentSettings(cutmix=1.0),
        AugmentSettings(mixup=1.0, cutmix=1.0),
    ],
    ids=["mixup", "cutmix", "both"],
)
def test_mixed_labels_are_shares_that_sum_to_one(augment: AugmentSettings) -> None:
    torch.manual_seed(0)
    images, labels = make_mixer(augment, 7)(torch.rand(8, 3, 16, 16), torch.arange(8) % 7)
    assert images.shape == (8, 3, 16, 16)
    assert torch.allclose(labels.sum(1), torch.ones(8))
    assert (labels > 0).sum(1).max() == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_every_optimizer_lowers_the_loss_and_leaves_norms_undecayed(
    name: str, tmp_path: Path
) -> None:
    recipe = replace(
        UNMOVED,
        optimizer=OptimizerSettings(name=name, lr=0.01 if name != "sgd" else 0.1, clip_norm=5.0),
    )  # type: ignore[arg-type]
    history = fit(net(), recipe, tmp_path, progress=False).history
    assert history[-1].train_loss < history[0].train_loss
    groups = make_optimizer(net(), recipe.optimizer).param_groups
    assert sorted(group["weight_decay"] for group in groups) == [0.0, 5e-4]
    assert all(p.ndim > 1 for group in groups if group["weight_decay"] for p in group["params"])
    assert len(make_optimizer(net(), replace(recipe.optimizer, decay_all=True)).param_groups) == 1
