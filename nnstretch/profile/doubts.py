"""Which kernels are told badly by what is known so far: the quick half of a fit, left out fold by fold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.features import batch
from nnstretch.predict.learned import family_of
from nnstretch.profile.fit import Data, left_out
from nnstretch.profile.sample import Sample


def doubts(samples: Sequence[Sample], dtype: str) -> np.ndarray:
    """|measured / estimated - 1| of every sample by rates that never saw it; trees would take longer than measuring."""
    kernels = batch([sample.kernel for sample in samples], ELEMENT_BYTES[dtype])
    data = Data(kernels, np.array([sample.latency_us for sample in samples]), np.ones(len(samples)))
    names = np.array([family_of(form) for form in kernels.forms])[kernels.form]
    wrong = np.zeros(len(samples))
    for name in sorted(set(names)):
        rows = np.flatnonzero(names == name)
        wrong[rows] = np.abs(np.expm1(left_out(data.take(rows), None)))
    return wrong
