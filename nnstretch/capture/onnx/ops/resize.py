"""ONNX operators that enlarge maps, in the coordinate conventions that PyTorch shares."""

from __future__ import annotations

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
    if is_upsample(call):
        coordinates = "asymmetric"
    rounding = call.get_attribute("nearest_mode", "round_prefer_floor")
    whole = all(new % old == 0 for new, old in zip(size[2:], x.shape[2:], strict=True))
    floor = coordinates == "asymmetric" and rounding == "floor"
    pixels = None if scales else size[2:]
    if mode == "nearest" and (floor or call.opset < 11 or whole):
        return call.emit("upsample_nearest2d.vec", x, pixels, scales or None)
    if mode == "linear" and coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = coordinates == "align_corners"
        return call.emit("upsample_bilinear2d.vec", x, pixels, corners, scales or None)
    raise call.unsupported_error(
        f"mode {mode}, {coordinates}, {rounding} from {list(x.shape)} to {list(size)}"
    )


def target_size(call: NodeContext, x: OnnxValue) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return output shape at the file's batch, and the pixel scales where the file gives scales.

    Raises UnsupportedOp when the file does not tell it.
    """
    scales = call.optional_input(1 if is_upsample(call) else 2)
    factors = call.get_attribute("scales")
    if scales is not None and scales.probes[0].numel():
        factors = call.require_constant(scales).probes[0].tolist()
    if factors:
        size = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
        return size, tuple(float(factor) for factor in factors[2:])
    sizes = call.optional_input(3)
    if sizes is None or call.get_attribute("axes"):
        raise call.unsupported_error("neither scales nor sizes of all dimensions are given")
    return tuple(int(size) for size in call.require_constant(sizes).probes[0].tolist()), ()


RESIZE_RULES: dict[str, TranslationRule] = {"Resize": resize, "Upsample": resize}
