"""Textured shapes, drawn by rule.

60 classes that need both the outline and the texture, no download.

A class is an outline (10) filled with a texture (6), such as "striped star". Colours, background,
place, size and angles are random and the same for all classes. An image depends on (seed, split,
class, number) alone (and on NumPy's version, which fixes what its generators draw), so more images
of a class keep the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import Color, Dataset, InMemoryImages

PixelField = NDArray[np.floating[Any]]
"""One number a pixel."""
MIN_IMAGE_PX, MAX_IMAGE_PX = 16, 256
NOISE_DEVIATION = 0.02
"""Deviation of the noise of each channel of each pixel, of a brightness from 0 to 1."""
SHAPE_CONTRAST_RANGE, BACKGROUND_CONTRAST_RANGE = (0.65, 0.90), (0.05, 0.15)
"""How far apart the two colours of a texture and of the background are.

Black and white are 1 apart.
"""
RADIUS_RANGE, TEXTURE_PERIOD_RANGE = (0.80, 0.92), (0.40, 0.55)
"""Radius of a shape and period of its texture; half the image is 1."""
MAX_TILT_RAD = 0.2
"""Most that a shape, and its texture on its own, is turned, in radians."""
FULL_TURN_RAD = 2 * np.pi


def polygon_distance(x: PixelField, y: PixelField, sides: int, inner: float) -> PixelField:
    """Return a distance, below 0 inside the regular polygon whose sides are `inner` from the
    middle.
    """
    turns = np.arange(sides) * (FULL_TURN_RAD / sides)
    return np.max([x * np.cos(turn) + y * np.sin(turn) for turn in turns], axis=0) - inner


def box(x: PixelField, y: PixelField, half_width: float, half_height: float) -> PixelField:
    """Return the signed distance from a rectangle."""
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def disc(x: PixelField, y: PixelField, radius: float) -> PixelField:
    """Return the signed distance from a disc."""
    return np.hypot(x, y) - radius


def star(x: PixelField, y: PixelField) -> PixelField:
    """Return the distance from a star of five points: one edge, its angle folded to the tenth of a
    turn that it serves.
    """
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    folded = np.abs(
        (angle + FULL_TURN_RAD) % (FULL_TURN_RAD / 5) - FULL_TURN_RAD / 10
    )  # 0 in a notch, a tenth of a turn at a tip
    across, along = radius * np.sin(folded), radius * np.cos(folded)
    tip = 1.15 * np.array([np.cos(FULL_TURN_RAD / 10), np.sin(FULL_TURN_RAD / 10)])
    edge = tip - np.array([0.5, 0.0])
    return ((along - 0.5) * edge[1] - across * edge[0]) / float(np.hypot(*edge))


def crescent(x: PixelField, y: PixelField) -> PixelField:
    """Return the signed distance from a crescent."""
    return np.maximum(disc(x, y, 1.05), -disc(x - 0.55, y, 0.75))


def heart(x: PixelField, y: PixelField) -> PixelField:
    """Return the distance from a heart: a square on its corner and a disc on each of its upper
    sides; y points down.
    """
    lobes = disc(np.abs(x) - 0.40, y + 0.22, 0.56)
    lower = box((x + y - 0.16) * 0.7071, (x - y + 0.16) * 0.7071, 0.56, 0.56)
    return np.minimum(lobes, lower)


def arrow(x: PixelField, y: PixelField) -> PixelField:
    """Return the signed distance from an arrow."""
    head = np.maximum(-x, 0.75 * np.abs(y) + 0.66 * x - 0.75)
    return np.minimum(head, box(x + 0.5, y, 0.6, 0.34))


OUTLINES: dict[str, Callable[[PixelField, PixelField], PixelField]] = {
    "disc": lambda x, y: disc(x, y, 0.95),
    "square": lambda x, y: box(x, y, 0.85, 0.85),
    "triangle": lambda x, y: polygon_distance(x, y, 3, 0.62),
    "star": star,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.30,
    "cross": lambda x, y: np.minimum(box(x, y, 1.0, 0.36), box(x, y, 0.36, 1.0)),
    "crescent": crescent,
    "capsule": lambda x, y: np.hypot(np.maximum(np.abs(x) - 0.65, 0), y) - 0.45,
    "heart": heart,
    "arrow": arrow,
}
"""Below 0 inside, about the distance to the edge outside, of a shape of about radius 1."""


def soften_wave(wave: PixelField) -> PixelField:
    """Map -1..1 to 0..1, steeper than a sine."""
    return np.clip(0.5 + 0.9 * wave, 0, 1)


def dot_pattern(u: PixelField, v: PixelField) -> PixelField:
    """Return the brightness of a pattern of dots."""
    return soften_wave((0.30 - np.hypot(u % 1 - 0.5, v % 1 - 0.5)) * 5)


def smooth_noise(u: PixelField, v: PixelField, rng: np.random.Generator) -> PixelField:
    """Return random brightness on the whole numbers, blended between them; repeats after 16."""
    grid = rng.random((16, 16), dtype=np.float32)
    left_edge, low = np.floor(u), np.floor(v)
    right_share, high_share = u - left_edge, v - low
    i, j = left_edge.astype(np.int64) % 16, low.astype(np.int64) % 16
    k, m = (i + 1) % 16, (j + 1) % 16
    below = grid[i, j] * (1 - right_share) + grid[k, j] * right_share
    above = grid[i, m] * (1 - right_share) + grid[k, m] * right_share
    return below * (1 - high_share) + above * high_share


TEXTURES: dict[str, Callable[[PixelField, PixelField, np.random.Generator], PixelField]] = {
    "striped": lambda u, v, rng: soften_wave(np.sin(FULL_TURN_RAD * u)),
    "chequered": lambda u, v, rng: soften_wave(
        2 * np.sin(FULL_TURN_RAD * u * 0.6) * np.sin(FULL_TURN_RAD * v * 0.6)
    ),
    "dotted": lambda u, v, rng: dot_pattern(u, v),
    "ringed": lambda u, v, rng: soften_wave(np.sin(FULL_TURN_RAD * np.hypot(u, v))),
    "wavy": lambda u, v, rng: soften_wave(
        np.sin(FULL_TURN_RAD * (u + 0.45 * np.sin(FULL_TURN_RAD * v * 0.45)))
    ),
    "speckled": lambda u, v, rng: soften_wave(4 * smooth_noise(u * 1.6, v * 1.6, rng) - 2),
}
"""0 to 1, which blends the two colours of a shape; the period is about 1."""
CLASS_NAMES = tuple(f"{texture} {outline}" for outline in OUTLINES for texture in TEXTURES)


def rotate_and_scale(
    x: PixelField, y: PixelField, angle: float, size: float
) -> tuple[PixelField, PixelField]:
    """Return coordinates turned by an angle and scaled."""
    cos, sin = np.float32(np.cos(angle) / size), np.float32(np.sin(angle) / size)
    return cos * x + sin * y, cos * y - sin * x


def blend_random_colors(
    blend: PixelField, contrast: tuple[float, float], rng: np.random.Generator
) -> PixelField:
    """Return [3, height, width]: from one random color to another, in a random direction from
    it.
    """
    middle, way = rng.uniform(0.25, 0.75, 3), rng.normal(size=3)
    way *= rng.uniform(*contrast) * 0.5 * np.sqrt(3) / np.linalg.norm(way)
    first, second = (middle - way).astype(np.float32), (middle + way).astype(np.float32)
    return first[:, None, None] * (1 - blend) + second[:, None, None] * blend


def draw_background(x: PixelField, y: PixelField, rng: np.random.Generator) -> PixelField:
    """Draw clouds with a grating over them, so that neither texture nor waves tell where the shape
    is.
    """
    u, v = rotate_and_scale(x, y, rng.uniform(0, FULL_TURN_RAD), rng.uniform(0.2, 0.6))
    clouds = smooth_noise(u + rng.uniform(0, 16), v, rng)
    wave = np.sin(FULL_TURN_RAD * (u * rng.uniform(0.3, 1.2) + rng.uniform()))
    return blend_random_colors(
        np.clip(clouds + rng.uniform(0, 0.35) * wave, 0, 1), BACKGROUND_CONTRAST_RANGE, rng
    )


def draw_image(number: int, image_px: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image of class `number`, [3, image_px, image_px]."""
    outline = tuple(OUTLINES.values())[number // len(TEXTURES)]
    texture = tuple(TEXTURES.values())[number % len(TEXTURES)]
    line = (np.arange(image_px, dtype=np.float32) + 0.5) * np.float32(2 / image_px) - 1
    x, y = np.meshgrid(line, line)
    behind = draw_background(x, y, rng)
    size = rng.uniform(*RADIUS_RANGE)
    x, y = (
        x - np.float32(rng.uniform(-1, 1) * (1 - size)),
        y - np.float32(rng.uniform(-1, 1) * (1 - size)),
    )
    edge_px = outline(*rotate_and_scale(x, y, rng.uniform(-MAX_TILT_RAD, MAX_TILT_RAD), size)) * (
        size * image_px / 2
    )
    u, v = rotate_and_scale(
        x, y, rng.uniform(-MAX_TILT_RAD, MAX_TILT_RAD), rng.uniform(*TEXTURE_PERIOD_RANGE)
    )
    u, v = u + np.float32(rng.uniform(-0.5, 0.5)), v + np.float32(rng.uniform(-0.5, 0.5))
    front = blend_random_colors(texture(u, v, rng), SHAPE_CONTRAST_RANGE, rng)
    inside = np.clip(0.5 - edge_px, 0, 1)
    clean = behind + (front - behind) * inside
    noisy = clean + NOISE_DEVIATION * rng.standard_normal(clean.shape, dtype=np.float32)
    return np.clip(np.round(noisy * 255), 0, 255).astype(np.uint8)


def draw_images(image_px: int, per_class: int, seed: int, split: int) -> InMemoryImages:
    """Draw `per_class` images of every class, class after class."""
    images = np.empty((len(CLASS_NAMES) * per_class, 3, image_px, image_px), np.uint8)
    for place in range(len(images)):
        number, k = divmod(place, per_class)
        images[place] = draw_image(
            number, image_px, np.random.default_rng((seed, split, number, k))
        )
    return InMemoryImages(
        torch.from_numpy(images), torch.arange(len(CLASS_NAMES)).repeat_interleave(per_class)
    )


def color_statistics(images: Tensor) -> tuple[Color, Color]:
    """Return mean and deviation of each channel, from exact sums of bytes."""
    counts = torch.stack(
        [torch.bincount(images[:, channel].flatten(), minlength=256) for channel in range(3)]
    ).double()
    level, total = torch.arange(256).double() / 255, counts.sum(1)
    mean = (counts @ level) / total
    std = ((counts @ level.square()) / total - mean.square()).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


@lru_cache(maxsize=2)
def open_shapes(image_px: int, images_per_class: int, held_per_class: int, seed: int) -> Dataset:
    """Draw images of `image_px` squared; mean and deviation are those of the training images.

    Raises BadInput.
    """
    if not MIN_IMAGE_PX <= image_px <= MAX_IMAGE_PX:
        raise BadInput(
            f"image_px is {image_px}, data set shapes, needed are {MIN_IMAGE_PX} to {MAX_IMAGE_PX}"
        )
    if min(images_per_class, held_per_class) < 1 or seed < 0:
        described = f"{images_per_class} images a class, {held_per_class} held out, seed {seed}"
        raise BadInput(f"{described}, data set shapes, needed are at least 1, 1 and 0")
    train, held_out = (
        draw_images(image_px, images_per_class, seed, 0),
        draw_images(image_px, held_per_class, seed, 1),
    )
    return Dataset(train, held_out, CLASS_NAMES, *color_statistics(train.images))
