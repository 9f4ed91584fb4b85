"""How photographs become a network's input, and what its scores stand for.

It travels with weights (in their header) and with bundles (in their manifest), so that a deployed
network can be fed without the recipe that trained it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from nnstretch.errors import BadInput
from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import Length, Range

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of files in folders of images."""
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats by content, not by file name; EPS is left out because Pillow would start a program."""
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
    crop_px: Annotated[int, Range(0, MAX_PX)] = 0
    """Side of the square crop on which the network was judged; 0 where nobody said."""

    def short_px(self, side_px: int) -> int:
        """Return how long the shorter side is made for a crop of `side_px`: in proportion.

        Raises BadInput where the crop would be larger, and nothing says how large it was.
        """
        resize_px = self.resize_px or side_px
        if self.resize_px and self.crop_px:
            return round(resize_px * side_px / self.crop_px)
        if resize_px < side_px:
            raise BadInput(
                f"a crop of {side_px} px is larger than the image, whose shorter side becomes"
                f" {resize_px}, image task of the weights, take an input of {resize_px} px at most"
            )
        return resize_px


def is_image_name(path: str) -> bool:
    """Return whether a path below a folder is taken for an image: by its ending, and not hidden.

    Notebooks and file managers keep copies and notes of images under names that begin with a dot.
    """
    hidden = any(part.startswith(".") for part in path.split("/"))
    return not hidden and path.lower().endswith(IMAGE_ENDINGS)


def task_text(task: ImageTask) -> str:
    """Return a task as JSON on one line; a crop that nobody knows is left out."""
    fields = asdict(task)
    if not task.crop_px:
        del fields["crop_px"]
    return json.dumps(fields, allow_nan=False)


def read_task(text: str) -> ImageTask:
    """Decode a task. Raises ValueError, which names the field, for anything else."""
    task: ImageTask = decode(ImageTask, parse_json(text.encode()), "image task")
    return task
