"""Bytes of an image file to a tensor, with whatever is wrong said in one line.

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

from nnstretch.train.data.dataset import UnreadableImage

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is in a file decides, not its name.

Others stay out: to read EPS, Pillow would start a program.
"""
MAX_PIXELS = 64_000_000
"""192 MB decoded; a file of a few kB can claim more than a machine holds."""

# Photographs are full of odd metadata, and Pillow would tell of each. Once for all threads:
# catch_warnings is not safe there.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_image(data: bytes, where: str) -> Tensor:
    """Decode an upright color image, uint8 of [3, height, width]; `where` names it in the refusal.

    Raises Unreadable.

    The camera's orientation (EXIF) is applied: every viewer does so, and labels were given in
    viewers.
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


def to_eight_bit(image: Image.Image) -> Image.Image:
    """Return gray of 16 bits in its upper 8; Pillow's own conversion would clip it to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.clip(np.asarray(image), 0, 65535) // 256).astype(np.uint8))


def encode_png(image: Tensor) -> bytes:
    """Encode losslessly, of uint8 [3, height, width]."""
    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(
        stream, "PNG", compress_level=4
    )
    return stream.getvalue()


def read_image_bytes(path: Path) -> bytes:
    """Read a file's bytes. Raises Unreadable, for a pipe or a device, too: it would be waited
    for.
    """
    if path.exists() and not path.is_file():
        raise UnreadableImage(f"cannot read an image, {path}, it is no ordinary file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImage(f"cannot read an image, {path}, {error.strerror or error}") from None
