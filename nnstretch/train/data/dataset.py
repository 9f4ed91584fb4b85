"""Data sets as training sees them: numbered images as bytes, and their classes."""

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
"""Of ImageNet's training images, as torchvision's models have it; used for all photographs."""


class UnreadableImage(BadInput):
    """An image that cannot be decoded; a recipe may ask for such images to be skipped."""


class Images(Protocol):
    """Images in a fixed order, each with the same bytes whenever it is read."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return the sizes of files that hold many images each; empty where images lie singly."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, uint8 [3, height, width], and its class. Raises UnreadableImage."""
        ...

    def digest(self) -> str:
        """Return a digest of order, names (of files) or bytes (in memory), and classes."""
        ...


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and held-out images, with mean and deviation of their colors."""

    train: Images
    held: Images
    classes: tuple[str, ...]
    mean: Color
    std: Color


@dataclass(frozen=True, slots=True)
class InMemoryImages:
    """Images in one tensor."""

    images: Tensor
    """uint8 [images, 3, height, width]."""
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
