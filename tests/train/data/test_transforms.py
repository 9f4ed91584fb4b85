"""Images on their way into training: cropped, resized, torn, and normalised."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.trainings import UNMOVED, net, same_weights

from nnstretch.errors import BadInput
from nnstretch.train import evaluate, fit
from nnstretch.train.data import InMemoryImages, open_dataset
from nnstretch.train.data.batches import ImageBatches, prepare_images
from nnstretch.train.data.dataset import Dataset, Images, UnreadableImage
from nnstretch.train.data.sampling_order import BatchSelection
from nnstretch.train.data.transforms import (
    normalize_images,
    training_transform,
    validation_transform,
)
from nnstretch.train.recipe import AugmentSettings, DataSettings


def test_training_views_depend_on_seed_epoch_and_image_and_on_no_neighbour() -> None:
    images = open_dataset(UNMOVED.data).train
    data, augment = (
        replace(UNMOVED.data, image_px=12),
        AugmentSettings(crop_scale=0.5, flip=0.5, randaugment=2),
    )
    batches = ImageBatches(images, training_transform(data, augment), 0, "refuse")
    before = torch.random.get_rng_state()
    whole = batches[BatchSelection(1, 0, 0, 4, (5, 6, 7, 8))]
    assert torch.equal(before, torch.random.get_rng_state())
    assert whole.images.shape == (4, 3, 12, 12)
    assert whole.images.dtype == torch.uint8
    assert torch.equal(whole.images[2:], batches[BatchSelection(1, 9, 0, 2, (7, 8))].images)
    assert not torch.equal(whole.images, batches[BatchSelection(2, 0, 0, 4, (5, 6, 7, 8))].images)


def test_held_out_views_take_the_middle() -> None:
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 10:30, 20:40] = 200
    images = InMemoryImages(image[None], torch.zeros(1))
    middle = validation_transform(images, DataSettings(image_px=20, val_resize_px=40))
    assert middle is not None
    seen = middle(image)
    assert seen.shape == (3, 20, 20)
    assert int(seen.min()) == 200
    square = validation_transform(images, DataSettings(image_px=20))
    assert square is not None
    whole = square(image)
    assert whole.shape == (3, 20, 20)
    assert int(whole.min()) == 0


def test_normalised_training_images_have_mean_zero_and_deviation_one() -> None:
    dataset = open_dataset(UNMOVED.data)
    assert isinstance(dataset.train, InMemoryImages)
    seen = normalize_images(dataset.train.images, dataset)
    assert abs(float(seen.mean())) < 1e-3
    assert abs(float(seen.std()) - 1) < 1e-3


class Torn:
    """Every third image cannot be read, or those that are named."""

    chunks: tuple[int, ...] = ()

    def __init__(self, images: Images, torn: Collection[int] | None = None) -> None:
        self.images = images
        self.torn = range(0, len(images), 3) if torn is None else torn

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.torn:
            raise UnreadableImage(f"cannot decode image {index}, torn")
        return self.images[index]

    def digest(self) -> str:
        return self.images.digest()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("corrupt", ["refuse", "skip"])
def test_a_torn_image_ends_training_or_is_skipped_by_name(
    corrupt: str,
    workers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = open_dataset(UNMOVED.data)
    torn = Dataset(Torn(good.train), good.held, good.classes, good.mean, good.std)
    monkeypatch.setattr("nnstretch.train.data.datamodule.open_dataset", lambda _: torn)
    recipe = replace(
        UNMOVED,
        data=replace(UNMOVED.data, corrupt=corrupt, workers=workers, batch_images=512),
        trainer=replace(UNMOVED.trainer, max_epochs=1),
    )
    if corrupt == "refuse":
        with pytest.raises(BadInput, match=r"^cannot decode image \d+, torn$"):
            fit(net(), recipe, tmp_path, progress=False)
        assert "skipped" not in capsys.readouterr().err
        return
    assert fit(net(), recipe, tmp_path, progress=False).epochs == 1
    named = capsys.readouterr().err.splitlines()
    assert len(named) > 200
    assert all(line.startswith("nnstretch: skipped, cannot decode image ") for line in named)
    assert len({*named}) == len(named)


@pytest.mark.slow
def test_held_out_images_none_of_which_can_be_read_together_are_skipped_and_none_at_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = open_dataset(UNMOVED.data)
    recipe = replace(
        UNMOVED,
        data=replace(UNMOVED.data, corrupt="skip"),
        trainer=replace(UNMOVED.trainer, max_epochs=1),
    )
    monkeypatch.setattr(
        "nnstretch.train.data.datamodule.VAL_BATCH_IMAGES", 2
    )  # 0 and 1; 2 and 3; 4 and 5; ...
    for torn_at, judged in ({0, 1}, len(good.held) - 2), ({*range(len(good.held))}, 0):
        torn = Dataset(good.train, Torn(good.held, torn_at), good.classes, good.mean, good.std)
        monkeypatch.setattr(
            "nnstretch.train.data.datamodule.open_dataset", lambda _, torn=torn: torn
        )
        network = net()
        if not judged:
            with pytest.raises(BadInput, match="no held-out image can be read, data set digits"):
                fit(network, recipe, tmp_path / "none", progress=False)
            with pytest.raises(BadInput, match="no held-out image can be read, data set digits"):
                evaluate(network, recipe)
            continue
        accuracy = fit(network, recipe, tmp_path / "some", progress=False).val_accuracy
        assert accuracy * judged == pytest.approx(round(accuracy * judged), abs=1e-3)
        assert evaluate(network, recipe) == pytest.approx(accuracy)


def test_held_out_images_are_resized_also_where_they_are_stored_at_their_side() -> None:
    data = DataSettings(image_px=16, val_resize_px=20)
    plain, seen = (
        prepare_images(good := open_dataset(d), good.held, range(4), d)[0]
        for d in (DataSettings(image_px=16), data)
    )
    assert seen.shape == plain.shape
    assert not torch.allclose(seen, plain)


def test_a_torn_held_out_image_is_named_once_and_counts_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = open_dataset(UNMOVED.data)
    torn = Dataset(good.train, Torn(good.held), good.classes, good.mean, good.std)
    monkeypatch.setattr("nnstretch.train.data.datamodule.open_dataset", lambda _: torn)
    recipe = replace(UNMOVED, data=replace(UNMOVED.data, corrupt="skip"))
    network = net()
    accuracy = fit(network, recipe, tmp_path, progress=False).val_accuracy
    assert len(capsys.readouterr().err.splitlines()) == len(range(0, len(good.held), 3))
    whole = [index for index in range(len(good.held)) if index % 3]
    images, labels = prepare_images(good, good.held, whole, UNMOVED.data)
    assert accuracy == pytest.approx(float((network(images).argmax(1) == labels).float().mean()))
    assert evaluate(network, recipe) == pytest.approx(accuracy)
    capsys.readouterr()
    left, their_labels = prepare_images(torn, torn.held, [0, 1, 2], recipe.data)
    assert torch.equal(left, images[:2])
    assert torch.equal(their_labels, labels[:2])
    assert capsys.readouterr().err == "nnstretch: skipped, cannot decode image 0, torn\n"
    assert len(prepare_images(torn, torn.held, [3], recipe.data)[1]) == 0
    with pytest.raises(BadInput, match="cannot decode image 3, torn"):
        prepare_images(torn, torn.held, [3], UNMOVED.data)


@pytest.mark.slow
def test_workers_deliver_what_the_training_process_would_have_made(tmp_path: Path) -> None:
    recipe = replace(
        UNMOVED,
        augment=AugmentSettings(crop_scale=0.5, flip=0.5, shift=0.1),
        trainer=replace(UNMOVED.trainer, max_epochs=1),
    )
    alone, helped = net(), net()
    fit(alone, recipe, tmp_path / "alone", progress=False)
    fit(
        helped,
        replace(recipe, data=replace(recipe.data, workers=2)),
        tmp_path / "helped",
        progress=False,
    )
    assert same_weights(alone, helped)
