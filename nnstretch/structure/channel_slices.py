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
    first: int = 0
    """Number of its first channel, the others follow; says nothing where there is no group."""


Dim = tuple[ChannelSlice, ...]
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class SameChannels:
    """Channels that are one under two numbers, or of which only all or none can be kept.

    Channel `source` + c is `target` + (o * `size` + c) * `inner` + i for all o < `outer` and
    i < `inner`: a reshape repeats it `outer` times as a whole, and each channel `inner` times.
    """

    source: int
    size: int
    target: int
    outer: int = 1
    inner: int = 1


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


def overlaps(a: Dim, b: Dim) -> Iterator[tuple[ChannelSlice, ChannelSlice]]:
    """Yield the pieces of two dimensions that lie side by side, two of one size at a time."""
    i = j = start_a = start_b = 0
    while i < len(a) and j < len(b):
        end_a = start_a + a[i].size
        end_b = start_b + b[j].size
        low = max(start_a, start_b)
        size = min(end_a, end_b) - low
        if size > 0:
            yield piece(a[i], low - start_a, size), piece(b[j], low - start_b, size)
        if end_a <= end_b:
            i += 1
            start_a = end_a
        if end_b <= end_a:
            j += 1
            start_b = end_b


def piece(part: ChannelSlice, offset: int, size: int) -> ChannelSlice:
    """Return `size` channels of a slice, from one of them on."""
    return ChannelSlice(part.group, size, part.first + offset)
