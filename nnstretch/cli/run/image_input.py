"""A photograph as a bundle's input, and its best classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.bundle.eight_bit import to_eight_bit
from nnstretch.bundle.image_task import IMAGE_ENDINGS, IMAGE_FORMATS, ImageTask
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BadInput, one_line
from nnstretch.files.read import read_bytes
from nnstretch.run.results.npy_files import read_npy

MOST_BYTES = 256 << 20
MAX_PIXELS = 64_000_000
BEST = 5


def read_input(path: Path, manifest: Manifest) -> Any:
    """Read --input: an array, or an image seen as the network was trained to see images.

    Raises BadInput for an image where the network takes something else, or the bundle does not say
    how it sees them.
    """
    if path.suffix.lower() not in IMAGE_ENDINGS:
        return read_npy(path)
    side_px = square_side(manifest.inputs[0])
    if len(manifest.inputs) > 1 or side_px is None:
        takes = " and ".join(str(port.spec) for port in manifest.inputs)
        raise BadInput(
            f"cannot feed {path}, {manifest.model} takes {takes}, images are read only where that"
            " is one square image of 3 channels; give a .npy"
        )
    if manifest.image_task is None:
        raise BadInput(
            f"cannot feed {path}, {manifest.model}, its bundle does not say how it sees images;"
            " export with --weights of `nnstretch train`, or give a .npy"
        )
    return read_image(path, manifest.image_task, side_px)


def square_side(port: Port) -> int | None:
    """Return the side of one square image of three channels; None where a port takes no such."""
    shape = port.spec.shape
    if len(shape) != 4 or shape[0] != 1:
        return None
    channels, height, width = (shape[3], shape[1], shape[2]) if port.layout == "NHWC" else shape[1:]
    return height if channels == 3 and height == width else None


def read_image(path: Path, task: ImageTask, side_px: int) -> np.ndarray:
    """Decode, resize, crop the middle and normalize: float32 [1, 3, side, side].

    Raises BadInput for a file that is no image, or where Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise BadInput(
            f"Pillow is not installed ({error}), --input {path}, pip install 'nnstretch[run]'"
        ) from None
    import io

    data = read_bytes(path, "image", MOST_BYTES)
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as opened:
            if opened.size[0] * opened.size[1] > MAX_PIXELS:
                raise ValueError(f"{opened.size[0]}x{opened.size[1]} pixels, limit {MAX_PIXELS}")
            image = to_eight_bit(ImageOps.exif_transpose(opened)).convert("RGB")
    except Exception as error:  # decoders answer odd bytes with exceptions of a dozen kinds
        raise BadInput(f"not a readable image, {path}, {one_line(error)[:150]}") from None
    short_px = task.short_px(side_px)
    # Sizes and offsets as torchvision rounds them, on whose images networks were trained.
    sizes = [int(short_px * side / min(image.size)) for side in image.size]
    if sizes[0] * sizes[1] > MAX_PIXELS:
        raise BadInput(
            f"{image.size[0]}x{image.size[1]} pixels, {path}, a side of {short_px} would make them"
            f" {sizes[0]}x{sizes[1]}, limit {MAX_PIXELS}"
        )
    resized = image.resize((sizes[0], sizes[1]), Image.Resampling.BILINEAR)
    left_px, top_px = (round((side - side_px) / 2) for side in sizes)
    pixels = np.asarray(
        resized.crop((left_px, top_px, left_px + side_px, top_px + side_px)), np.float32
    )
    colors = (pixels / 255 - np.array(task.mean, np.float32)) / np.array(task.std, np.float32)
    return np.ascontiguousarray(colors.transpose(2, 0, 1)[None].astype(np.float32))


def best_classes(scores: Any, task: ImageTask | None) -> list[dict[str, Any]]:
    """Return the classes of the highest scores, best first; none where it is not known which."""
    if task is None or not isinstance(scores, np.ndarray):
        return []
    if scores.shape != (1, len(task.classes)):
        return []
    order = np.argsort(-scores[0], kind="stable")[:BEST]
    return [{"label": task.classes[index], "score": float(scores[0, index])} for index in order]
