"""Photographs for the example, drawn by rule.

One to five shapes of random colours on clouds and noise, and where they are.

A scene depends on (seed, number) alone. Outlines and backgrounds are those of nnstretch's data set
of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from detector import CLASSES
from numpy.typing import NDArray
from PIL import Image
from stages import overlap

from nnstretch.train.data.shapes import OUTLINES, draw_background, rotate_and_scale

PHOTO_PX = 192
RADIUS = (0.075, 0.17)
"""Of a shape, where the image is 1."""
MOST_SHAPES, TILT, NOISE = 5, 0.4, 0.04
APART = 0.35
"""How far a shape's colour is from the background's at least; black and white are 1.7 apart."""
TRAINING, HELD_OUT = 1, 2
"""Seeds of scenes."""
Truth = NDArray[np.float32]
"""Rows of left, top, right, bottom (shares of the image), 1, class."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An image as a camera would write it, and what is on it."""

    file: bytes
    truth: Truth


def scene(number: int, seed: int) -> Scene:
    rng = np.random.default_rng((seed, number))
    line = (np.arange(PHOTO_PX, dtype=np.float32) + 0.5) / np.float32(PHOTO_PX)
    x, y = np.meshgrid(line, line)
    image = draw_background(2 * x - 1, 2 * y - 1, rng)
    found: list[Truth] = []
    for _ in range(int(rng.integers(1, MOST_SHAPES + 1))):
        label, radius = int(rng.integers(len(CLASSES))), float(rng.uniform(*RADIUS))
        middle = rng.uniform(1.15 * radius, 1 - 1.15 * radius, 2)
        u, v = rotate_and_scale(
            x - np.float32(middle[0]), y - np.float32(middle[1]), rng.uniform(-TILT, TILT), radius
        )
        inside = np.clip(0.5 - OUTLINES[CLASSES[label]](u, v) * (radius * PHOTO_PX), 0, 1)
        box = box_of(inside, label)
        if all(overlap(box, other) < 0.02 for other in found):
            image = image + (colour(image, inside, rng) - image) * inside
            found.append(box)
    noisy = image + NOISE * rng.standard_normal(image.shape, dtype=np.float32)
    pixels = np.clip(np.round(noisy * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return Scene(file.getvalue(), np.stack(found))


def views(number: int, seed: int) -> Scene:
    """Four scenes in one photograph, as of four cameras.

    Twice as wide and as high, with the shapes of all.
    """
    four = [scene(4 * number + n, seed) for n in range(4)]
    sheet, truth = Image.new("RGB", (2 * PHOTO_PX, 2 * PHOTO_PX)), []
    for n, one in enumerate(four):
        corner = np.array([n % 2, n // 2])
        sheet.paste(
            Image.open(BytesIO(one.file)), (int(corner[0]) * PHOTO_PX, int(corner[1]) * PHOTO_PX)
        )
        truth.append(
            np.concatenate(
                [
                    (one.truth[:, :2] + corner) / 2,
                    (one.truth[:, 2:4] + corner) / 2,
                    one.truth[:, 4:],
                ],
                1,
            ).astype(np.float32)
        )
    file = BytesIO()
    sheet.save(file, "JPEG", quality=90)
    return Scene(file.getvalue(), np.concatenate(truth))


def box_of(inside: NDArray[np.float32], label: int) -> Truth:
    columns, rows = np.nonzero(inside.max(0) > 0.5)[0], np.nonzero(inside.max(1) > 0.5)[0]
    sides = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / PHOTO_PX
    return np.array([*sides, 1, label], np.float32)


def colour(
    image: NDArray[np.float32], inside: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """[3, 1, 1], different enough from what it covers."""
    behind = (image * inside).sum((1, 2)) / inside.sum()
    while True:
        tried = rng.uniform(0, 1, 3).astype(np.float32)
        if np.linalg.norm(tried - behind) >= APART:
            return tried[:, None, None]
