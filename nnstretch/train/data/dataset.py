"""Data sets as training sees them: numbered images as bytes, and their classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput, one_line

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
        """Return a digest of order, classes, and files (names, sizes) or bytes (in memory)."""
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
    """Whole numbers [images]."""
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


@dataclass(frozen=True, slots=True)
class CheckedImages:
    """Images of a stranger's code: one that fails or has another form counts as unreadable."""

    images: Images
    classes: int
    source: str
    """The data set, for messages: `FILE.py:FUNCTION`."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return the sizes of files that hold many images each, where the code names any."""
        return tuple(getattr(self.images, "chunks", ()))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            image, label = self.images[index]
        except UnreadableImage:
            raise
        except Exception as error:
            why = f"{type(error).__name__}, {one_line(error)}"
            raise UnreadableImage(
                f"cannot read image {index}, data set {self.source}, {why}"
            ) from error
        defect = image_defect(image) or labels_defect([label], self.classes)
        if defect:
            raise UnreadableImage(f"cannot use image {index}, data set {self.source}, {defect}")
        return image, int(label)

    def digest(self) -> str:
        """Return the digest of the images. Raises BadInput where it fails, or is no text."""
        try:
            digest = self.images.digest()
        except Exception as error:
            why = f"{type(error).__name__}, {one_line(error)}"
            raise BadInput(f"no digest of images, data set {self.source}, {why}") from error
        if not isinstance(digest, str):
            kind = type(digest).__name__
            raise BadInput(
                f"no digest of images, data set {self.source}, it is of type {kind}, needed is text"
            )
        return digest


def image_defect(image: object) -> str:
    """Return why something is no image; empty if it is one."""
    if not isinstance(image, Tensor):
        return f"it is {form_of(image)}, needed is a tensor, uint8 [3, height, width]"
    if image.dtype != torch.uint8 or image.dim() != 3 or len(image) != 3 or 0 in image.shape:
        return f"it is {form_of(image)}, needed is uint8 [3, height, width]"
    return ""


def form_of(value: object) -> str:
    """Return numbers and shape of a tensor in words, or the type of something else."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def labels_defect(labels: Sequence[Any], classes: int) -> str:
    """Return why labels are no numbers of classes; empty if they are."""
    for label in labels:
        is_number = isinstance(label, int | np.integer) or (
            isinstance(label, Tensor) and label.dim() == 0 and not label.is_floating_point()
        )
        if not is_number or not 0 <= int(label) < classes:
            return f"its class is {one_line(label)[:60]}, classes are numbered 0 to {classes - 1}"
    return ""


def check_dataset(dataset: object, source: str) -> Dataset:
    """Return a data set of a stranger's code, with images that are checked when they are read.

    Raises BadInput where it is none, has no images, or its classes and colors are no such.
    """
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise BadInput(f"no data set from {source}, it returned a {kind}, needed is a Dataset")
    classes = dataset.classes
    defect = classes_defect(classes) or colors_defect(dataset.mean, dataset.std)
    parts: list[Images] = []
    for name, images in (("train", dataset.train), ("held", dataset.held)):
        defect = defect or images_defect(name, images, len(classes))
        if defect:
            raise BadInput(f"cannot use data set {source}, {defect}")
        if isinstance(images, InMemoryImages):
            # As losses want them.
            parts.append(replace(images, labels=images.labels.long()))
        else:
            parts.append(CheckedImages(images, len(classes), source))
    mean, std = as_floats(dataset.mean), as_floats(dataset.std)
    return Dataset(parts[0], parts[1], tuple(classes), mean, std)


def as_floats(color: Color) -> Color:
    """Return the three numbers of a color as floats; whole ones may be integers."""
    red, green, blue = map(float, color)
    return red, green, blue


def classes_defect(classes: object) -> str:
    """Return why something is no list of classes; empty if it is one."""
    if not isinstance(classes, tuple | list) or not classes:
        return f"its classes are {one_line(classes)[:60]}, needed is a tuple of names"
    if not all(isinstance(name, str) and name for name in classes):
        return f"its classes are {one_line(classes)[:60]}, needed are names"
    return "two of its classes have one name" if len(set(classes)) < len(classes) else ""


def colors_defect(mean: Color, std: Color) -> str:
    """Return why mean and deviation are no colors; empty if they are."""
    for name, color, least in (("mean", mean, 0.0), ("std", std, 1e-6)):
        values = np.asarray(color, dtype=object)
        if values.shape != (3,) or not all(is_number(c) and least <= c <= 1 for c in color):
            return f"its {name} is {one_line(color)[:60]}, needed are three numbers, 0 to 1"
    return ""


def is_number(value: object) -> bool:
    """Return whether a value is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def images_defect(name: str, images: object, classes: int) -> str:
    """Return why a part of a data set cannot be used; empty if it can."""
    needed = ("__len__", "__getitem__", "digest")
    if missing := [method for method in needed if not hasattr(images, method)]:
        return f"its {name} has no {missing[0]}, needed are {', '.join(needed)}"
    if isinstance(images, InMemoryImages) and (defect := stack_defect(images, classes)):
        return f"its {name} cannot be used, {defect}"
    count = len(images)  # type: ignore[arg-type]
    if not count:
        return f"its {name} has no images"
    defect = chunks_defect(getattr(images, "chunks", ()), count)
    return f"its {name} cannot be used, {defect}" if defect else ""


def chunks_defect(chunks: object, images: int) -> str:
    """Return why sizes of files cannot be those of a data set; empty if they can."""
    listed = chunks if isinstance(chunks, list | tuple) else (None,)
    sizes = [int(size) for size in listed if isinstance(size, int | np.integer)]
    if len(sizes) < len(listed):
        return f"its chunks are {form_of(chunks)}, needed are whole numbers"
    if sizes and (min(sizes) < 1 or sum(sizes) != images):
        return f"its chunks hold {sum(sizes)} images and it has {images}"
    return ""


def stack_defect(images: InMemoryImages, classes: int) -> str:
    """Return why images in one tensor cannot be used; empty if they can, or are none."""
    stack, labels = images.images, images.labels
    if not isinstance(stack, Tensor) or stack.dim() != 4:
        form = "a tensor, uint8 [images, 3, height, width]"
        return f"its images are {form_of(stack)}, needed is {form}"
    is_list = isinstance(labels, Tensor) and labels.dim() == 1
    if not is_list or labels.is_floating_point() or labels.is_complex():
        return f"its labels are {form_of(labels)}, needed is a tensor of whole numbers [images]"
    if len(stack) != len(labels):
        return f"it has {len(stack)} images and {len(labels)} labels"
    if not len(stack):
        return ""
    return image_defect(stack[0]) or labels_defect(labels.long().unique().tolist(), classes)
