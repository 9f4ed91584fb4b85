"""Image files to tensors.

Pillow alone decodes: torchvision.io's decoders are deprecated since torchvision 0.29, give the same
bytes of a JPEG in the same time, and know fewer formats.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from nnstretch.bundle.eight_bit import to_eight_bit
from nnstretch.bundle.image_task import IMAGE_FORMATS
from nnstretch.errors import NnstretchError
from nnstretch.files.read import read_bytes
from nnstretch.train.data.dataset import UnreadableImage

MOST_IMAGE_BYTES = 256 << 20
MAX_PIXELS = 64_000_000
"""Limit of 192 MB decoded: a file of a few kB can claim more than a machine holds."""

# Pillow warns of odd metadata, of which photographs are full. Filtered for the whole process,
# because catch_warnings is not safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_image(data: bytes, where: str) -> Tensor:
    """Decode an image, turned as its EXIF orientation says, to uint8 [3, height, width].

    Raises UnreadableImage, which names it by `where`.
    """
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            width, height = image.size
            if width * height <= MAX_PIXELS:
                pixels = np.array(to_eight_bit(ImageOps.exif_transpose(image)).convert("RGB"))
                return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    # Pillow's decoders answer hostile bytes with exceptions of a dozen kinds, SyntaxError and
    # struct.error among them.
    except Exception as error:
        raise UnreadableImage(
            f"not a readable image, {where}, {decode_failure(error, len(data))}"
        ) from None
    raise UnreadableImage(
        f"image of {width}x{height} pixels, {where}, the limit is {MAX_PIXELS} pixels"
    )


def decode_failure(error: Exception, size_bytes: int) -> str:
    """Return why an image could not be decoded."""
    if isinstance(error, UnidentifiedImageError):
        return f"{size_bytes} bytes of no format that is known ({', '.join(IMAGE_FORMATS)})"
    text = " ".join(str(error).split())[:120]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def encode_png(image: Tensor) -> bytes:
    """Encode uint8 [3, height, width] as PNG."""
    stream = io.BytesIO()
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=4)
    return stream.getvalue()


def read_image_bytes(path: Path) -> bytes:
    """Read a file's bytes. Raises UnreadableImage, also for a pipe or device, which may block."""
    try:
        return read_bytes(path, "image", MOST_IMAGE_BYTES)
    except NnstretchError as error:
        raise UnreadableImage(f"cannot read an image, {error}") from None
