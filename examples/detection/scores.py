"""How right boxes are: average precision and recall at an overlap of one half."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from stages import overlap

Boxes = NDArray[np.float32]
"""Rows of left, top, right, bottom, score, class; the best first."""


def matched(found: Boxes, truth: Boxes, least: float) -> NDArray[np.bool_]:
    """For every box of one image whether it is right; each true box is found once, by the best."""
    free, right = list(truth), []
    for box in found:
        best = max(
            (n for n in range(len(free)) if free[n][5] == box[5]),
            key=lambda n: overlap(box, free[n]),
            default=None,
        )
        right.append(best is not None and overlap(box, free[best]) >= least)
        if best is not None and right[-1]:
            free.pop(best)
    return np.array(right, bool)


def average_precision(
    found: Sequence[Boxes], truths: Sequence[Boxes], label: int, least: float = 0.5
) -> float:
    """Area under precision over recall of one class, precision made falling (as in PASCAL VOC
    2010); 0 where nothing is found.
    """
    own = [(f[f[:, 5] == label], t[t[:, 5] == label]) for f, t in zip(found, truths, strict=True)]
    right = np.concatenate([matched(f, t, least) for f, t in own])
    order = np.argsort(-np.concatenate([f[:, 4] for f, _ in own]), kind="stable")
    hits, wanted = np.cumsum(right[order]), sum(len(t) for _, t in own)
    if not len(hits) or not wanted:
        return 0.0
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float(np.sum(np.diff(np.concatenate([[0], hits / wanted])) * precision))


def recall(found: Sequence[Boxes], truths: Sequence[Boxes], least: float = 0.5) -> float:
    """True boxes that were found, of all."""
    hits = sum(int(matched(f, t, least).sum()) for f, t in zip(found, truths, strict=True))
    return hits / sum(len(t) for t in truths)


def precision(found: Sequence[Boxes], truths: Sequence[Boxes], least: float = 0.5) -> float:
    """Boxes that are right, of all that were drawn."""
    hits = sum(int(matched(f, t, least).sum()) for f, t in zip(found, truths, strict=True))
    return hits / max(1, sum(len(f) for f in found))
