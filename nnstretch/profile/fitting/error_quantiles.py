"""Intervals of a predictor from the errors of kernels that were left out of its fit."""

from __future__ import annotations

import numpy as np

from nnstretch.predict.features import Numbers
from nnstretch.predict.kernel_family import FAR_OFF, ErrorQuantiles

CLASS = 40
"""Samples that one class of sizes needs for an interval of its own."""
COVERED = 0.9


def error_quantiles(residual: Numbers, size: Numbers, most: int = 6) -> ErrorQuantiles:
    """Return quantiles of held-out errors, in at most `most` classes of about as many samples.

    Fewer classes where many samples are of one size, as they are on a device whose launches all
    take the same: each has `CLASS` samples, or is the only one.
    """
    classes = max(1, min(most, len(size) // CLASS))
    edges = full_edges(size, np.quantile(size, np.arange(1, classes) / classes))
    size_class = np.searchsorted(edges, size, side="right")
    parts = [residual[size_class == index] for index in range(len(edges) + 1)]
    lows, highs = zip(*map(conformal_interval, parts), strict=True)
    spreads = tuple(map(root_mean_square, parts))
    return ErrorQuantiles((0.0, *edges.tolist()), lows, highs, spreads)


def full_edges(size: Numbers, edges: Numbers) -> Numbers:
    """Return the edges, from the smallest on, that leave at least `CLASS` sizes on both sides."""
    kept: list[float] = []
    start = 0
    order = np.sort(size)
    for edge, stop in zip(edges, np.searchsorted(order, edges), strict=True):
        if min(stop - start, len(order) - stop) >= CLASS:
            kept.append(edge)
            start = stop
    return np.array(kept)


def conformal_interval(residual: Numbers) -> tuple[float, float]:
    """Return the interval that holds 90% of further errors (split conformal prediction).

    Of n + 1 kernels that could have come in any order, 90% lie between two ranks. Fewer than 19
    cannot show their own 5%: then the interval reaches beyond the worst of them, to `FAR_OFF` at
    most, which is the farthest that a predictor's file holds.
    """
    count = len(residual)
    rank = (count + 1) * (1 - COVERED) / 2
    low, high = np.interp((rank, count + 1 - rank), np.arange(1, count + 1), np.sort(residual))
    reach = min(1.0, rank)
    return max(min(float(low), 0.0) / reach, -FAR_OFF), min(max(float(high), 0.0) / reach, FAR_OFF)


def root_mean_square(residual: Numbers, weight: Numbers | None = None) -> float:
    """Return the weighted root mean square of errors, shares of the longer of both times.

    As a share of an estimate near zero a single error would be all of the mean.
    """
    return float(np.sqrt(np.average(np.expm1(-np.abs(residual)) ** 2, weights=weight)))
