"""Boxes: a part of a tensor as one half-open range for each dimension."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
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


class DisjointBoxes:
    """Boxes of one tensor that share no element, and which of them overlap another."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        self.axis: int | None = None
        """A dimension along which one box ends before the next begins; None without one."""
        self.starts: list[int] = []
        self.places: list[int] = []
        for axis in range(len(boxes[0]) if boxes else 0):
            ranges = sorted((box[axis], place) for place, box in enumerate(boxes))
            if all(first[0][1] <= second[0][0] for first, second in pairwise(ranges)):
                self.axis = axis
                self.starts = [bounds[0] for bounds, _ in ranges]
                self.places = [place for _, place in ranges]
                break

    def overlapping(self, box: Box) -> list[int]:
        """Return the places of the boxes that share an element with another, in order."""
        near: Sequence[int] = range(len(self.boxes))
        if self.axis is not None:
            start, stop = box[self.axis]
            first = max(0, bisect_right(self.starts, start) - 1)
            near = sorted(self.places[first : bisect_left(self.starts, stop)])
        return [place for place in near if intersect(self.boxes[place], box) is not None]


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
