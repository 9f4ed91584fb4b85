"""Batches of uint8 images for Lightning; their order survives interruption on any number of
processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.train.data.batches import (
    ImageBatch,
    ImageBatches,
    no_readable_image_error,
    prepare_images,
)
from nnstretch.train.data.catalog import open_dataset
from nnstretch.train.data.sampling_order import (
    BatchSelection,
    ProcessShare,
    SamplingOrder,
    sequential_selections,
)
from nnstretch.train.data.transforms import (
    ResizeAndCrop,
    needs_resize,
    training_transform,
    validation_transform,
)
from nnstretch.train.recipe import DataSettings, Recipe

VAL_BATCH_IMAGES = 128
NORM_BATCH_IMAGES = 64


class Pictures(LightningDataModule):
    """Training and validation batches of any data set."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.dataset = open_dataset(recipe.data)
        self.start = (-1, 0)
        if recipe.data.batch_images > len(self.dataset.train):
            raise BadInput(
                f"data.batch_images is {recipe.data.batch_images}, data set {recipe.data.name},"
                f" only {len(self.dataset.train)} images to train on"
            )

    def process_share(self) -> ProcessShare:
        """Return the part of each batch that this process loads."""
        trainer = self.trainer
        micro_batches = self.recipe.trainer.micro_batches
        if trainer is None:
            return ProcessShare(micro_batches=micro_batches)
        return ProcessShare(trainer.global_rank, trainer.world_size, micro_batches)

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Return the loader of training batches."""
        order = self.sampling_order(self.recipe.data.batch_images, self.process_share())
        order.start = self.start
        epoch, done = self.start
        # Lightning sets the epoch only after loading processes have begun to fetch.
        order.set_epoch(max(0, epoch) + (done >= len(order)))
        return self.make_loader(self.training_batches(), order)

    def sampling_order(self, batch_images: int, share: ProcessShare) -> SamplingOrder:
        """Return the order of training images."""
        images = self.dataset.train
        return SamplingOrder(len(images), images.chunks, batch_images, self.recipe.seed, share)

    def training_batches(self) -> ImageBatches:
        """Return the training images in batches."""
        data = self.recipe.data
        images = self.dataset.train
        transform = training_transform(data, self.recipe.augment)
        if transform is None and needs_resize(images, data.image_px):
            transform = ResizeAndCrop(data.image_px, data.image_px)
        return ImageBatches(images, transform, self.recipe.seed, data.corrupt)

    def norm_batches(self, epoch: int, images: int) -> DataLoader[ImageBatch]:
        """Return the first training images of an epoch in whole batches, alike on every process."""
        size = min(NORM_BATCH_IMAGES, images, len(self.dataset.train))
        order = self.sampling_order(size, ProcessShare())
        order.set_epoch(epoch)
        selections = list(islice(order, max(1, images // size)))
        return self.make_loader(self.training_batches(), selections)

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """Return the loader of held-out batches."""
        data = self.recipe.data
        images = self.dataset.held
        transform = validation_transform(images, data)
        batches = ImageBatches(images, transform, self.recipe.seed, data.corrupt, validates=True)
        selections = sequential_selections(len(images), VAL_BATCH_IMAGES, self.process_share())
        return self.make_loader(batches, selections)

    def make_loader(
        self, batches: ImageBatches, selections: Sequence[BatchSelection] | SamplingOrder
    ) -> DataLoader[ImageBatch]:
        """Return a loader of whole batches that leaves PyTorch's global generator alone."""
        return DataLoader(
            batches,
            batch_size=None,
            sampler=selections,  # type: ignore[arg-type]
            num_workers=self.recipe.data.workers,
            pin_memory=self.pins_memory(),
            generator=torch.Generator(),
            persistent_workers=False,
        )

    def pins_memory(self) -> bool:
        """Return whether batches go to a CUDA device."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def state_dict(self) -> dict[str, Any]:
        """Return how far the epoch is, and what identifies the images."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current  # type: ignore[union-attr]
        return {
            "epoch": self.trainer.current_epoch,  # type: ignore[union-attr]
            "micro_batches": progress.processed,  # type: ignore[union-attr]
            "images": self.dataset_identity,
        }

    @cached_property
    def dataset_identity(self) -> dict[str, Any]:
        """Return classes, numbers and digests of the images."""
        return {
            "classes": list(self.dataset.classes),
            "train_images": len(self.dataset.train),
            "held_images": len(self.dataset.held),
            "train": self.dataset.train.digest(),
            "held": self.dataset.held.digest(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on within an interrupted epoch. Raises BadInput where the images are others."""
        before = state_dict.get("images")
        if not isinstance(before, dict) or not self.dataset_identity.keys() <= before.keys():
            raise BrokenFile(
                "training state of another version, it does not name its images, begin anew"
                " in another folder"
            )
        for key, now in self.dataset_identity.items():
            if before[key] != now:
                raise BadInput(
                    f"cannot resume, data set {self.recipe.data.name},"
                    f" {describe_change(key, before[key], now)}"
                )
        self.start = (state_dict["epoch"], state_dict["micro_batches"])


def describe_change(key: str, before: Any, now: Any) -> str:
    """Return in words how the images changed between two runs."""
    if key == "classes" and isinstance(before, list):
        return f"it has {len(now)} classes and had {len(before)}, {class_change(before, now)}"
    if isinstance(now, int):
        return f"{key} were {before} and are now {now}"
    return f"the images called {key} are others than before"


def class_change(before: list[str], now: list[str]) -> str:
    """Return in words the first difference between two lists of classes."""
    removed = [name for name in before if name not in now]
    if removed:
        return f"class {removed[0]} is gone"
    added = [name for name in now if name not in before]
    return f"class {added[0]} is new" if added else "their order is another"


def load_held_out(data: DataSettings) -> tuple[Tensor, Tensor]:
    """Load all held-out images as a network sees them, and their labels.

    Raises BadInput when no image can be read.
    """
    dataset = open_dataset(data)
    images, labels = prepare_images(dataset, dataset.held, range(len(dataset.held)), data)
    if not len(labels):
        raise no_readable_image_error(data)
    return images, labels
