"""Batches of images, and what happens to images that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from nnstretch.bundle.image_task import MOST_LETTERS, ImageTask
from nnstretch.errors import BadInput, one_line
from nnstretch.train.data.dataset import Dataset, Images, InMemoryImages, UnreadableImage
from nnstretch.train.data.sampling_order import BatchSelection, seed_global_generators
from nnstretch.train.data.transforms import (
    ImageTransform,
    normalize_images,
    validation_transform,
)
from nnstretch.train.recipe import DataSettings


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images as bytes, still to be normalized."""

    images: Tensor
    """uint8 [images, 3, side, side]."""
    labels: Tensor
    selection: BatchSelection
    problems: tuple[str, ...] = ()
    """One line for each image that could not be read."""
    is_validation: bool = False
    """Held-out images; an unreadable one is not replaced by another."""

    def to(self, device: torch.device) -> ImageBatch:
        """Return the batch on a device."""
        asynchronous = device.type != "cpu"
        images = self.images.to(device, non_blocking=asynchronous)
        labels = self.labels.to(device, non_blocking=asynchronous)
        return replace(self, images=images, labels=labels)

    def pin_memory(self) -> ImageBatch:
        """Return the batch in pinned memory."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())

    def __len__(self) -> int:
        return len(self.labels)


class ImageBatches(TorchDataset[ImageBatch]):
    """Whole batches by their selection, which is all that a loading process needs to be sent."""

    def __init__(
        self,
        images: Images,
        transform: ImageTransform | None,
        seed: int,
        corrupt: str,
        validates: bool = False,
    ) -> None:
        self._images = images
        self._transform = transform
        self._seed = seed
        self._corrupt = corrupt
        self._validates = validates

    def __getitem__(self, selection: BatchSelection) -> ImageBatch:
        if isinstance(self._images, InMemoryImages) and self._transform is None:
            indices = torch.tensor(selection.indices)
            images = self._images.images[indices]
            labels = self._images.labels[indices]
            return ImageBatch(images, labels, selection, is_validation=self._validates)
        # Whatever else draws on the global generator must not depend on how images are loaded.
        with torch.random.fork_rng(devices=[]):
            return self.load_each(selection)

    def load_each(self, selection: BatchSelection) -> ImageBatch:
        """Load images one by one; those that cannot be read are named, not used."""
        images: list[Tensor] = []
        labels: list[int] = []
        problems: list[str] = []
        for index in selection.indices:
            try:
                image, label = self.first_readable(index, problems)
            except UnreadableImage as problem:
                # No held-out image is replaced: the next one would count twice.
                if self._validates and self._corrupt == "skip":
                    problems.append(str(problem))
                    continue
                return self.empty_batch(selection, [str(problem)])
            seed_global_generators(torch.device("cpu"), self._seed, selection.epoch, index)
            images.append(self._transform(image) if self._transform is not None else image)
            labels.append(label)
        if not images:
            return self.empty_batch(selection, problems)
        stacked = torch.stack(images)
        return ImageBatch(
            stacked, torch.tensor(labels), selection, tuple(problems), self._validates
        )

    def first_readable(self, index: int, problems: list[str]) -> tuple[Tensor, int]:
        """Return an image, or in training, where unreadable ones are skipped, the next readable.

        Raises UnreadableImage when none can be read.
        """
        if self._validates:
            return self._images[index]
        for offset in range(len(self._images)):
            try:
                return self._images[(index + offset) % len(self._images)]
            except UnreadableImage as problem:
                if self._corrupt == "refuse":
                    raise
                problems.append(str(problem))
        raise UnreadableImage(
            f"no image can be read, {len(self._images)} were tried, the last: {problems[-1]}"
        )

    def empty_batch(self, selection: BatchSelection, problems: list[str]) -> ImageBatch:
        """Return a batch without images."""
        images = torch.empty(0, 3, 1, 1)
        return ImageBatch(images, torch.empty(0), selection, tuple(problems), self._validates)


def refuse_unreadable(batch: ImageBatch, data: DataSettings) -> None:
    """Refuse a batch without a readable image, unless it is held out and may be skipped.

    Raises BadInput.
    """
    if not len(batch) and not (batch.is_validation and data.corrupt == "skip"):
        raise BadInput(batch.problems[0])


def report_skipped(problems: Iterable[str]) -> None:
    """Print which images were skipped."""
    for problem in problems:
        print(f"nnstretch: skipped, {one_line(problem)}", file=sys.stderr)


def no_readable_image_error(data: DataSettings) -> BadInput:
    """Return the error of a data set without a readable held-out image."""
    return BadInput(f"no held-out image can be read, data set {data.name}, at least one is needed")


def image_task_of(dataset: Dataset, data: DataSettings) -> ImageTask:
    """Return how a network that is trained on a data set sees images."""
    return ImageTask(
        tuple(name[:MOST_LETTERS] for name in dataset.classes),
        dataset.mean,
        dataset.std,
        data.val_resize_px,
        data.validation_px,
    )


def prepare_images(
    dataset: Dataset, images: Images, indices: Sequence[int], data: DataSettings, aloud: bool = True
) -> tuple[Tensor, Tensor]:
    """Return images as the network sees them in validation, float32 [n, 3, px, px], and labels.

    Where `data` skips unreadable images they are named (if `aloud`); a training image is replaced
    by the next, a held-out one is left out.
    """
    validates = images is dataset.held
    batches = ImageBatches(images, validation_transform(images, data), 0, data.corrupt, validates)
    batch = batches[BatchSelection(0, 0, 0, len(indices), tuple(indices))]
    refuse_unreadable(batch, data)
    if aloud:
        report_skipped(batch.problems)
    return normalize_images(batch.images, dataset), batch.labels
