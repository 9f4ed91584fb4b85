"""Textured shapes, drawn by rule: 60 classes that need both outline and texture, no download.

A class is an outline (10) filled with a texture (6), such as "striped star". Colors, background,
place, size and angles are random, by the same distributions for all classes. An image depends on
(seed, split, class, number) and NumPy's version alone, so more images of a class keep the earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import Color, Dataset, InMemoryImages

PixelField = NDArray[np.floating[Any]]
"""One number a pixel."""
MIN_IMAGE_PX = 16
MAX_IMAGE_PX = 256
NOISE_DEVIATION = 0.02
"""Deviation of the noise of every channel of a pixel, whose brightness goes from 0 to 1."""
SHAPE_CONTRAST_RANGE = (0.65, 0.90)
"""Distance of the two colors of a texture; that of black and white is 1."""
BACKGROUND_CONTRAST_RANGE = (0.05, 0.15)
RADIUS_RANGE = (0.80, 0.92)
"""Radius of a shape; half the image is 1."""
TEXTURE_PERIOD_RANGE = (0.40, 0.55)
MAX_TILT_RAD = 0.2
"""Largest angle of a shape, and of its texture."""
FULL_TURN_RAD = 2 * np.pi


def polygon_distance(x: PixelField, y: PixelField, sides: int, inner: float) -> PixelField:
    """Return the signed distance from a regular polygon whose sides are `inner` from the middle."""
    turns = np.arange(sides) * (FULL_TURN_RAD / sides)
    return np.max([x * np.cos(turn) + y * np.sin(turn) for turn in turns], axis=0) - inner


def box(x: PixelField, y: PixelField, half_width: float, half_height: float) -> PixelField:
    """Return the signed distance from a rectangle."""
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def disc(x: PixelField, y: PixelField, radius: float) -> PixelField:
    """Return the signed distance from a disc."""
    return np.hypot(x, y) - radius


def star(x: PixelField, y: PixelField) -> PixelField:
    """Return the signed distance from a star of five points, by symmetry that of one edge."""
    radius = np.hypot(x, y)
    angle = np.arctan2(y, x)
    # 0 in a notch, a tenth of a turn at a tip.
    folded = np.abs((angle + FULL_TURN_RAD) % (FULL_TURN_RAD / 5) - FULL_TURN_RAD / 10)
    across = radius * np.sin(folded)
    along = radius * np.cos(folded)
    tip = 1.15 * np.array([np.cos(FULL_TURN_RAD / 10), np.sin(FULL_TURN_RAD / 10)])
    edge = tip - np.array([0.5, 0.0])
    return ((along - 0.5) * edge[1] - across * edge[0]) / float(np.hypot(*edge))


def crescent(x: PixelField, y: PixelField) -> PixelField:
    """Return the signed distance from a crescent."""
    return np.maximum(disc(x, y, 1.05), -disc(x - 0.55, y, 0.75))


def heart(x: PixelField, y: PixelField) -> PixelField:
    """Return the signed distance from a heart: a square on its corner with two discs above."""
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
"""Signed distances, negative inside, from shapes of about radius 1; y points down."""


def soften_wave(wave: PixelField) -> PixelField:
    """Map -1..1 to 0..1, steeper than a sine."""
    return np.clip(0.5 + 0.9 * wave, 0, 1)


def dot_pattern(u: PixelField, v: PixelField) -> PixelField:
    """Return the brightness of a pattern of dots."""
    return soften_wave((0.30 - np.hypot(u % 1 - 0.5, v % 1 - 0.5)) * 5)


def chequered_pattern(u: PixelField, v: PixelField) -> PixelField:
    """Return the brightness of a chequered pattern."""
    return soften_wave(2 * np.sin(FULL_TURN_RAD * u * 0.6) * np.sin(FULL_TURN_RAD * v * 0.6))


def wavy_pattern(u: PixelField, v: PixelField) -> PixelField:
    """Return the brightness of wavy stripes."""
    return soften_wave(np.sin(FULL_TURN_RAD * (u + 0.45 * np.sin(FULL_TURN_RAD * v * 0.45))))


def smooth_noise(u: PixelField, v: PixelField, rng: np.random.Generator) -> PixelField:
    """Return value noise: random at whole numbers, linear between them, of period 16."""
    grid = rng.random((16, 16), dtype=np.float32)
    floor_u = np.floor(u)
    floor_v = np.floor(v)
    share_u = u - floor_u
    share_v = v - floor_v
    i = floor_u.astype(np.int64) % 16
    j = floor_v.astype(np.int64) % 16
    i_next = (i + 1) % 16
    j_next = (j + 1) % 16
    low = grid[i, j] * (1 - share_u) + grid[i_next, j] * share_u
    high = grid[i, j_next] * (1 - share_u) + grid[i_next, j_next] * share_u
    return low * (1 - share_v) + high * share_v


TEXTURES: dict[str, Callable[[PixelField, PixelField, np.random.Generator], PixelField]] = {
    "striped": lambda u, v, rng: soften_wave(np.sin(FULL_TURN_RAD * u)),
    "chequered": lambda u, v, rng: chequered_pattern(u, v),
    "dotted": lambda u, v, rng: dot_pattern(u, v),
    "ringed": lambda u, v, rng: soften_wave(np.sin(FULL_TURN_RAD * np.hypot(u, v))),
    "wavy": lambda u, v, rng: wavy_pattern(u, v),
    "speckled": lambda u, v, rng: soften_wave(4 * smooth_noise(u * 1.6, v * 1.6, rng) - 2),
}
"""Blend of a shape's two colors, from 0 to 1, of period about 1."""
CLASS_NAMES = tuple(f"{texture} {outline}" for outline, texture in product(OUTLINES, TEXTURES))


