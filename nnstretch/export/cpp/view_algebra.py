"""Views of views, by strides alone: what needs no copy."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.export.cpp.program import Extents, TensorView, dense_strides


def permute(view: TensorView, axes: Extents) -> TensorView:
    """Return the view with its axes in another order."""
    return replace(
        view,
        shape=tuple(view.shape[axis] for axis in axes),
        stride=tuple(view.stride[axis] for axis in axes),
    )


def transpose(view: TensorView, first: int, second: int) -> TensorView:
    """Return the view with two axes exchanged."""
    axes = list(range(len(view.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return permute(view, tuple(axes))


def broadcast(view: TensorView, shape: Extents) -> TensorView:
    """Return the view repeated along new axes and along axes of size 1, as PyTorch broadcasts."""
    missing = len(shape) - len(view.shape)
    sizes = (1,) * missing + view.shape
    strides = (0,) * missing + view.stride
    axes = zip(shape, sizes, strides, strict=True)
    stride = tuple(step if size == old_size else 0 for size, old_size, step in axes)
    return replace(view, shape=shape, stride=stride)


def narrow(view: TensorView, axis: int, start: int, length: int, step: int = 1) -> TensorView:
    """Return `length` positions of an axis, from `start` on, every `step`."""
    shape, stride = list(view.shape), list(view.stride)
    shape[axis] = length
    stride[axis] = view.stride[axis] * step
    return replace(
        view,
        offset=view.offset + start * view.stride[axis],
        shape=tuple(shape),
        stride=tuple(stride),
    )


def select(view: TensorView, axis: int, index: int) -> TensorView:
    """Return one position of an axis, without that axis."""
    part = narrow(view, axis, index, 1)
    return drop_axis(part, axis)


def drop_axis(view: TensorView, axis: int) -> TensorView:
    """Return the view without an axis of size 1."""
    return replace(
        view,
        shape=view.shape[:axis] + view.shape[axis + 1 :],
        stride=view.stride[:axis] + view.stride[axis + 1 :],
    )


def insert_axis(view: TensorView, axis: int) -> TensorView:
    """Return the view with a new axis of size 1."""
    return replace(
        view,
        shape=(*view.shape[:axis], 1, *view.shape[axis:]),
        stride=(*view.stride[:axis], 1, *view.stride[axis:]),
    )


def windows(view: TensorView, axis: int, size: int, step: int) -> TensorView:
    """Return windows of an axis, one every `step`, their positions along a new last axis."""
    count = (view.shape[axis] - size) // step + 1
    starts = narrow(view, axis, 0, count, step)
    stride = (*starts.stride, view.stride[axis])
    return replace(starts, shape=(*starts.shape, size), stride=stride)


def flip(view: TensorView, axis: int) -> TensorView:
    """Return the view with one axis backwards."""
    stride = list(view.stride)
    stride[axis] = -stride[axis]
    offset = view.offset + (view.shape[axis] - 1) * view.stride[axis]
    return replace(view, offset=offset, stride=tuple(stride))


def reshape(view: TensorView, shape: Extents) -> TensorView | None:
    """Return the same elements under another shape; None where that takes a copy.

    Axes that lie densely inside each other are merged, then split as the new shape says
    (`computeStride` of ATen).
    """
    if view.is_dense:
        return replace(view, shape=shape, stride=dense_strides(shape))
    blocks = merged_axes(view)
    stride: list[int] = []
    remaining = list(shape)
    for size, step in blocks:
        taken: list[int] = []
        product = 1
        while remaining and (product < size or remaining[0] == 1):
            taken.append(remaining.pop(0))
            product *= taken[-1]
        if product != size:
            return None
        inner = dense_strides(tuple(taken))
        stride.extend(step * position for position in inner)
    if any(size != 1 for size in remaining):
        return None
    stride.extend(1 for _ in remaining)
    return replace(view, shape=shape, stride=tuple(stride))


def same_order(view: TensorView, other: TensorView) -> bool:
    """Return whether two views are of the same elements in the same order."""
    placed = (view.buffer, view.offset) == (other.buffer, other.offset)
    return placed and merged_axes(view) == merged_axes(other)


def merged_axes(view: TensorView) -> list[tuple[int, int]]:
    """Return (size, stride) of the fewest axes that give the same elements in the same order."""
    blocks: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.stride, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks
