"""What every data set looks like to training: numbered images as bytes, and their class."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput

Color = tuple[float, float, float]
"""Red, green, blue, each from 0 to 1."""
IMAGENET_MEAN: Color = (0.485, 0.456, 0.406)
IMAGENET_STD: Color = (0.229, 0.224, 0.225)
"""Of ImageNet's training images (torchvision's models, since 2017).

Photographs are near enough to them.
"""


class UnreadableImage(BadInput):
    """One image of many that cannot be decoded; a recipe may ask for such images to be skipped."""


class Images(Protocol):
    """Images in a fixed order; reading one twice gives the same bytes."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return sizes of the runs that are stored together, where reading across runs is dear.

        Empty where it is not.
        """
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return uint8 of [3, height, width], and the number of its class. Raises Unreadable."""
        ...

    def digest(self) -> str:
        """Return a digest: another one where images came, went, moved or changed their class.

        Files are known by their names, not by their bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images to learn from, images to be judged by, and what brings their colours to mean 0 and
    deviation 1.
    """

    train: Images
    held: Images
    classes: tuple[str, ...]
    mean: Color
    std: Color


@dataclass(frozen=True, slots=True)
class InMemoryImages:
    """All images in one tensor, uint8 of [images, 3, height, width]."""

    images: Tensor
    labels: Tensor
    chunks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def digest(self) -> str:
        """Return the SHA-256 of images and labels."""
        return arrays_digest(self.images.contiguous().numpy(), self.labels.numpy())


def arrays_digest(*arrays: NDArray[Any]) -> str:
    """Return a digest of the arrays' shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
