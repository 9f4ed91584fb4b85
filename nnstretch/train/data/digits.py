"""Scikit-learn's bundled digits: 1797 real images of 8x8 pixels, no download."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from nnstretch.train.data.dataset import Dataset, InMemoryImages

MAX_BRIGHTNESS = 16
"""Brightness of the scans goes from 0 to 16."""


@lru_cache(maxsize=2)
def open_digits(image_px: int, held_out: float, split_seed: int) -> Dataset:
    """Open the digits, resized bilinearly, as three equal channels; `held_out` is a share."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / MAX_BRIGHTNESS
    large = functional.interpolate(small, size=image_px, mode="bilinear", align_corners=False)
    images = (large * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, held_out_rows = train_test_split(
        range(len(labels)), test_size=held_out, stratify=digits.target, random_state=split_seed
    )
    brightness = images[train][:, 0].float() / 255
    mean = float(brightness.mean())
    std = float(brightness.std())
    return Dataset(
        InMemoryImages(images[train].contiguous(), labels[train]),
        InMemoryImages(images[held_out_rows].contiguous(), labels[held_out_rows]),
        tuple(str(name) for name in digits.target_names),
        (mean, mean, mean),
        (std, std, std),
    )
