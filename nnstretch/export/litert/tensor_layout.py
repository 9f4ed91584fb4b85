"""Maps are NCHW in PyTorch and NHWC in every .tflite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def nhwc(values: np.ndarray) -> np.ndarray:
    """Return an NCHW array as NHWC; other ranks as they are."""
    return values.transpose(0, 2, 3, 1) if values.ndim == 4 else values


def nchw(values: np.ndarray) -> np.ndarray:
    """Return an NHWC array as NCHW; other ranks as they are."""
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if values.ndim == 4 else values


def channels_last(values: torch.Tensor) -> torch.Tensor:
    """Return an NCHW tensor as NHWC; other ranks as they are."""
    return values.permute(0, 2, 3, 1).contiguous() if values.dim() == 4 else values


def name_inputs(inputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
    """Return inputs of one inference under the names that the converter gave them."""
    return {f"args_{i}": channels_last(x).numpy() for i, x in enumerate(inputs)}


def argument_number(name: str) -> int:
    """Return the number at the end of an argument's name."""
    return int(name.rpartition("_")[2])
