"""Labels that wait at one cut: those of the least bounds, as many as a beam compares."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.stretch.search.label_setting.extensions import least_rows
from nnstretch.stretch.search.label_setting.labels import LabelSet, concatenate_labels

SPARE_FACTOR = 1.3
"""Labels that may wait before they are made fewer, over those that are kept."""


@dataclass
class WaitingLabels:
    """Labels that wait at one cut to be extended."""

    most: int
    """Labels that are kept."""
    parts: list[LabelSet] = field(default_factory=list)
    limit_us: float = np.inf
    """The least bound of what was left out; from it on, nothing more is kept."""

    def add(self, labels: LabelSet) -> None:
        """Add labels; leave those of the highest bounds out where they are too many."""
        self.parts.append(labels)
        if sum(map(len, self.parts)) > SPARE_FACTOR * self.most:
            self.parts = [self.least()]

    def least(self) -> LabelSet:
        """Return the labels of the least bounds, as many as are kept."""
        labels = concatenate_labels(self.parts)
        rows, left_out_us = least_rows(labels.bound_us, np.arange(len(labels)), self.most)
        self.limit_us = min(self.limit_us, left_out_us)
        return labels.take(rows)
