"""Times of a few rounds as medians and spreads, and how sure a speed-up is. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

SURE = 0.95
NOISY = 0.05
"""Of the median, between the quartiles; above it a machine is called noisy."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle of a number of measurements."""

    median: float
    low: float
    """First quartile; of a speed-up the lower end of its interval."""
    high: float

    @property
    def relative(self) -> float:
        """Return width over median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def quartiles(times: Sequence[float]) -> Interval:
    """Return the median with the lower and upper quartile."""
    low, middle, high = np.percentile(times, [25, 50, 75])
    return Interval(float(middle), float(low), float(high))


def speedup(base: Sequence[float], times: Sequence[float]) -> Interval:
    """Return how many times faster than `base`.

    The median over rounds, with an interval that holds the true median with 95% or more.

    Both were measured in the same rounds, so what slowed a whole round cancels. The interval is
    that of the sign test: it asks nothing of the distribution. Of fewer than six rounds it is all
    that was seen.
    """
    ratios = sorted(base_time / time for base_time, time in zip(base, times, strict=True))
    skip = order_statistic_rank(len(ratios))
    return Interval(median(ratios), ratios[skip], ratios[-1 - skip])


def order_statistic_rank(count: int) -> int:
    """Return how many of `count` sorted values may be cut off at either end, so that the true
    median is inside with `SURE`.
    """
    skip, tail, ways, all_ways = 0, 0, 1, 2**count
    for cut in range(count // 2):
        tail += ways  # of as many to lie at one end
        if 2 * tail / all_ways > 1 - SURE:
            break
        skip = cut
        ways = ways * (count - cut) // (cut + 1)
    return skip
