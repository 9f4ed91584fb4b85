"""How photographs become a network's input, and what its scores stand for.

It travels with weights (in their header) and with bundles (in their manifest), so that a deployed
network can be fed without the recipe that trained it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import Length, Range

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of files in folders of images."""
MAX_CLASSES = 100_000
MAX_PX = 1 << 16
MOST_LETTERS = 200
"""Of a class's name."""
ClassName = Annotated[str, Length(0, MOST_LETTERS)]
Share = Annotated[float, Range(-1000, 1000)]
Spread = Annotated[float, Range(1e-6, 1000)]


@dataclass(frozen=True, slots=True)
class ImageTask:
    """An image classifier's colors, sizes and classes."""

    classes: Annotated[tuple[ClassName, ...], Length(0, MAX_CLASSES)]
    """Names in the order of the scores."""
    mean: tuple[Share, Share, Share]
    """Of red, green and blue from 0 to 1; it is subtracted."""
    std: tuple[Spread, Spread, Spread]
    """Deviation of the colors; it is divided by."""
    resize_px: Annotated[int, Range(0, MAX_PX)] = 0
    """Length of the shorter side before the middle is cropped; 0 where it is the crop's."""


def is_image_name(path: str) -> bool:
    """Return whether a path below a folder is taken for an image: by its ending, and not hidden.

    Notebooks and file managers keep copies and notes of images under names that begin with a dot.
    """
    hidden = any(part.startswith(".") for part in path.split("/"))
    return not hidden and path.lower().endswith(IMAGE_ENDINGS)


def task_text(task: ImageTask) -> str:
    """Return a task as JSON on one line."""
    return json.dumps(asdict(task), allow_nan=False)


def read_task(text: str) -> ImageTask:
    """Decode a task. Raises ValueError, which names the field, for anything else."""
    task: ImageTask = decode(ImageTask, parse_json(text.encode()), "image task")
    return task
