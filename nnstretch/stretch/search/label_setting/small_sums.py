"""Pairs of two arrays whose sums are small enough."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.compiled.library import doubles, load_kernels

FEW_PAIRS = 400
"""Pairs that are looked at rather than made fewer first."""


def pairs_below(
    before_us: Array, after_us: Array, limit_us: float, size: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield rows, columns and highest sums of pairs below a limit at all prices, in slices.

    `before_us` are `[price, row]`, `after_us` `[price, column]`; about `size` pairs are looked at
    for a slice.
    """
    kernels = load_kernels()
    if kernels is not None:
        yield from compiled_pairs_below(kernels, before_us, after_us, limit_us, size)
        return
    each = zip(before_us, after_us, strict=True)
    fewest = SmallSums.up_to(*next(each), limit_us)
    for before, after in each:
        if len(fewest) <= FEW_PAIRS:
            break
        fewest = min(fewest, SmallSums.up_to(before, after, limit_us), key=len)
    for rows, columns in fewest.slices(size):
        sums_us = (before_us[:, rows] + after_us[:, columns]).max(axis=0)
        is_below = sums_us < limit_us
        yield rows[is_below], columns[is_below], sums_us[is_below]


def compiled_pairs_below(
    kernels: ctypes.CDLL, before_us: Array, after_us: Array, limit_us: float, size: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield `pairs_below` by a compiled loop."""
    columns = after_us.shape[1]
    step, after_us = max(1, size // max(1, columns)), doubles(after_us)
    for low in range(0, before_us.shape[1], step):
        before = doubles(before_us[:, low : low + step])
        shape = *before.shape, columns
        most = shape[1] * columns + 1  # with one to spare, which is written and not counted
        pairs, sums_us = np.empty((most, 2), dtype=np.int64), np.empty(most)
        parts = before.ctypes.data, after_us.ctypes.data, limit_us
        count = kernels.pairs_below(*shape, *parts, pairs.ctypes.data, sums_us.ctypes.data)
        yield pairs[:count, 0] + low, pairs[:count, 1], sums_us[:count]


@dataclass(frozen=True)
class SmallSums:
    """For every row of one array, the columns of another that add little enough."""

    order: Array
    """Columns by rising value."""
    counts: Array
    """How many of them, in that order, each row goes with."""

    @classmethod
    def up_to(cls, first: Array, second: Array, most: float) -> SmallSums:
        """Return the pairs that sum to at most `most`; NaN, of two infinities, counts as small."""
        order = np.argsort(second)
        with np.errstate(invalid="ignore"):
            room = most - first
        return cls(order, np.searchsorted(second[order], room, side="right"))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def slices(self, size: int) -> Iterator[tuple[Array, Array]]:
        """Yield rows and columns of all pairs, about `size` at a time, row by row."""
        ends, low = np.cumsum(self.counts), 0
        while low < len(ends):
            done = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + size, side="right")))
            counts = self.counts[low:high]
            rows = np.repeat(np.arange(low, high), counts)
            places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            yield rows, self.order[places]
            low = high
