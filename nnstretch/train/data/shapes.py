"""Textured shapes, drawn by rule: 60 classes that need both the outline and the texture, no download.

A class is an outline (10) filled with a texture (6), such as "striped star". Colours, background, place, size
and angles are random and the same for all classes. An image depends on (seed, split, class, number) alone (and
on NumPy's version, which fixes what its generators draw), so more images of a class keep the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput
from nnstretch.train.data.images import Colour, Dataset, InMemory

Field = NDArray[np.float32]
"""One number a pixel."""
SMALLEST_PX, LARGEST_PX = 16, 256
NOISE = 0.02
"""Deviation of the noise of each channel of each pixel, of a brightness from 0 to 1."""
CONTRAST, CONTRAST_BEHIND = (0.65, 0.90), (0.05, 0.15)
"""How far apart the two colours of a texture and of the background are; black and white are 1 apart."""
SIZE, PERIOD = (0.80, 0.92), (0.40, 0.55)
"""Radius of a shape and period of its texture; half the image is 1."""
TILT = 0.2
"""Most that a shape, and its texture on its own, is turned, in radians."""
TURN = 2 * np.pi


def half_planes(x: Field, y: Field, sides: int, inner: float) -> Field:
    """Below 0 inside the regular polygon whose sides are `inner` from the middle."""
    turns = np.arange(sides) * (TURN / sides)
    return np.max([x * np.cos(turn) + y * np.sin(turn) for turn in turns], axis=0) - inner


def box(x: Field, y: Field, half_width: float, half_height: float) -> Field:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def disc(x: Field, y: Field, radius: float) -> Field:
    return np.hypot(x, y) - radius


def star(x: Field, y: Field) -> Field:
    """Five points: one edge, its angle folded to the tenth of a turn that it serves."""
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    folded = np.abs((angle + TURN) % (TURN / 5) - TURN / 10)  # 0 in a notch, a tenth of a turn at a tip
    across, along = radius * np.sin(folded), radius * np.cos(folded)
    tip = 1.15 * np.array([np.cos(TURN / 10), np.sin(TURN / 10)])
    edge = tip - np.array([0.5, 0.0])
    return ((along - 0.5) * edge[1] - across * edge[0]) / float(np.hypot(*edge))


def crescent(x: Field, y: Field) -> Field:
    return np.maximum(disc(x, y, 1.05), -disc(x - 0.55, y, 0.75))


def heart(x: Field, y: Field) -> Field:
    """A square on its corner and a disc on each of its upper sides; y points down."""
    lobes = disc(np.abs(x) - 0.40, y + 0.22, 0.56)
    lower = box((x + y - 0.16) * 0.7071, (x - y + 0.16) * 0.7071, 0.56, 0.56)
    return np.minimum(lobes, lower)


def arrow(x: Field, y: Field) -> Field:
    head = np.maximum(-x, 0.75 * np.abs(y) + 0.66 * x - 0.75)
    return np.minimum(head, box(x + 0.5, y, 0.6, 0.34))


OUTLINES: dict[str, Callable[[Field, Field], Field]] = {
    "disc": lambda x, y: disc(x, y, 0.95),
    "square": lambda x, y: box(x, y, 0.85, 0.85),
    "triangle": lambda x, y: half_planes(x, y, 3, 0.62),
    "star": star,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.30,
    "cross": lambda x, y: np.minimum(box(x, y, 1.0, 0.36), box(x, y, 0.36, 1.0)),
    "crescent": crescent,
    "capsule": lambda x, y: np.hypot(np.maximum(np.abs(x) - 0.65, 0), y) - 0.45,
    "heart": heart,
    "arrow": arrow,
}
"""Below 0 inside, about the distance to the edge outside, of a shape of about radius 1."""


def soft(wave: Field) -> Field:
    """From -1..1 to 0..1, steeper than a sine."""
    return np.clip(0.5 + 0.9 * wave, 0, 1)


def dots(u: Field, v: Field) -> Field:
    return soft((0.30 - np.hypot(u % 1 - 0.5, v % 1 - 0.5)) * 5)


def smooth_noise(u: Field, v: Field, rng: np.random.Generator) -> Field:
    """Random brightness on the whole numbers, blended between them; repeats after 16."""
    grid = rng.random((16, 16), dtype=np.float32)
    left, low = np.floor(u), np.floor(v)
    right_share, high_share = u - left, v - low
    i, j = left.astype(np.int64) % 16, low.astype(np.int64) % 16
    k, m = (i + 1) % 16, (j + 1) % 16
    below = grid[i, j] * (1 - right_share) + grid[k, j] * right_share
    above = grid[i, m] * (1 - right_share) + grid[k, m] * right_share
    return below * (1 - high_share) + above * high_share


TEXTURES: dict[str, Callable[[Field, Field, np.random.Generator], Field]] = {
    "striped": lambda u, v, rng: soft(np.sin(TURN * u)),
    "chequered": lambda u, v, rng: soft(2 * np.sin(TURN * u * 0.6) * np.sin(TURN * v * 0.6)),
    "dotted": lambda u, v, rng: dots(u, v),
    "ringed": lambda u, v, rng: soft(np.sin(TURN * np.hypot(u, v))),
    "wavy": lambda u, v, rng: soft(np.sin(TURN * (u + 0.45 * np.sin(TURN * v * 0.45)))),
    "speckled": lambda u, v, rng: soft(4 * smooth_noise(u * 1.6, v * 1.6, rng) - 2),
}
"""0 to 1, which blends the two colours of a shape; the period is about 1."""
CLASSES = tuple(f"{texture} {outline}" for outline in OUTLINES for texture in TEXTURES)


def turned(x: Field, y: Field, angle: float, size: float) -> tuple[Field, Field]:
    cos, sin = np.float32(np.cos(angle) / size), np.float32(np.sin(angle) / size)
    return cos * x + sin * y, cos * y - sin * x


def painted(blend: Field, contrast: tuple[float, float], rng: np.random.Generator) -> NDArray[np.float32]:
    """[3, height, width]: from one random colour to another, in a random direction from it."""
    middle, way = rng.uniform(0.25, 0.75, 3), rng.normal(size=3)
    way *= rng.uniform(*contrast) * 0.5 * np.sqrt(3) / np.linalg.norm(way)
    first, second = (middle - way).astype(np.float32), (middle + way).astype(np.float32)
    return first[:, None, None] * (1 - blend) + second[:, None, None] * blend


def background(x: Field, y: Field, rng: np.random.Generator) -> NDArray[np.float32]:
    """Clouds with a grating over them, so that neither texture nor waves tell where the shape is."""
    u, v = turned(x, y, rng.uniform(0, TURN), rng.uniform(0.2, 0.6))
    clouds = smooth_noise(u + rng.uniform(0, 16), v, rng)
    wave = np.sin(TURN * (u * rng.uniform(0.3, 1.2) + rng.uniform()))
    return painted(np.clip(clouds + rng.uniform(0, 0.35) * wave, 0, 1), CONTRAST_BEHIND, rng)


def draw(number: int, image_px: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image of class `number`, [3, image_px, image_px]."""
    outline = tuple(OUTLINES.values())[number // len(TEXTURES)]
    texture = tuple(TEXTURES.values())[number % len(TEXTURES)]
    line = (np.arange(image_px, dtype=np.float32) + 0.5) * np.float32(2 / image_px) - 1
    x, y = np.meshgrid(line, line)
    behind = background(x, y, rng)
    size = rng.uniform(*SIZE)
    x, y = x - np.float32(rng.uniform(-1, 1) * (1 - size)), y - np.float32(rng.uniform(-1, 1) * (1 - size))
    edge_px = outline(*turned(x, y, rng.uniform(-TILT, TILT), size)) * (size * image_px / 2)
    u, v = turned(x, y, rng.uniform(-TILT, TILT), rng.uniform(*PERIOD))
    u, v = u + np.float32(rng.uniform(-0.5, 0.5)), v + np.float32(rng.uniform(-0.5, 0.5))
    front = painted(texture(u, v, rng), CONTRAST, rng)
    inside = np.clip(0.5 - edge_px, 0, 1)
    clean = behind + (front - behind) * inside
    noisy = clean + NOISE * rng.standard_normal(clean.shape, dtype=np.float32)
    return np.clip(np.round(noisy * 255), 0, 255).astype(np.uint8)


def drawn(image_px: int, per_class: int, seed: int, split: int) -> InMemory:
    """`per_class` images of every class, class after class."""
    images = np.empty((len(CLASSES) * per_class, 3, image_px, image_px), np.uint8)
    for place in range(len(images)):
        number, k = divmod(place, per_class)
        images[place] = draw(number, image_px, np.random.default_rng((seed, split, number, k)))
    return InMemory(torch.from_numpy(images), torch.arange(len(CLASSES)).repeat_interleave(per_class))


def colours_of(images: Tensor) -> tuple[Colour, Colour]:
    """Mean and deviation of each channel, from exact sums of bytes."""
    counts = torch.stack([torch.bincount(images[:, channel].flatten(), minlength=256) for channel in range(3)]).double()
    level, total = torch.arange(256).double() / 255, counts.sum(1)
    mean = (counts @ level) / total
    std = ((counts @ level.square()) / total - mean.square()).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


@lru_cache(maxsize=2)
def open_shapes(image_px: int, images_per_class: int, held_per_class: int, seed: int) -> Dataset:
    """Images of `image_px` squared; mean and deviation are those of the training images. Raises BadInput."""
    if not SMALLEST_PX <= image_px <= LARGEST_PX:
        raise BadInput(f"image_px is {image_px}, data set shapes, needed are {SMALLEST_PX} to {LARGEST_PX}")
    if min(images_per_class, held_per_class) < 1 or seed < 0:
        given = f"{images_per_class} images a class, {held_per_class} held out, seed {seed}"
        raise BadInput(f"{given}, data set shapes, needed are at least 1, 1 and 0")
    train, held = drawn(image_px, images_per_class, seed, 0), drawn(image_px, held_per_class, seed, 1)
    return Dataset(train, held, CLASSES, *colours_of(train.images))
