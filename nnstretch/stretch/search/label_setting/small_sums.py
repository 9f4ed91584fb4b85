"""Pairs of two arrays whose sum is small enough, without looking at all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array


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
