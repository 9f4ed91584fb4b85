"""Boxes: a part of a tensor as one half-open range for each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return tuple((0, size) for size in shape)


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the sizes of a box."""
    return tuple(stop - start for start, stop in box)


def box_elements(box: Box) -> int:
    """Return the number of elements of a box."""
    return prod(max(0, stop - start) for start, stop in box)


def intersect(first: Box, second: Box) -> Box | None:
    """Return what two boxes share, or None."""
    ranges: list[tuple[int, int]] = []
    for (start, stop), (begin, end) in zip(first, second, strict=True):
        low, high = max(start, begin), min(stop, end)
        if low >= high:
            return None
        ranges.append((low, high))
    return tuple(ranges)


def hull(first: Box, second: Box) -> Box:
    """Return the smallest box around two; an empty one adds nothing."""
    if not box_elements(first) and first:
        return second
    if not box_elements(second) and second:
        return first
    return tuple(
        (min(start, begin), max(stop, end))
        for (start, stop), (begin, end) in zip(first, second, strict=True)
    )


def contains(outer: Box, inner: Box) -> bool:
    """Return whether a box holds another."""
    return all(
        start <= begin and end <= stop
        for (start, stop), (begin, end) in zip(outer, inner, strict=True)
    )


def relative(inner: Box, outer: Box) -> Box:
    """Return a box in the coordinates of the one around it."""
    return tuple(
        (begin - start, end - start) for (begin, end), (start, _) in zip(inner, outer, strict=True)
    )


def part(box: Box, axis: int, pieces: int, index: int) -> Box:
    """Return one of several equal parts of a box along an axis."""
    start, stop = box[axis]
    size = (stop - start) // pieces
    ranges = list(box)
    ranges[axis] = (start + index * size, start + (index + 1) * size)
    return tuple(ranges)


def box_text(box: Box) -> str:
    """Return the printed form of a box: `0:2,0:256`."""
    return ",".join(f"{start}:{stop}" for start, stop in box)