def rotate_and_scale(
    x: PixelField, y: PixelField, angle: float, size: float
) -> tuple[PixelField, PixelField]:
    """Return coordinates turned by an angle and scaled."""
    cos = np.float32(np.cos(angle) / size)
    sin = np.float32(np.sin(angle) / size)
    return cos * x + sin * y, cos * y - sin * x


def blend_random_colors(
    blend: PixelField, contrast: tuple[float, float], rng: np.random.Generator
) -> PixelField:
    """Return [3, height, width], blended between two random colors of the given contrast."""
    middle = rng.uniform(0.25, 0.75, 3)
    direction = rng.normal(size=3)
    direction *= rng.uniform(*contrast) * 0.5 * np.sqrt(3) / np.linalg.norm(direction)
    first = (middle - direction).astype(np.float32)
    second = (middle + direction).astype(np.float32)
    return first[:, None, None] * (1 - blend) + second[:, None, None] * blend


def draw_background(x: PixelField, y: PixelField, rng: np.random.Generator) -> PixelField:
    """Draw clouds with a grating, so that neither texture nor waves betray where the shape is."""
    u, v = rotate_and_scale(x, y, rng.uniform(0, FULL_TURN_RAD), rng.uniform(0.2, 0.6))
    clouds = smooth_noise(u + rng.uniform(0, 16), v, rng)
    wave = np.sin(FULL_TURN_RAD * (u * rng.uniform(0.3, 1.2) + rng.uniform()))
    blend = np.clip(clouds + rng.uniform(0, 0.35) * wave, 0, 1)
    return blend_random_colors(blend, BACKGROUND_CONTRAST_RANGE, rng)


def draw_image(label: int, image_px: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image of class `label`, [3, image_px, image_px]."""
    outline = tuple(OUTLINES.values())[label // len(TEXTURES)]
    texture = tuple(TEXTURES.values())[label % len(TEXTURES)]
    line = (np.arange(image_px, dtype=np.float32) + 0.5) * np.float32(2 / image_px) - 1
    x, y = np.meshgrid(line, line)
    background = draw_background(x, y, rng)
    # From here on each draw depends on those before it: their order is part of the data set.
    size = rng.uniform(*RADIUS_RANGE)
    x = x - np.float32(rng.uniform(-1, 1) * (1 - size))
    y = y - np.float32(rng.uniform(-1, 1) * (1 - size))
    outline_tilt = rng.uniform(-MAX_TILT_RAD, MAX_TILT_RAD)
    edge_px = outline(*rotate_and_scale(x, y, outline_tilt, size)) * (size * image_px / 2)
    texture_tilt = rng.uniform(-MAX_TILT_RAD, MAX_TILT_RAD)
    u, v = rotate_and_scale(x, y, texture_tilt, rng.uniform(*TEXTURE_PERIOD_RANGE))
    u = u + np.float32(rng.uniform(-0.5, 0.5))
    v = v + np.float32(rng.uniform(-0.5, 0.5))
    shape = blend_random_colors(texture(u, v, rng), SHAPE_CONTRAST_RANGE, rng)
    inside = np.clip(0.5 - edge_px, 0, 1)
    clean = background + (shape - background) * inside
    noisy = clean + NOISE_DEVIATION * rng.standard_normal(clean.shape, dtype=np.float32)
    return np.clip(np.round(noisy * 255), 0, 255).astype(np.uint8)


def draw_images(image_px: int, per_class: int, seed: int, split: int) -> InMemoryImages:
    """Draw `per_class` images of every class, class after class."""
    images = np.empty((len(CLASS_NAMES) * per_class, 3, image_px, image_px), np.uint8)
    for row in range(len(images)):
        label, number = divmod(row, per_class)
        rng = np.random.default_rng((seed, split, label, number))
        images[row] = draw_image(label, image_px, rng)
    labels = torch.arange(len(CLASS_NAMES)).repeat_interleave(per_class)
    return InMemoryImages(torch.from_numpy(images), labels)


def color_statistics(images: Tensor) -> tuple[Color, Color]:
    """Return mean and deviation of each channel, from exact sums of bytes."""
    channels = [images[:, channel].flatten() for channel in range(3)]
    counts = torch.stack([torch.bincount(pixels, minlength=256) for pixels in channels]).double()
    level = torch.arange(256).double() / 255
    total = counts.sum(1)
    mean = (counts @ level) / total
    std = ((counts @ level.square()) / total - mean.square()).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


@lru_cache(maxsize=2)
def open_shapes(image_px: int, images_per_class: int, held_per_class: int, seed: int) -> Dataset:
    """Draw a data set of images of `image_px` squared. Raises BadInput for sizes out of range."""
    if not MIN_IMAGE_PX <= image_px <= MAX_IMAGE_PX:
        raise BadInput(
            f"image_px is {image_px}, data set shapes, needed are {MIN_IMAGE_PX} to {MAX_IMAGE_PX}"
        )
    if min(images_per_class, held_per_class) < 1 or seed < 0:
        raise BadInput(
            f"{images_per_class} images a class, {held_per_class} held out, seed {seed}, data set"
            " shapes, needed are at least 1, 1 and 0"
        )
    train = draw_images(image_px, images_per_class, seed, 0)
    held_out = draw_images(image_px, held_per_class, seed, 1)
    return Dataset(train, held_out, CLASS_NAMES, *color_statistics(train.images))
