"""The two Python stages of the example.

A camera's file becomes what the network reads, and what it says becomes boxes.

Neither needs PyTorch: where the pipeline runs, NumPy and Pillow are enough.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.float32]
SCALE = 2
"""Pixels of a photograph for one of the network's input, in each direction."""
MEAN, SPREAD = 0.5, 0.25
"""Of a brightness from 0 to 1."""
LEAST_SCORE, MOST_OVERLAP = 0.4, 0.4
LARGEST_LOG = 2.5
"""Distances are exp(d) cells; beyond this no box would fit into the image."""


def load(file: bytes | NDArray[np.uint8]) -> Array:
    """Bytes of an image file (as an array, too) -> [1, 3, height / 2, width / 2], about -2 to 2."""
    with Image.open(BytesIO(bytes(file))) as image:
        size = (image.width // SCALE, image.height // SCALE)
        image.draft("RGB", size)  # a JPEG file is decoded no larger than it is needed
        small = image.convert("RGB").resize(size, Image.Resampling.BOX)
    pixels = np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1)[None])
    return pixels * np.float32(1 / (255 * SPREAD)) - np.float32(MEAN / SPREAD)


def boxes(scores: Array, distances: Array) -> Array:
    """[1, classes, h, w] and [1, 4, h, w] of the network -> rows of left, top, right, bottom
    (shares of the image), score, class.

    The best first; of boxes of one class that overlap by more than MOST_OVERLAP the best stays.
    """
    return kept(candidates(scores, distances, LEAST_SCORE), MOST_OVERLAP)


def candidates(scores: Array, distances: Array, least: float) -> Array:
    """A box for every cell and class that is sure enough."""
    chances = 1 / (1 + np.exp(-scores[0]))
    labels, rows, columns = np.nonzero(chances >= least)
    reach = np.exp(np.minimum(distances[0][:, rows, columns], LARGEST_LOG))
    x, y = columns + 0.5, rows + 0.5
    high, wide = scores.shape[2:]
    sides = np.stack([x - reach[0], y - reach[1], x + reach[2], y + reach[3]], 1) / np.array(
        [wide, high, wide, high]
    )
    found = np.concatenate(
        [np.clip(sides, 0, 1), chances[labels, rows, columns][:, None], labels[:, None]], 1
    )
    return found[np.argsort(-found[:, 4], kind="stable")].astype(np.float32)


def kept(found: Array, most_overlap: float) -> Array:
    """Non-maximum suppression, class by class."""
    left = list(found)
    chosen: list[Array] = []
    while left:
        best, *others = left
        chosen.append(best)
        left = [row for row in others if row[5] != best[5] or overlap(row, best) <= most_overlap]
    return np.array(chosen, np.float32).reshape(-1, 6)


def overlap(one: Array, other: Array) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return float(width * height / (areas - width * height))
