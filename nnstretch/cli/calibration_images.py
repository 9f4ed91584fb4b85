"""Images that calibrate int8, as a network sees them.

Of a folder, or of a recipe's training set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.quantize import select_images, shuffle_batches
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"})
DEFAULT_IMAGES = 64


@dataclass(frozen=True)
class CalibrationImages:
    """Inputs of a network, one inference each.

    Read anew, one at a time, whenever they are asked for.
    """

    read: Callable[[int], Tensor]
    """Float32 [1, 3, side, side] of one image. Raises BadInput."""
    indices: tuple[int, ...]
    batch: int

    def __iter__(self) -> Iterator[Tensor]:
        import torch

        for first in range(0, len(self.indices), self.batch):
            yield torch.cat(
                [self.read(index) for index in self.indices[first : first + self.batch]]
            )


def open_calibration(
    what: str, images: int, input_shape: tuple[int, ...], seed: int = 0
) -> CalibrationImages:
    """Open calibration images; `what` is a folder of images, at any depth, or a recipe (its
    training images).

    Which ones are drawn by the seed.

    Images of a folder are resized and cropped to their middle, and brought to ImageNet's mean and
    deviation; those of a recipe are seen as the recipe says, at the network's size. Raises BadInput
    or UnknownName.
    """
    if images < 1:
        raise BadInput(
            f"--calibration-images is {images}, command line, at least 1 image is needed"
        )
    if len(input_shape) != 4 or input_shape[1] != 3 or input_shape[2] != input_shape[3]:
        shape = "x".join(map(str, input_shape))
        raise BadInput(
            f"the network takes {shape}, --calibration {what}, images are read only for square"
            " inputs of 3 channels"
        )
    batch, side = input_shape[0], input_shape[2]
    count, read, seed = (
        folder_images(Path(what), side, seed) if Path(what).is_dir() else recipe_images(what, side)
    )
    if count < batch:
        raise BadInput(
            f"{count} images, --calibration {what}, one input of the network takes {batch}"
        )
    wanted = max(images // batch, 1) * batch
    indices = shuffle_batches(select_images(count - count % batch, wanted, seed), seed)
    return CalibrationImages(read, tuple(indices), batch)


def folder_images(root: Path, side: int, seed: int) -> tuple[int, Callable[[int], Tensor], int]:
    """Return how many images a folder holds, and how to read one.

    Raises BadInput when the folder holds no image.
    """
    import torch

    from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, InMemoryImages
    from nnstretch.train.data.decode import decode_image, read_image_bytes
    from nnstretch.train.data.transforms import ResizeAndCrop, normalize_images

    files = sorted(
        path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not files:
        raise BadInput(
            f"no images, --calibration {root}, needed are files that end in"
            f" {', '.join(sorted(SUFFIXES))}"
        )
    fit, nothing = ResizeAndCrop(side, side), InMemoryImages(torch.empty(0), torch.empty(0))
    colours = Dataset(nothing, nothing, (), IMAGENET_MEAN, IMAGENET_STD)

    def read(index: int) -> Tensor:
        image = fit(decode_image(read_image_bytes(files[index]), str(files[index])))
        return normalize_images(image[None], colours)

    return len(files), read, seed


def recipe_images(what: str, side: int) -> tuple[int, Callable[[int], Tensor], int]:
    """Return how many training images a recipe has, how to read one, and its seed."""
    from nnstretch.train.data import open_dataset, prepare_images
    from nnstretch.train.recipe_loader import load_recipe

    recipe = load_recipe(what)
    data = (
        recipe.data
        if recipe.data.validation_px == side
        else replace(recipe.data, image_px=side, val_px=0, val_resize_px=0)
    )
    dataset = open_dataset(data)
    return (
        len(dataset.train),
        lambda index: prepare_images(dataset, dataset.train, [index], data)[0],
        recipe.seed,
    )
