"""Images drawn by a seed for int8: to measure ranges on, and to judge on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnstretch.bundle.image_task import IMAGE_ENDINGS, ImageTask, is_image_name
from nnstretch.errors import BadInput
from nnstretch.train.data.batches import no_readable_image_error, prepare_images
from nnstretch.train.data.catalog import open_dataset
from nnstretch.train.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Dataset,
    Images,
    InMemoryImages,
)
from nnstretch.train.data.decode import (
    decode_image,
    read_image_bytes,
)
from nnstretch.train.data.transforms import ResizeAndCrop, normalize_images
from nnstretch.train.recipe import DataSettings
from nnstretch.train.recipe_loader import load_recipe

IMAGES_IN_MEMORY = 32


@dataclass(frozen=True)
class CalibrationImages:
    """Inputs of a network without labels, one inference each, read anew in every iteration."""

    read: Callable[[int], Tensor]
    """Float32 [1, 3, side, side] of one image. Raises BadInput."""
    indices: tuple[int, ...]
    batch: int

    def __iter__(self) -> Iterator[Tensor]:
        for first in range(0, len(self.indices), self.batch):
            chosen = self.indices[first : first + self.batch]
            yield torch.cat([self.read(index) for index in chosen])


@dataclass(frozen=True)
class LabeledImages:
    """Chosen images of a data set with their labels, as a network is judged on them."""

    dataset: Dataset
    images: Images
    indices: tuple[int, ...]
    settings: DataSettings

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield float32 [n, 3, px, px] and labels [n]. Raises BadInput if none can be read."""
        readable = 0
        for first in range(0, len(self.indices), IMAGES_IN_MEMORY):
            chosen = self.indices[first : first + IMAGES_IN_MEMORY]
            images, labels = prepare_images(self.dataset, self.images, chosen, self.settings)
            readable += len(labels)
            if len(labels):
                yield images, labels
        if not readable:
            raise no_readable_image_error(self.settings)


def select_images(available: int, count: int | None, seed: int) -> list[int]:
    """Draw `count` ascending indices by the seed; None, or more than there are, takes all."""
    if count is None or count >= available:
        return list(range(available))
    return sorted(np.random.default_rng(seed).choice(available, count, replace=False).tolist())


def shuffle_images(indices: list[int], seed: int) -> list[int]:
    """Put images in random order.

    Ranges are moving averages: the last images count most and must not all be of one class.
    """
    return np.random.default_rng(seed).permutation(indices).tolist()  # type: ignore[no-any-return]


def training_images(
    dataset: Dataset, settings: DataSettings, count: int, seed: int
) -> LabeledImages:
    """Draw training images in random order, for calibration."""
    indices = shuffle_images(select_images(len(dataset.train), count, seed), seed)
    return LabeledImages(dataset, dataset.train, tuple(indices), settings)


def held_out_images(
    dataset: Dataset, settings: DataSettings, count: int | None, seed: int
) -> LabeledImages:
    """Draw held-out images in ascending order; all of them if `count` is None."""
    indices = select_images(len(dataset.held), count, seed)
    return LabeledImages(dataset, dataset.held, tuple(indices), settings)


def open_calibration(
    source: str,
    images: int,
    input_shape: tuple[int, ...],
    seed: int = 0,
    task: ImageTask | None = None,
) -> CalibrationImages:
    """Draw calibration images from a folder, at any depth, or a recipe's training set.

    Images of a folder are resized, cropped to their middle and normalized as `task` says, as
    ImageNet's without one; a recipe says how its images are seen. Raises BadInput or UnknownName.
    """
    if images < 1:
        raise BadInput(
            f"--calibration-images is {images}, command line, at least 1 image is needed"
        )
    if len(input_shape) != 4 or input_shape[1] != 3 or input_shape[2] != input_shape[3]:
        shape = "x".join(map(str, input_shape))
        raise BadInput(
            f"the network takes {shape}, --calibration {source}, images are read only for square"
            " inputs of 3 channels"
        )
    batch = input_shape[0]
    side = input_shape[2]
    if Path(source).is_dir():
        count, read = folder_images(Path(source), side, task)
    else:
        count, read, seed = recipe_images(source, side)
    if count < batch:
        raise BadInput(
            f"{count} images, --calibration {source}, one input of the network takes {batch}"
        )
    drawn = select_images(count - count % batch, max(images // batch, 1) * batch, seed)
    return CalibrationImages(read, tuple(shuffle_images(drawn, seed)), batch)


def open_held_out(source: str, images: int, side: int) -> LabeledImages | None:
    """Draw labeled held-out images of a recipe; None of a folder, whose images have no labels."""
    if Path(source).is_dir():
        return None
    recipe = load_recipe(source)
    data = settings_for_side(recipe.data, side)
    return held_out_images(open_dataset(data), data, images, recipe.seed)


def settings_for_side(data: DataSettings, side: int) -> DataSettings:
    """Return the settings of a data set whose images are seen at another size."""
    if data.validation_px == side:
        return data
    return replace(data, image_px=side, val_px=0, val_resize_px=0)


def folder_images(
    root: Path, side: int, task: ImageTask | None
) -> tuple[int, Callable[[int], Tensor]]:
    """Count a folder's images and return their reader. Raises BadInput for a folder without."""
    files = sorted(
        path
        for path in root.rglob("*")
        if is_image_name(str(path.relative_to(root))) and path.is_file()
    )
    if not files:
        raise BadInput(
            f"no images, --calibration {root}, needed are files that end in"
            f" {', '.join(IMAGE_ENDINGS)}"
        )
    seen = task or ImageTask((), IMAGENET_MEAN, IMAGENET_STD)
    fit = ResizeAndCrop(seen.short_px(side), side)
    empty = InMemoryImages(torch.empty(0), torch.empty(0))
    colors = Dataset(empty, empty, (), seen.mean, seen.std)

    def read(index: int) -> Tensor:
        image = fit(decode_image(read_image_bytes(files[index]), str(files[index])))
        return normalize_images(image[None], colors)

    return len(files), read


def recipe_images(recipe_name: str, side: int) -> tuple[int, Callable[[int], Tensor], int]:
    """Count a recipe's training images and return their reader and the recipe's seed."""
    recipe = load_recipe(recipe_name)
    data = settings_for_side(recipe.data, side)
    dataset = open_dataset(data)

    def read(index: int) -> Tensor:
        return prepare_images(dataset, dataset.train, [index], data)[0]

    return len(dataset.train), read, recipe.seed
