"""ONNX operators that enlarge maps, in the coordinate conventions that PyTorch shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.translation_context import (
    NodeContext,
    TranslationRule,
    aten_operator,
)

LONGEST_AXIS = 2**24
"""Beyond it float32 does not count pixels."""
HALF = np.float32(0.5)
SHIFTS = {
    "asymmetric": (np.float32(0), np.float32(0)),
    "half_pixel": (HALF, HALF),
    "pytorch_half_pixel": (HALF, HALF),
    "half_pixel_symmetric": (HALF, HALF),
    "tf_half_pixel_for_nn": (HALF, np.float32(0)),
}
"""Coordinates -> what is added to a position before it is scaled, and taken off after it."""
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda position: np.ceil(position - HALF),
    "round_prefer_ceil": lambda position: np.floor(position + HALF),
}


def is_upsample(call: NodeContext) -> bool:
    """Return whether a node follows the older definition: Upsample, or Resize before opset 11."""
    return call.node.op_type == "Upsample" or call.opset < 11


def resize(call: NodeContext) -> OnnxValue:
    """Translate Resize and Upsample: nearest and bilinear enlargement of pixels.

    Raises UnsupportedOp when PyTorch has no such mode.
    """
    x = call.input(0)
    size, scales = target_size(call, x)
    if x.rank != 4 or size[:2] != x.shape[:2]:
        raise call.unsupported_error(
            f"from {list(x.shape)} to {list(size)}, only the last two of four dimensions may change"
        )
    mode = call.get_attribute("mode", "nearest")
    coordinates = call.get_attribute("coordinate_transformation_mode", "half_pixel")
    rounding = call.get_attribute("nearest_mode", "round_prefer_floor")
    if is_upsample(call):
        # ONNX Runtime rounds up where it makes maps smaller.
        between = any(factor < 1 and not (1 / factor).is_integer() for factor in scales)
        coordinates, rounding = "asymmetric", "ceil" if between else "floor"
    pixels = None if scales else size[2:]
    if mode == "nearest" and same_pixels(coordinates, rounding, x.shape[2:], size[2:], scales):
        return call.emit("upsample_nearest2d.vec", x, pixels, scales or None)
    if mode == "linear" and is_bilinear(call, coordinates, x.shape[2:], size[2:]):
        corners = coordinates == "align_corners"
        return call.emit("upsample_bilinear2d.vec", x, pixels, corners, scales or None)
    raise call.unsupported_error(
        f"mode {mode}, {coordinates}, {rounding} from {list(x.shape)} to {list(size)}"
        + (f" by {list(scales)}" if scales else "")
        + (", antialiased" if call.get_attribute("antialias", 0) else "")
    )


def same_pixels(
    coordinates: str,
    rounding: str,
    old: tuple[int, ...],
    new: tuple[int, ...],
    factors: tuple[float, ...],
) -> bool:
    """Return whether PyTorch's nearest pixels are those that the file asks for, on every axis.

    A map that keeps its size is copied, as ONNX Runtime does whatever the factors say.
    """
    if old == new:
        return True
    if max(*old, *new) > LONGEST_AXIS:
        return False
    for before, after, factor in zip(old, new, factors or (None, None), strict=True):
        wanted = nearest_pixels(coordinates, rounding, before, after, factor)
        if wanted is None or not np.array_equal(wanted, pytorch_pixels(before, after, factor)):
            return False
    return True


def nearest_pixels(
    coordinates: str, rounding: str, old: int, new: int, factor: float | None
) -> np.ndarray | None:
    """Return which of `old` pixels each of `new` is, computed in float32 as ONNX Runtime does.

    None where the convention is another than PyTorch's at any factor.
    """
    if coordinates not in SHIFTS or rounding not in ROUNDINGS:
        return None
    scale = np.float32(new / old if factor is None else factor)
    if coordinates == "half_pixel_symmetric" and scale * old != new:
        return None
    before, after = SHIFTS[coordinates]
    position = (np.arange(new, dtype=np.float32) + before) / scale - after
    if coordinates == "pytorch_half_pixel" and new == 1:
        position = np.zeros(1, np.float32)
    return np.clip(ROUNDINGS[rounding](position), 0, old - 1).astype(np.int64)


def pytorch_pixels(old: int, new: int, factor: float | None) -> np.ndarray:
    """Return which of `old` pixels each of PyTorch's is; some axes it takes by sizes alone."""
    row = torch.arange(old, dtype=torch.float32).reshape(1, 1, 1, old)
    sizes = (1, new) if factor is None else None
    factors = None if factor is None else (1.0, factor)
    return aten_operator("upsample_nearest2d.vec")(row, sizes, factors)[0, 0, 0].long().numpy()


def is_bilinear(
    call: NodeContext, coordinates: str, old: tuple[int, ...], new: tuple[int, ...]
) -> bool:
    """Return whether PyTorch's bilinear is what a linear resize asks for."""
    if call.get_attribute("antialias", 0) and any(map(int.__lt__, new, old)):
        return False
    if coordinates == "pytorch_half_pixel":
        # It reads pixel 0 for a map of one pixel, PyTorch itself the middle.
        return 1 not in new or old == new
    return coordinates in ("half_pixel", "align_corners")


def target_size(call: NodeContext, x: OnnxValue) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return output shape at the file's batch, and the pixel scales where the file gives scales.

    Raises UnsupportedOp when the file does not tell it.
    """
    scales = call.optional_input(1 if is_upsample(call) else 2)
    factors = call.get_attribute("scales")
    if scales is not None and scales.probes[0].numel():
        factors = call.require_constant(scales).probes[0].tolist()
    if factors:
        factors = on_all_axes(call, [as_written(f) for f in factors], (1.0,) * x.rank)
        size = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
        # ONNX Runtime multiplies in float32: 100 pixels times 2.1 are 209 there.
        rounded = torch.tensor(x.shape, dtype=torch.float32) * torch.tensor(
            factors, dtype=torch.float32
        )
        if size != tuple(map(int, rounded.tolist())):
            raise call.unsupported_error(
                f"{list(x.shape)} times {factors}, sizes that depend on how they are rounded"
            )
        return size, tuple(float(factor) for factor in factors[2:])
    sizes = call.optional_input(3)
    if sizes is None:
        raise call.unsupported_error("neither scales nor sizes are given")
    policy = call.get_attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise call.unsupported_error(f"keep_aspect_ratio_policy {policy}")
    wanted = call.require_constant(sizes).probes[0].tolist()
    return tuple(map(int, on_all_axes(call, wanted, x.shape))), ()


def as_written(factor: float) -> float:
    """Return a factor before it became float32: ten pixels times 2.3 are 23, not 22.99..."""
    return float(str(np.float32(factor)))


def on_all_axes(
    call: NodeContext, numbers: Sequence[float], others: Sequence[float]
) -> Sequence[float]:
    """Return a number for every axis where a node gives those of some axes only."""
    axes = call.get_attribute("axes")
    if not axes:
        return numbers
    filled = list(others)
    for axis, number in zip(axes, numbers, strict=True):
        filled[axis] = number
    return filled


RESIZE_RULES: dict[str, TranslationRule] = {"Resize": resize, "Upsample": resize}
