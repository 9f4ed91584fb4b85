"""Dimensions as sequences of slices, each of one channel group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """A stretch of one dimension."""

    group: int | None
    """None for a size that never changes."""
    size: int


Dim = tuple[ChannelSlice, ...]
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ShortcutJunction:
    """An addition of the section's own input; where widths differ, a 1x1 convolution goes in."""

    node: str
    argument: int
    """Which operand carries the input."""
    axis: int
    """Where widths meet, counted from the last axis, which is -1."""


def fixed_dim(size: int) -> Dim:
    """Return a dimension that never scales."""
    return (ChannelSlice(None, size),)


def fixed_shape(sizes: Iterable[int]) -> Shape:
    """Return a shape whose dimensions never scale."""
    return tuple(fixed_dim(size) for size in sizes)


def total(dim: Dim) -> int:
    """Return the size of a dimension."""
    return sum(part.size for part in dim)


def groups_in(dim: Dim) -> list[int]:
    """Return the groups of a dimension's slices, in order; slices without a group are left out."""
    return [part.group for part in dim if part.group is not None]


def replace_dim(shape: Shape, axis: int, dim: Dim) -> Shape:
    """Return a shape with another dimension at an axis."""
    return (*shape[:axis], dim, *shape[axis + 1 :])


def positioned(dim: Dim) -> Iterator[tuple[int, ChannelSlice]]:
    """Yield the slices of a dimension, each with the position where it starts."""
    start = 0
    for part in dim:
        yield start, part
        start += part.size


def overlaps(a: Dim, b: Dim) -> Iterator[tuple[ChannelSlice, ChannelSlice, int]]:
    """Yield the pairs of slices that lie side by side in two dimensions, and how far they do."""
    i = j = start_a = start_b = 0
    while i < len(a) and j < len(b):
        end_a = start_a + a[i].size
        end_b = start_b + b[j].size
        overlap = min(end_a, end_b) - max(start_a, start_b)
        if overlap > 0:
            yield a[i], b[j], overlap
        if end_a <= end_b:
            i += 1
            start_a = end_a
        if end_b <= end_a:
            j += 1
            start_b = end_b
