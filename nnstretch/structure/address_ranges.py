"""Ranges of addresses: where between those that are taken something fits."""

from __future__ import annotations

from collections.abc import Sequence


def lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the lowest address at which a size fits between sorted ranges, else the end."""
    end = 0
    for start, stop in taken:
        if start - end >= size:
            return end
        end = max(end, stop)
    return end


def smallest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the address of the smallest gap with room between sorted ranges, else the end."""
    end, best, room = 0, -1, 0
    for start, stop in taken:
        if start - end >= size and (best < 0 or start - end < room):
            best, room = end, start - end
        end = max(end, stop)
    return end if best < 0 else best


def free_gaps(taken: Sequence[tuple[int, int]], capacity: int) -> list[tuple[int, int]]:
    """Return the ranges below a capacity that nothing takes."""
    gaps: list[tuple[int, int]] = []
    end = 0
    for start, stop in sorted(taken):
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    if capacity > end:
        gaps.append((end, capacity))
    return gaps
