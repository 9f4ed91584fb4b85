"""Gray images of 16 bits as 8: one rule for training and for what is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def to_eight_bit(image: Image) -> Image:
    """Return 16-bit gray as its upper 8 bits; Pillow's own conversion would clip it to white."""
    if not image.mode.startswith("I"):
        return image
    from PIL.Image import fromarray

    return fromarray((np.clip(np.asarray(image), 0, 65535) // 256).astype(np.uint8))
