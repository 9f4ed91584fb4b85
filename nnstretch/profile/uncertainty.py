"""Which kernels the samples so far predict badly.

The quick half of a fit, cross-validated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.features import feature_batch
from nnstretch.predict.learned import kernel_family
from nnstretch.profile.fitting.fit_predictor import cross_validated_errors
from nnstretch.profile.fitting.training_kernels import TrainingKernels
from nnstretch.profile.sampling.sample import Sample


def relative_errors(samples: Sequence[Sample], dtype: str) -> np.ndarray:
    """Return `|measured / estimated - 1|` of every sample, by rates that never saw it.

    Trees would take longer than measuring.
    """
    kernels = feature_batch([sample.kernel for sample in samples], ELEMENT_BYTES[dtype])
    data = TrainingKernels(
        kernels, np.array([sample.latency_us for sample in samples]), np.ones(len(samples))
    )
    names = np.array([kernel_family(form) for form in kernels.forms])[kernels.form]
    wrong = np.zeros(len(samples))
    for name in sorted(set(names)):
        rows = np.flatnonzero(names == name)
        wrong[rows] = np.abs(np.expm1(cross_validated_errors(data.take(rows), None)))
    return wrong
