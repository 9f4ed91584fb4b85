"""Measured kernels of one family, as the fit sees them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nnstretch.predict.features import FeatureBatch, Form, Numbers


@dataclass(frozen=True, slots=True)
class TrainingKernels:
    """Kernels of one family with what was measured."""

    kernels: FeatureBatch
    latency_us: Numbers
    weight: Numbers

    def take(self, rows: NDArray[np.intp]) -> TrainingKernels:
        """Return the chosen rows."""
        return TrainingKernels(self.kernels.take(rows), self.latency_us[rows], self.weight[rows])

    def forms(self) -> list[Form]:
        """Return the form of each row's kernel."""
        return [self.kernels.forms[index] for index in self.kernels.form]

    def operators(self) -> tuple[str, ...]:
        """Return the kernels' main operators, the most frequent first."""
        return tuple(op for op, _ in Counter(form[1] for form in self.forms()).most_common())

    def followers(self) -> tuple[str, ...]:
        """Return the operators that are fused behind any of the kernels, by name."""
        return tuple(sorted(set(chain.from_iterable(form[2] for form in self.forms()))))

    def flags(self) -> dict[str, int]:
        """Return what tells kernels of one family apart, and how many rows have it.

        A flag is `op:NAME`, `then:FOLLOWER` or `layout:NAME`; what all rows share is none.
        """
        counts = Counter[str]()
        forms = self.forms()
        for form in forms:
            names = [f"op:{form[1]}", *(f"then:{name}" for name in set(form[2]))]
            names.append(f"layout:{form[4]}")
            counts.update(name for name in names if not name.endswith(":"))
        return {flag: count for flag, count in sorted(counts.items()) if count < len(forms)}
