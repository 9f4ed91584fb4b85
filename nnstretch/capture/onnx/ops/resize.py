"""ONNX operators that enlarge maps, in the coordinate conventions that PyTorch shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule


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
    if mode == "nearest" and rounds_down(coordinates, rounding, x.shape[2:], size[2:]):
        return call.emit("upsample_nearest2d.vec", x, pixels, scales or None)
    if mode == "linear" and is_bilinear(call, coordinates, x.shape[2:], size[2:]):
        corners = coordinates == "align_corners"
        return call.emit("upsample_bilinear2d.vec", x, pixels, corners, scales or None)
    raise call.unsupported_error(
        f"mode {mode}, {coordinates}, {rounding} from {list(x.shape)} to {list(size)}"
        + (", antialiased" if call.get_attribute("antialias", 0) else "")
    )


def rounds_down(
    coordinates: str, rounding: str, old: tuple[int, ...], new: tuple[int, ...]
) -> bool:
    """Return whether every pixel is the one at `floor(position * old / new)`, PyTorch's nearest.

    Where sizes are multiplied by whole numbers, other conventions come to the same.
    """
    if (coordinates, rounding) == ("asymmetric", "floor") or old == new:
        return True
    if any(after % before for before, after in zip(old, new, strict=True)):
        return False
    if coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        return rounding in ("round_prefer_floor", "round_prefer_ceil")
    if coordinates == "tf_half_pixel_for_nn":
        return rounding == "floor"
    doubled = all(after <= 2 * before for before, after in zip(old, new, strict=True))
    return (coordinates, rounding) == ("asymmetric", "round_prefer_floor") and doubled


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
