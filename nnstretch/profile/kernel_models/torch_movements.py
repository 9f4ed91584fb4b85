"""Movements of data as eager PyTorch calls.

What moves data is followed by the copy that a view puts off; what only selects is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt

import torch
import torch.nn.functional as F

from nnstretch.profile.kernel_models.kernel_shapes import Shape, changed_axis, growth, permutation

Run = Callable[..., torch.Tensor]
Movement = Callable[[Shape, Shape], Run]
"""The call that makes a tensor of the second shape of one of the first."""


def transpose(shape: Shape, out: Shape) -> Run:
    """Return a permutation that copies."""
    order = permutation(shape, out)
    return lambda value: value.permute(order).contiguous()


def selected_axis(shape: Shape, out: Shape) -> int:
    """Return the axis along which a movement selects."""
    return changed_axis(shape, out, default=len(shape) - 1)


def split(shape: Shape, out: Shape) -> Run:
    """Return the first part of a split."""
    axis = selected_axis(shape, out)
    return lambda value: torch.split(value, out[axis], axis)[0]


def narrow(shape: Shape, out: Shape) -> Run:
    """Return a slice from the begin of an axis."""
    axis = selected_axis(shape, out)
    return lambda value: torch.narrow(value, axis, 0, out[axis])


def unbind(shape: Shape, out: Shape) -> Run:
    """Return the first of all slices along an axis."""
    axis = selected_axis(shape, out)
    return lambda value: torch.unbind(value, axis)[0]


def select(shape: Shape, out: Shape) -> Run:
    """Return the first slice along an axis."""
    axis = selected_axis(shape, out)
    return lambda value: torch.select(value, axis, 0)


def pad(shape: Shape, out: Shape) -> Run:
    """Return zeros around; `F.pad` wants the last axis first, both ends of each."""
    ends: list[int] = []
    for begin, end in reversed(growth(shape, out)):
        ends += [begin, end]
    return partial(F.pad, pad=ends)


def roll(shape: Shape, out: Shape) -> Run:
    """Return a cyclic shift by half a map, as shifted windows have it."""
    return partial(torch.roll, shifts=(shape[1] // 2, shape[2] // 2), dims=(1, 2))


def pixel_shuffle(shape: Shape, out: Shape) -> Run:
    """Return channels spread over pixels."""
    return partial(F.pixel_shuffle, upscale_factor=isqrt(shape[1] // out[1]))


def pixel_unshuffle(shape: Shape, out: Shape) -> Run:
    """Return pixels gathered into channels."""
    return partial(F.pixel_unshuffle, downscale_factor=isqrt(out[1] // shape[1]))


def upsample(shape: Shape, out: Shape) -> Run:
    """Return nearest-neighbor upsampling."""
    return partial(F.interpolate, size=out[2:])


MOVEMENTS: dict[str, Movement] = {
    "permute": transpose,
    "transpose": transpose,
    "t": transpose,
    "chunk": split,
    "split": split,
    "split_with_sizes": split,
    "pad": pad,
    "constant_pad_nd": pad,
    "unbind": unbind,
    "select": select,
    "slice": narrow,
    "roll": roll,
    "flip": lambda shape, out: partial(torch.flip, dims=(-1,)),
    "channel_shuffle": lambda shape, out: partial(F.channel_shuffle, groups=2),
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "upsample_nearest2d": upsample,
}
