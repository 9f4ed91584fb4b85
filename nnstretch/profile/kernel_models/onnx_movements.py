"""Movements of data as nodes of an ONNX graph: split, transpose, slice, resize, pad."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import (
    changed_axis,
    growth,
    input_shapes,
    permutation,
)
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder


def split(model: OnnxModelBuilder, kernel: Kernel, value: str) -> str:
    """Add a split into as many equal parts as the kernel writes; return the first."""
    parts = max(2, kernel.write_elements // max(1, prod(kernel.shape_out)))
    axis = changed_axis(input_shapes(kernel)[0], kernel.shape_out, default=1)
    return model.add("Split", value, outputs=parts, axis=axis, num_outputs=parts)


def transpose(model: OnnxModelBuilder, kernel: Kernel, value: str) -> str:
    """Add a permutation of axes."""
    order = permutation(input_shapes(kernel)[0], kernel.shape_out)
    return model.add("Transpose", value, perm=order)


def slice_axis(model: OnnxModelBuilder, kernel: Kernel, value: str) -> str:
    """Add a slice from the begin of the axis that shrinks."""
    axis = changed_axis(input_shapes(kernel)[0], kernel.shape_out, default=1)
    end = model.integers(kernel.shape_out[axis])
    return model.add("Slice", value, model.integers(0), end, model.integers(axis))


def upsample(model: OnnxModelBuilder, kernel: Kernel, value: str) -> str:
    """Add nearest-neighbor upsampling."""
    sizes = zip(input_shapes(kernel)[0], kernel.shape_out, strict=True)
    scales = np.array([size_out / size for size, size_out in sizes], np.float32)
    return model.add(
        "Resize",
        value,
        "",
        model.constant(scales),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def pad(model: OnnxModelBuilder, kernel: Kernel, value: str) -> str:
    """Add zeros around; all begins come before all ends in ONNX."""
    more = growth(input_shapes(kernel)[0], kernel.shape_out)
    begins = [begin for begin, _ in more]
    ends = [end for _, end in more]
    return model.add("Pad", value, model.integers(*begins, *ends))


MOVEMENTS: dict[str, Callable[[OnnxModelBuilder, Kernel, str], str]] = {
    "chunk": split,
    "split": split,
    "split_with_sizes": split,
    "unbind": split,
    "permute": transpose,
    "transpose": transpose,
    "channel_shuffle": transpose,
    "slice": slice_axis,
    "upsample_nearest2d": upsample,
    "pad": pad,
    "constant_pad_nd": pad,
}
