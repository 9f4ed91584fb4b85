"""Scikit-learn's bundled digits as a Lightning data module: real images, no download.

The whole set is one tensor, so a batch is an index into it and needs no worker process. Batch
order and augmentation depend only on (seed, epoch): a resumed run sees what an uninterrupted one sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from nnstretch.errors import BadInput
from nnstretch.train.recipe import Data

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Split:
    """One channel each, brightness from 0 to 1, and what normalises them."""

    train_images: Tensor
    train_labels: Tensor
    held_images: Tensor
    held_labels: Tensor
    mean: float
    """Of the training images."""
    std: float

    def normalised(self, images: Tensor) -> Tensor:
        """What a network sees: mean 0, deviation 1, the one channel three times."""
        return ((images - self.mean) / self.std).expand(-1, 3, -1, -1).contiguous()


@lru_cache(maxsize=2)
def load_digits(image_px: int, held_out: float, split_seed: int) -> Split:
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = functional.interpolate(small, size=image_px, mode="bilinear", align_corners=False)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, held = train_test_split(range(len(labels)), test_size=held_out, stratify=digits.target, random_state=split_seed)
    mean, std = float(images[train].mean()), float(images[train].std())
    return Split(images[train], labels[train], images[held], labels[held], mean, std)


def load_split(data: Data) -> Split:
    split = load_digits(data.image_px, data.held_out, data.split_seed)
    if data.batch_images > len(split.train_labels):
        raise BadInput(f"data.batch_images is {data.batch_images}, data set {data.name}, only {len(split.train_labels)} images to train on")
    return split


def held_out(data: Data) -> Batch:
    """Validation images as a network sees them, and their labels."""
    split = load_split(data)
    return split.normalised(split.held_images), split.held_labels


def augment(images: Tensor, data: Data, generator: torch.Generator) -> Tensor:
    """Shift, rotate and scale every image a little, each in its own way; what enters from outside is black."""
    count = len(images)

    def spread(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle, size = spread(math.radians(data.rotate_deg)), 1 + spread(data.scale)
    right, down = spread(2 * data.shift), spread(2 * data.shift)  # the sampling grid spans -1 to 1
    cos, sin = angle.cos() / size, angle.sin() / size
    moves = torch.stack((cos, -sin, right, sin, cos, down), dim=1).view(count, 2, 3)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


class Shuffled(Sampler[list[int]]):
    """Full batches in an order that depends on (seed, epoch) alone."""

    def __init__(self, images: int, batch_images: int, seed: int) -> None:
        self._images, self._batch_images, self._seed = images, batch_images, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)

    def __len__(self) -> int:
        return self._images // self._batch_images

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self._images, generator=self.generator())
        for batch in range(len(self)):
            yield order[batch * self._batch_images : (batch + 1) * self._batch_images].tolist()


class Augmented(Dataset[Batch]):
    """Batches of training images, moved about by a generator that restarts with each epoch."""

    def __init__(self, split: Split, data: Data, order: Shuffled) -> None:
        self._split, self._data, self._order = split, data, order
        self._epoch, self._generator = -1, torch.Generator()

    def __getitem__(self, index: list[int]) -> Batch:
        if self._epoch != self._order.epoch:
            self._epoch = self._order.epoch
            self._generator = self._order.generator()
        images = augment(self._split.train_images[index], self._data, self._generator)
        return self._split.normalised(images), self._split.train_labels[index]


class Digits(LightningDataModule):
    """Training batches and validation batches of the digits."""

    def __init__(self, data: Data, seed: int) -> None:
        super().__init__()
        self.data, self.seed = data, seed
        self.split = load_split(data)

    def train_dataloader(self) -> DataLoader[Batch]:
        order = Shuffled(len(self.split.train_labels), self.data.batch_images, self.seed)
        # A generator of its own keeps the loader from drawing on the global one; the sampler hands out whole batches.
        return DataLoader(Augmented(self.split, self.data, order), batch_size=None, sampler=order, generator=torch.Generator())

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        images, labels = self.split.normalised(self.split.held_images), self.split.held_labels
        return DataLoader(TensorDataset(images, labels), batch_size=max(128, self.data.batch_images), generator=torch.Generator())


DATA_SETS = {"digits": Digits}
"""Data module of each name that a recipe may give."""
