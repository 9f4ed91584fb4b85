"""The int8 rule: codes of real numbers and back, one for export, verification and the runtime."""

from __future__ import annotations

import numpy as np


def to_codes(values: np.ndarray, dtype: str, scale: float, zero_point: int) -> np.ndarray:
    """Return `round(x / scale) + zero_point`, half to even, clipped to the range of `dtype`.

    The division is in float64: in float32 a few values in a million fall on the other side of a
    half. Values are finite (callers check).
    """
    bounds = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        steps = np.rint(values / np.float64(scale)) + zero_point
    codes: np.ndarray = np.clip(steps, bounds.min, bounds.max).astype(dtype)
    return codes


def from_codes(codes: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    """Return `(q - zero_point) * scale` as float32."""
    real: np.ndarray = (codes.astype(np.int32) - zero_point) * np.float64(scale)
    return real.astype(np.float32)
