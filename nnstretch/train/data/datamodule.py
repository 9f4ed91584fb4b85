"""Batches of uint8 images for Lightning, in an order that survives interruption and any number of
processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from nnstretch.errors import BadInput, BrokenFile, one_line
from nnstretch.train.data.dataset import Dataset, Images, InMemoryImages, UnreadableImage
from nnstretch.train.data.sampling_order import (
    BatchSelection,
    ProcessShare,
    SamplingOrder,
    seed_global_generators,
    sequential_selections,
)
from nnstretch.train.data.transforms import (
    ImageTransform,
    ResizeAndCrop,
    normalize_images,
    training_transform,
    validation_transform,
)
from nnstretch.train.recipe import DataSettings, Recipe

VAL_BATCH_IMAGES, NORM_BATCH_IMAGES = 128, 64


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images as bytes, still to be normalised."""

    images: Tensor
    """uint8 of [images, 3, side, side]."""
    labels: Tensor
    selection: BatchSelection
    problems: tuple[str, ...] = ()
    """One line for each image that could not be read."""
    is_validation: bool = False
    """Held-out images, in place of which no others are taken."""

    def to(self, device: torch.device) -> ImageBatch:
        """Return the batch on a device."""
        later = device.type != "cpu"
        return replace(
            self,
            images=self.images.to(device, non_blocking=later),
            labels=self.labels.to(device, non_blocking=later),
        )

    def pin_memory(self) -> ImageBatch:
        """Return the batch in pinned memory."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())

    def __len__(self) -> int:
        return len(self.labels)


class ImageBatches(TorchDataset[ImageBatch]):
    """Whole batches by their picks, so that a worker process needs to be told nothing else."""

    def __init__(
        self,
        images: Images,
        view: ImageTransform | None,
        seed: int,
        corrupt: str,
        judged: bool = False,
    ) -> None:
        self._images, self._view, self._seed, self._corrupt, self._judged = (
            images,
            view,
            seed,
            corrupt,
            judged,
        )

    def __getitem__(self, pick: BatchSelection) -> ImageBatch:
        if isinstance(self._images, InMemoryImages) and self._view is None:
            chosen = torch.tensor(pick.indices)
            return ImageBatch(
                self._images.images[chosen],
                self._images.labels[chosen],
                pick,
                is_validation=self._judged,
            )
        # The generators' state is kept: whoever else draws on it must not feel how images are
        # loaded.
        with torch.random.fork_rng(devices=[]):
            return self.load_each(pick)

    def load_each(self, pick: BatchSelection) -> ImageBatch:
        """Load images one by one; those that cannot be read are named, not used."""
        images: list[Tensor] = []
        labels: list[int] = []
        problems: list[str] = []
        for index in pick.indices:
            try:
                image, label = self.first_readable(index, problems)
            except UnreadableImage as problem:
                if (
                    self._judged and self._corrupt == "skip"
                ):  # nothing takes its place: another would count twice
                    problems.append(str(problem))
                    continue
                return empty_batch(pick, (str(problem),), self._judged)
            seed_global_generators(torch.device("cpu"), self._seed, pick.epoch, index)
            images.append(self._view(image) if self._view is not None else image)
            labels.append(label)
        if not images:
            return empty_batch(pick, tuple(problems), self._judged)
        return ImageBatch(
            torch.stack(images), torch.tensor(labels), pick, tuple(problems), self._judged
        )

    def first_readable(self, index: int, problems: list[str]) -> tuple[Tensor, int]:
        """Return the image, or, where unreadable ones are to be skipped in training, the next that
        can be read.

        Raises UnreadableImage when none can be read.
        """
        if self._judged:
            return self._images[index]
        for beyond in range(len(self._images)):
            try:
                return self._images[(index + beyond) % len(self._images)]
            except UnreadableImage as problem:
                if self._corrupt == "refuse":
                    raise
                problems.append(str(problem))
        raise UnreadableImage(
            f"no image can be read, {len(self._images)} were tried, the last: {problems[-1]}"
        )


def empty_batch(pick: BatchSelection, problems: tuple[str, ...], judged: bool) -> ImageBatch:
    """Return a batch without images."""
    return ImageBatch(torch.empty(0, 3, 1, 1), torch.empty(0), pick, problems, judged)


def open_dataset(data: DataSettings) -> Dataset:
    """Return the data set that a recipe names.

    Raises BadInput or UnknownName for what is not there, or larger than memory.
    """
    try:
        return open_named_dataset(data)
    except MemoryError as error:
        raise BadInput(
            f"data set {data.name} does not fit into memory, {one_line(error)}, take smaller"
            " data.image_px or fewer images"
        ) from None


def open_named_dataset(data: DataSettings) -> Dataset:
    """Open a data set by name. Raises BadInput when data.root is empty."""
    from pathlib import Path

    if data.name in ("folder", "cifar10", "cifar100", "shards") and not data.root:
        raise BadInput(f"data.root is empty, data set {data.name}, give the folder it is in")
    if data.name == "digits":
        from nnstretch.train.data.digits import open_digits

        return open_digits(data.image_px, data.held_out, data.split_seed)
    if data.name == "shapes":
        from nnstretch.train.data.shapes import open_shapes

        return open_shapes(
            data.image_px,
            data.images_per_class,
            max(1, data.images_per_class // 2),
            data.split_seed,
        )
    if data.name == "folder":
        from nnstretch.train.data.image_folder import open_folder

        return open_folder(Path(data.root), data.held_out, data.split_seed)
    if data.name == "shards":
        from nnstretch.train.data.shards import open_shards

        return open_shards(data.root)
    from nnstretch.train.data.cifar import open_cifar

    return open_cifar(Path(data.root), 10 if data.name == "cifar10" else 100, data.download)


def needs_transform(images: Images, px: int, resize_px: int = 0) -> bool:
    """Return whether images must be resized or decoded."""
    return (
        not isinstance(images, InMemoryImages)
        or tuple(images.images.shape[-2:]) != (px, px)
        or resize_px > px
    )


def validation_transform_for(images: Images, data: DataSettings) -> ResizeAndCrop | None:
    """Return the transform of held-out images; None where every image has its size already."""
    return (
        validation_transform(data)
        if needs_transform(images, data.validation_px, data.val_resize_px)
        else None
    )


class Pictures(LightningDataModule):
    """Training and validation batches of any data set."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.dataset = open_dataset(recipe.data)
        self.start = (-1, 0)
        if recipe.data.batch_images > len(self.dataset.train):
            defect = f"only {len(self.dataset.train)} images to train on"
            raise BadInput(
                f"data.batch_images is {recipe.data.batch_images}, data set {recipe.data.name},"
                f" {defect}"
            )

    def process_share(self) -> ProcessShare:
        """Return which share of each batch this process loads."""
        trainer = self.trainer
        ranks = (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
        return ProcessShare(*ranks, self.recipe.trainer.micro_batches)

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Return the loader of training batches."""
        order = self.sampling_order(self.recipe.data.batch_images, self.process_share())
        order.start = self.start
        epoch, done = self.start
        order.set_epoch(
            max(0, epoch) + (done >= len(order))
        )  # Lightning says it later than loading processes begin to fetch
        return make_loader(
            self.training_batches(), order, self.recipe.data.workers, self.pins_memory()
        )

    def sampling_order(self, batch_images: int, share: ProcessShare) -> SamplingOrder:
        """Return the order of training images."""
        return SamplingOrder(
            len(self.dataset.train),
            self.dataset.train.chunks,
            batch_images,
            self.recipe.seed,
            share,
        )

    def training_batches(self) -> ImageBatches:
        """Return the training images in batches."""
        data, augment, images = self.recipe.data, self.recipe.augment, self.dataset.train
        view: ImageTransform | None = training_transform(data, augment)
        if view is None and needs_transform(images, data.image_px):
            view = ResizeAndCrop(data.image_px, data.image_px)
        return ImageBatches(images, view, self.recipe.seed, data.corrupt)

    def norm_batches(self, epoch: int, images: int) -> DataLoader[ImageBatch]:
        """Return the first training images of an epoch, all of them on every process, so that
        statistics agree.
        """
        size = min(NORM_BATCH_IMAGES, images, len(self.dataset.train))
        order = self.sampling_order(size, ProcessShare())
        order.set_epoch(epoch)
        picks = list(islice(order, max(1, images // size)))
        return make_loader(
            self.training_batches(), picks, self.recipe.data.workers, self.pins_memory()
        )

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """Return the loader of held-out batches."""
        data, images = self.recipe.data, self.dataset.held
        view = validation_transform_for(images, data)
        picks = sequential_selections(len(images), VAL_BATCH_IMAGES, self.process_share())
        return make_loader(
            ImageBatches(images, view, self.recipe.seed, data.corrupt, judged=True),
            picks,
            data.workers,
            self.pins_memory(),
        )

    def pins_memory(self) -> bool:
        """Return whether batches go to a CUDA device."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def state_dict(self) -> dict[str, Any]:
        """Return how far the epoch is, and of which images.

        The next run goes on there, with the same ones.
        """
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current  # type: ignore[union-attr]
        return {
            "epoch": self.trainer.current_epoch,  # type: ignore[union-attr]
            "micro_batches": progress.processed,  # type: ignore[union-attr]
            "images": self.dataset_identity,
        }

    @cached_property
    def dataset_identity(self) -> dict[str, Any]:
        """Return what identifies the images."""
        train, held_out = self.dataset.train, self.dataset.held
        names = {"train": train.digest(), "held": held_out.digest()}
        return {
            "classes": list(self.dataset.classes),
            "train_images": len(train),
            "held_images": len(held_out),
            **names,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a resumed training has the same images. Raises BadInput where they are
        others.
        """
        before = state_dict.get("images")
        if not isinstance(before, dict) or not {*self.dataset_identity} <= {*before}:
            raise BrokenFile(
                "training state of another version, it says not which images it is of, begin anew"
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
    """Return the line about images that changed between runs."""
    if key == "classes" and isinstance(before, list):
        gone, new = (
            [name for name in before if name not in now],
            [name for name in now if name not in before],
        )
        change = (
            f"class {gone[0]} is gone"
            if gone
            else f"class {new[0]} is new"
            if new
            else "their order is another"
        )
        return f"it has {len(now)} classes and had {len(before)}, {change}"
    if isinstance(now, int):
        return f"{key} were {before} and are now {now}"
    return f"the images called {key} are others than before"


def make_loader(
    batches: ImageBatches,
    picks: Sequence[BatchSelection] | SamplingOrder,
    workers: int,
    pinned: bool,
) -> DataLoader[ImageBatch]:
    """Return a loader with a generator of its own, which keeps it from drawing on the global one.

    The sampler hands out whole batches.
    """
    return DataLoader(
        batches,
        batch_size=None,
        sampler=picks,  # type: ignore[arg-type]
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),
        persistent_workers=False,
    )


def prepare_images(
    dataset: Dataset, images: Images, indices: Sequence[int], data: DataSettings, aloud: bool = True
) -> tuple[Tensor, Tensor]:
    """Prepare chosen images as the network sees them when it is judged: float32 of [n, 3, px, px].

    And their labels.

    Images that cannot be read are named (`aloud`), where `data` says that they are skipped;
    held-out ones are left out, in place of others comes the next.
    """
    judged = images is dataset.held
    batch = ImageBatches(images, validation_transform_for(images, data), 0, data.corrupt, judged)[
        BatchSelection(0, 0, 0, len(indices), tuple(indices))
    ]
    refuse_unreadable(batch, data)
    if aloud:
        report_skipped(batch.problems)
    return normalize_images(batch.images, dataset), batch.labels


def refuse_unreadable(batch: ImageBatch, data: DataSettings) -> None:
    """Refuse a batch of which nothing could be read, except for held-out images where these may be
    skipped. Raises BadInput.
    """
    if not len(batch) and not (batch.is_validation and data.corrupt == "skip"):
        raise BadInput(batch.problems[0])


def report_skipped(problems: Iterable[str]) -> None:
    """Print which images were skipped."""
    for problem in problems:
        print(f"nnstretch: skipped, {one_line(problem)}", file=sys.stderr)


def no_readable_image_error(data: DataSettings) -> BadInput:
    """Return the error of a data set without a readable image."""
    return BadInput(f"no held-out image can be read, data set {data.name}, at least one is needed")


def load_held_out(data: DataSettings) -> tuple[Tensor, Tensor]:
    """Load all validation images as a network sees them, and their labels.

    For data sets that memory holds.

    Raises BadInput when no image can be read.
    """
    dataset = open_dataset(data)
    images, labels = prepare_images(dataset, dataset.held, range(len(dataset.held)), data)
    if not len(labels):
        raise no_readable_image_error(data)
    return images, labels
