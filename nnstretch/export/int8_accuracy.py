"""Labels that judge int8: what share of the accuracy it may lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from nnstretch.errors import BadInput, Mismatch

TIMES_CHANCE = 2.0
"""Accuracy over that of chance from which on labels tell anything about a network; of two classes
half of the way from chance to all."""


class LabeledBatches(Protocol):
    """Labeled images in a fixed order, a few in memory at a time."""

    def __len__(self) -> int:
        """Count the images."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield float32 images [n, channels, height, width] and labels [n]."""


@dataclass(frozen=True, slots=True)
class LabeledAccuracy:
    """Shares of held-out images that are classified right, from 0 to 1."""

    images: int
    float_accuracy: float
    int8_accuracy: float
    classes: int

    @property
    def says_something(self) -> bool:
        """Return whether the network knows these classes, so that a loss can be told."""
        chance = 1 / self.classes
        return self.float_accuracy >= min(TIMES_CHANCE * chance, (1 + chance) / 2)


def compare_on_labels(
    module: nn.Module,
    run: Callable[[np.ndarray], np.ndarray],
    held_out: LabeledBatches,
    batch: int,
) -> LabeledAccuracy | None:
    """Classify images by the module and by `run`, `batch` at a time.

    Returns None where the network gives no row of scores for each image, or one batch takes more
    images than there are.
    """
    right = np.zeros(2, np.int64)
    images = classes = 0
    for x, wanted in full_batches(held_out, batch):
        scores = module(x)
        if not isinstance(scores, torch.Tensor) or scores.dim() != 2:
            return None
        answers = (scores.numpy(), run(x.numpy()))
        right += [int((rows.argmax(1) == wanted.numpy()).sum()) for rows in answers]
        images, classes = images + batch, scores.shape[1]
    if not images:
        return None
    shares = right / images
    return LabeledAccuracy(images, float(shares[0]), float(shares[1]), classes)


def full_batches(
    labeled: LabeledBatches, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels `batch` at a time, without the last ones that do not fill a batch."""
    images: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for chunk, wanted in labeled:
        images.extend(chunk)
        labels.extend(wanted)
        while len(images) >= batch:
            yield torch.stack(images[:batch]), torch.stack(labels[:batch])
            del images[:batch], labels[:batch]


def check_labels(labels: torch.Tensor, classes: int) -> None:
    """Check that labels are classes: no network gets others right. Raises BadInput."""
    known = (labels >= 0) & (labels < classes) & (labels == labels.long())
    if not known.all():
        raise BadInput(
            f"label {labels[~known][0].item():g}, held-out images, {classes} classes are numbered"
            f" from 0 to {classes - 1}"
        )


def refuse_drop(
    float_accuracy: float, int8_accuracy: float, images: int, max_drop: float, name: str
) -> None:
    """Check the loss of accuracy. Raises Mismatch when it is beyond the limit, in points."""
    drop = 100 * (float_accuracy - int8_accuracy)
    if drop > max_drop + 1e-9:
        raise Mismatch(
            f"int8 of {name} loses {drop:.2f} points of accuracy, {images} held-out images"
            f" ({float_accuracy:.2%} to {int8_accuracy:.2%}), max_drop allows"
            f" {max_drop:g}; nothing was written"
        )
