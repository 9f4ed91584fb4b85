"""Pages of text, drawn by rule, and what stands on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAGE_PX = (320, 640)
"""Height and width."""
MOST_LINES = 6
LINE_PX = 50
"""From one line of text to the next."""
LISTED = """
river stone window garden market paper silver morning bridge yellow seven harbor engine letter
winter planet forest camera silent number 1984 2026 375 42 Berlin Madrid Oslo Kyoto Turin
"""
WORDS = LISTED.split()
WIDEST_PX = 430
"""Of a line: what the recogniser sees of it is seven times as wide as high."""


@dataclass(frozen=True)
class Page:
    """An image, uint8 [height, width, 3], and its lines from top to bottom."""

    image: np.ndarray
    lines: tuple[str, ...]


def page(number: int, seed: int = 0) -> Page:
    """Draw a page; it depends on seed and number alone."""
    rng = np.random.default_rng((seed, number))
    height, width = PAGE_PX
    ground = int(rng.integers(225, 256))
    canvas = Image.new("RGB", (width, height), (ground, ground, ground))
    pen = ImageDraw.Draw(canvas)
    lines = []
    for row in range(int(rng.integers(3, MOST_LINES + 1))):
        font = ImageFont.load_default(size=int(rng.integers(24, 31)))
        text = line_of_words(rng, font)
        ink = tuple(int(c) for c in rng.integers(0, 90, 3))
        pen.text((int(rng.integers(12, 60)), 12 + row * LINE_PX), text, fill=ink, font=font)
        lines.append(text)
    noisy = np.asarray(canvas, dtype=np.float32) + rng.normal(0, 3, (height, width, 3))
    return Page(noisy.clip(0, 255).astype(np.uint8), tuple(lines))


def line_of_words(rng: np.random.Generator, font: ImageFont.FreeTypeFont) -> str:
    """Return two words or more, as many as have room."""
    text = str(rng.choice(WORDS))
    for _ in range(int(rng.integers(1, 4))):
        longer = f"{text} {rng.choice(WORDS)}"
        if font.getlength(longer) > WIDEST_PX:
            break
        text = longer
    return text
