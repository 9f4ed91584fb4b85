"""What a recipe asks for is what happens in a step.

Each of these fails where the key is not obeyed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from support.trainings import UNMOVED, small_net
from torch import Tensor, nn
from torchvision.transforms import v2

from nnstretch.train import fit, hardware
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.transforms import training_transform
from nnstretch.train.recipe import AugmentSettings, DataSettings, Recipe

ONE_EPOCH = replace(UNMOVED, trainer=replace(UNMOVED.trainer, max_epochs=1))


def gradients_of(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Their norm over all weights, whenever the weights are moved."""
    norms: list[float] = []
    network = small_net()

    def stepped(self: Classifier, *args: Any, **kwargs: Any) -> None:
        LightningModule.optimizer_step(self, *args, **kwargs)
        norms.append(
            float(
                torch.cat(
                    [p.grad.flatten() for p in network.parameters() if p.grad is not None]
                ).norm()
            )
        )

    monkeypatch.setattr(Classifier, "optimizer_step", stepped)
    fit(network, recipe, folder, progress=False)
    return norms


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_gradients_are_clipped_where_asked(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has_bf16_units", lambda accelerator: True)
    recipe = replace(ONE_EPOCH, trainer=replace(ONE_EPOCH.trainer, precision=precision))
    free = gradients_of(recipe, tmp_path / "free", monkeypatch)
    held = gradients_of(
        replace(recipe, optimizer=replace(recipe.optimizer, clip_norm=0.01)),
        tmp_path / "held",
        monkeypatch,
    )
    assert min(free) > 0.02
    assert held == pytest.approx([0.01] * len(free), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("augment", "ndim"),
    [(AugmentSettings(), 1), (AugmentSettings(mixup=0.5), 2), (AugmentSettings(cutmix=1.0), 2)],
)
def test_images_are_mixed_where_asked(
    augment: AugmentSettings, ndim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[Tensor] = []
    loss = Classifier.loss
    monkeypatch.setattr(
        Classifier,
        "loss",
        lambda self, images, wanted: [labels.append(wanted), loss(self, images, wanted)][1],
    )
    fit(small_net(), replace(ONE_EPOCH, augment=augment), tmp_path, progress=False)
    assert {wanted.ndim for wanted in labels} == {ndim}


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_weights_and_features_lie_as_asked(channels_last: bool, tmp_path: Path) -> None:
    network, orders = small_net(), set()

    def seen(conv: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        if len(made) > 1:  # one image is how a network is tried before
            orders.update(
                tensor.is_contiguous(memory_format=torch.channels_last)
                for tensor in (*given, conv.weight, made)
            )

    network[0].register_forward_hook(seen)
    fit(
        network,
        replace(ONE_EPOCH, trainer=replace(ONE_EPOCH.trainer, channels_last=channels_last)),
        tmp_path,
        progress=False,
    )
    assert orders == {channels_last}


@pytest.mark.parametrize("width", [7, 8])
def test_narrow_strided_shortcuts_are_not_trained_channels_last_on_a_cpu(
    width: int, tmp_path: Path
) -> None:
    """PyTorch writes their gradients outside of memory there: processes abort, or worse."""
    network, orders = small_net(), set()
    network[0] = nn.Sequential(nn.Conv2d(3, width, 3), nn.Conv2d(width, 16, 1, 2))
    network[0][1].register_forward_hook(
        lambda conv, given, made: orders.add(made.is_contiguous()) if len(made) > 1 else None
    )
    fit(network, ONE_EPOCH, tmp_path, progress=False)
    assert orders == {width == 7}


@pytest.mark.parametrize("augment", [AugmentSettings(mixup=1e-50), AugmentSettings(cutmix=1e-300)])
def test_hardly_mixed_images_are_trained_on(augment: AugmentSettings, tmp_path: Path) -> None:
    fit(small_net(), replace(ONE_EPOCH, augment=augment), tmp_path, progress=False)


def test_a_padded_image_is_moved_by_no_more_than_its_border() -> None:
    view = training_transform(DataSettings(image_px=16), AugmentSettings(pad=0.125))
    assert view is not None
    image, places = torch.zeros(3, 16, 16, dtype=torch.uint8), set()
    image[:, 8, 8] = 255
    for seed in range(200):
        torch.manual_seed(seed)
        (place,) = view(image)[0].nonzero().tolist()
        places.add(tuple(place))
    assert places == {(y, x) for y in range(6, 11) for x in range(6, 11)}


def test_randaugment_is_torchvisions_of_so_many_steps() -> None:
    view = training_transform(
        DataSettings(image_px=16), AugmentSettings(randaugment=3, randaugment_magnitude=7)
    )
    image = torch.randint(
        0, 256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    for seed in range(5):
        torch.manual_seed(seed)
        wanted = v2.RandAugment(3, 7)(image)
        torch.manual_seed(seed)
        assert view is not None
        assert torch.equal(view(image), wanted)
