"""A latency learned from thousands of measured kernels.

An analytic part that can be read, boosted trees on top, an interval around both.

    latency = analytic ** power x exp(trees)          analytic = sum of rate x amount of work

Rates are not negative and amounts never fall with size, so the analytic part is monotone; the trees
may only rise with size, too. A power below 1 leaves them room: efficiency may grow with size
although neither factor ever falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import Kernel
from nnstretch.predict.features import FeatureBatch, Form, Numbers, feature_batch, feature_grid
from nnstretch.predict.kernel_family import KernelFamily
from nnstretch.predict.roofline import Roofline, RooflineFeatures, latency_us, roofline_features
from nnstretch.predictor import Estimate

LAID_OUT = frozenset({"conv", "gconv", "dwconv", "pool"})
"""Kinds that are other programs on blocks of channels than on plain tensors."""
WIDER = 3.0
"""How many times as wide an interval is, in logarithms, beyond `FAR` outside of measurements."""
MOST = 0.99
"""Share of an estimate that its error is said to be at most; the interval says the rest."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Many estimates, in microseconds, in the order of the kernels."""

    latency_us: Numbers
    low_us: Numbers
    """90% of the latencies lie between this and `high_us`."""
    high_us: Numbers
    error_us: Numbers


@dataclass(frozen=True, slots=True)
class Learned:
    """A `Predictor` fitted by `nnstretch.profile.fit_predictor`."""

    processor: str
    dtype: str
    families: Mapping[str, KernelFamily]
    relative_error: float
    """Root-mean-square error on kernels that it was not fitted on, each counted by its time, as a
    share of the estimate.
    """

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Raise UnsupportedOp for a kind or an operator that was never measured."""
        estimates = self.estimate_many((kernel,))
        low, high = float(estimates.low_us[0]), float(estimates.high_us[0])
        return Estimate(float(estimates.latency_us[0]), float(estimates.error_us[0]), (low, high))

    def estimate_many(self, kernels: Sequence[Kernel], /) -> Estimates:
        """Estimate all kernels at once. Raises UnsupportedOp, naming the first kernel that was
        never measured.
        """
        everything = feature_batch(kernels, ELEMENT_BYTES[self.dtype])
        names = [kernel_family(form) for form in everything.forms]
        for index, (form, name) in enumerate(zip(everything.forms, names, strict=True)):
            if reason := self.refusal(form, name):
                kernel = kernels[int(np.argmax(everything.form == index))]
                raise UnsupportedOp(
                    f"{reason} was never measured, kernel {kernel.name}, processor {self.processor}"
                )
        columns = np.empty((4, len(kernels)))
        for name in dict.fromkeys(names):
            chosen = np.array([other == name for other in names])
            rows = np.flatnonzero(chosen[everything.form])
            if not len(rows):
                continue
            part = everything if len(rows) == len(kernels) else everything.take(rows)
            columns[:, rows] = estimate_rows(self.families[name], part)
        return Estimates(*columns)

    def estimate_grid(self, kernel: Kernel, /) -> Numbers:
        """Estimate a kernel whose counts are arrays that broadcast against each other, us. Raises
        as `estimate` does.
        """
        columns, shape = feature_grid(kernel, ELEMENT_BYTES[self.dtype])
        name = kernel_family(columns.forms[0])
        if reason := self.refusal(columns.forms[0], name):
            raise UnsupportedOp(
                f"{reason} was never measured, kernel {kernel.name}, processor {self.processor}"
            )
        found = np.empty(len(columns.form))
        for index, form in enumerate(columns.forms):
            rows = np.flatnonzero(columns.form == index)
            found[rows] = estimate_rows(self.families[kernel_family(form)], columns.take(rows))[0]
        return found.reshape(shape)

    def covers(self, kernel: Kernel, /) -> bool:
        """Return whether a kernel of its kind and operators was measured."""
        (form,) = feature_batch((kernel,), ELEMENT_BYTES[self.dtype]).forms
        return self.refusal(form, kernel_family(form)) is None

    def refusal(self, form: Form, name: str) -> str | None:
        """Return why a kernel is refused, or None."""
        kind, op, epilogue, _, layout = form
        if name not in self.families:
            return f"kind {kind!r} ({layout})" if layout else f"kind {kind!r}"
        if op and op not in self.families[name].ops:
            return f"kind {kind!r} of operator {op!r}"
        known = {follower for family in self.families.values() for follower in family.followers}
        unknown = [follower for follower in epilogue if follower not in known]
        return f"operator {unknown[0]!r} fused behind {kind!r}" if unknown else None


def kernel_family(form: Form) -> str:
    """Return the family of a kernel: convolutions of one pixel are products of matrices, wider
    windows are not.

    On blocks of channels they are other programs.
    """
    kind, _, _, kernel, layout = form
    name = f"{kind}1x1" if kind == "conv" and kernel == 1 else kind
    return f"{name}.{layout}" if layout and kind in LAID_OUT else name


def estimate_rows(family: KernelFamily, kernels: FeatureBatch) -> Numbers:
    """Return rows: latency, low, high, error."""
    forms = tuple(
        (kind, op or family.ops[0], then, window, layout)
        for kind, op, then, window, layout in kernels.forms
    )
    kernels = FeatureBatch(kernels.columns, forms, kernels.form)
    analytic = family.rate_model_us(kernels)
    latency = family.latency_us(kernels, analytic)
    spread, classes, width = (
        family.spread,
        family.spread.classes(analytic),
        1.0 + (WIDER - 1.0) * family.is_extrapolation(kernels),
    )
    low, high, error = (
        np.array(values)[classes] * width for values in (spread.low, spread.high, spread.error)
    )
    return np.stack(
        [latency, latency * np.exp(low), latency * np.exp(high), latency * np.minimum(error, MOST)]
    )


def estimate_many(predictor: Any, kernels: Sequence[Kernel]) -> Estimates:
    """Estimate many kernels by any predictor, vectorized where it can be.

    Raises UnsupportedOp as `estimate` does.
    """
    if isinstance(predictor, Learned):
        return predictor.estimate_many(kernels)
    if isinstance(predictor, Roofline):
        return roofline_many(predictor, kernels)
    estimates = [predictor.estimate(kernel) for kernel in kernels]
    ends = [
        estimate.interval_us
        or (estimate.latency_us - estimate.error_us, estimate.latency_us + estimate.error_us)
        for estimate in estimates
    ]
    rows = [
        (estimate.latency_us, low, high, estimate.error_us)
        for estimate, (low, high) in zip(estimates, ends, strict=True)
    ]
    return Estimates(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def roofline_many(predictor: Roofline, kernels: Sequence[Kernel]) -> Estimates:
    """Describe kernels one by one, and estimate all at once.

    Raises UnsupportedOp when a kind was never measured.
    """
    width = ELEMENT_BYTES[predictor.dtype]
    try:
        rows = np.array(
            [roofline_features(kernel, width) for kernel in kernels], dtype=np.float64
        ).reshape(-1, len(RooflineFeatures._fields))
    except UnsupportedOp as error:
        raise UnsupportedOp(f"{error}, processor {predictor.processor}") from None
    latency = np.asarray(latency_us(predictor.rates, RooflineFeatures(*rows.T)), dtype=np.float64)
    error_us = predictor.relative_error * latency
    return Estimates(latency, np.maximum(latency - error_us, 0.0), latency + error_us, error_us)
