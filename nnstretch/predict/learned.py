"""A latency learned from thousands of measured kernels: rates, boosted trees, an interval.

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
from nnstretch.predict.kernel_family import KernelFamily, costly
from nnstretch.predict.roofline import (
    MOST,
    NORMAL_90,
    Roofline,
    RooflineFeatures,
    latency_us,
    roofline_features,
)
from nnstretch.predict.sampled_range import WIDER, reason_outside
from nnstretch.predictor import Estimate

LAID_OUT = frozenset({"conv", "gconv", "dwconv", "pool"})
"""Kinds that are other programs on blocks of channels than on plain tensors."""


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
    """A `Predictor` fitted by `nnstretch.profile.fitting.fit_predictor`."""

    processor: str
    dtype: str
    families: Mapping[str, KernelFamily]
    relative_error: float
    """Root-mean-square error on kernels that it was not fitted on.

    A share of the longer of the measured and the estimated time; each kernel counts by its time.
    """
    noisy: str = ""
    """Why its measurements are noisy, in one line; empty where they are not."""

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Estimate one kernel.

        Raises UnsupportedOp for a kind or an operator that was never measured.
        """
        estimates = self.estimate_many((kernel,))
        interval_us = (float(estimates.low_us[0]), float(estimates.high_us[0]))
        return Estimate(float(estimates.latency_us[0]), float(estimates.error_us[0]), interval_us)

    def estimate_many(self, kernels: Sequence[Kernel], /) -> Estimates:
        """Estimate all kernels at once. Raises UnsupportedOp for a kernel never measured."""
        batch = feature_batch(kernels, ELEMENT_BYTES[self.dtype])
        for index, form in enumerate(batch.forms):
            if reason := self.refusal(form):
                raise self.unsupported(reason, kernels[int(np.argmax(batch.form == index))])
        names = np.array([kernel_family(form) for form in batch.forms])
        estimates = np.empty((4, len(kernels)))
        for name in dict.fromkeys(names.tolist()):
            rows = np.flatnonzero((names == name)[batch.form])
            part = batch if len(rows) == len(kernels) else batch.take(rows)
            estimates[:, rows] = estimate_rows(self.families[name], part)
        return Estimates(*estimates)

    def estimate_grid(self, kernel: Kernel, /) -> Numbers:
        """Estimate a kernel whose counts are arrays that broadcast, us. Raises UnsupportedOp."""
        batch, shape = feature_grid(kernel, ELEMENT_BYTES[self.dtype])
        for form in batch.forms:
            if reason := self.refusal(form):
                raise self.unsupported(reason, kernel)
        latency = np.empty(len(batch.form))
        for index, form in enumerate(batch.forms):
            rows = np.flatnonzero(batch.form == index)
            latency[rows] = estimate_rows(self.families[kernel_family(form)], batch.take(rows))[0]
        return latency.reshape(shape)

    def covers(self, kernel: Kernel, /) -> bool:
        """Return whether a kernel of its kind and operators was measured."""
        (form,) = feature_batch((kernel,), ELEMENT_BYTES[self.dtype]).forms
        return self.refusal(form) is None

    def outside(self, kernel: Kernel, /) -> str:
        """Return how a covered kernel lies outside of what was measured, empty if it does not."""
        batch = feature_batch((kernel,), ELEMENT_BYTES[self.dtype])
        family = self.families[kernel_family(batch.forms[0])]
        followers = costly(kernel.kind, kernel.epilogue)
        unknown = [follower for follower in followers if follower not in family.followers]
        if unknown:
            return f"{unknown[0]} was never measured behind {kernel.kind}"
        ranges = family.measured_ranges
        return reason_outside(ranges, {name: float(batch.column(name)[0]) for name in ranges})

    def refusal(self, form: Form) -> str | None:
        """Return what of a kernel was never measured, or None."""
        kind, op, epilogue, _, layout = form
        name = kernel_family(form)
        if name not in self.families:
            return f"kind {kind!r} ({layout})" if layout else f"kind {kind!r}"
        if op and op not in self.families[name].ops:
            return f"kind {kind!r} of operator {op!r}"
        known = set[str]().union(*(family.followers for family in self.families.values()))
        unknown = [follower for follower in costly(kind, epilogue) if follower not in known]
        return f"operator {unknown[0]!r} fused behind {kind!r}" if unknown else None

    def unsupported(self, reason: str, kernel: Kernel) -> UnsupportedOp:
        """Return the error for a kernel of which something was never measured."""
        return UnsupportedOp(
            f"{reason} was never measured, kernel {kernel.name}, processor {self.processor}"
        )


def kernel_family(form: Form) -> str:
    """Return the family of a kernel: 1x1 and blocked convolutions are programs of their own."""
    kind, _, _, kernel, layout = form
    name = f"{kind}1x1" if kind == "conv" and kernel == 1 else kind
    return f"{name}.{layout}" if layout and kind in LAID_OUT else name


def estimate_rows(family: KernelFamily, kernels: FeatureBatch) -> Numbers:
    """Return rows of latency, its low and high end, its error; us."""
    forms = tuple((form[0], form[1] or family.ops[0], *form[2:]) for form in kernels.forms)
    kernels = FeatureBatch(kernels.columns, forms, kernels.form)
    analytic_us = family.rate_model_us(kernels)
    latency_us = family.latency_us(kernels, analytic_us)
    classes = family.spread.classes(analytic_us)
    width = 1.0 + (WIDER - 1.0) * family.is_extrapolation(kernels)
    low = np.array(family.spread.low)[classes] * width
    high = np.array(family.spread.high)[classes] * width
    error = np.array(family.spread.error)[classes] * width
    factors = (np.exp(low), np.exp(high), np.minimum(error, MOST))
    return np.stack([latency_us, *(latency_us * factor for factor in factors)])


def estimate_many(predictor: Any, kernels: Sequence[Kernel]) -> Estimates:
    """Estimate many kernels, vectorized where the predictor can. Raises UnsupportedOp."""
    if hasattr(predictor, "estimate_many"):
        estimates: Estimates = predictor.estimate_many(kernels)
        return estimates
    if isinstance(predictor, Roofline):
        return roofline_many(predictor, kernels)
    rows = [estimate_row(predictor.estimate(kernel)) for kernel in kernels]
    return Estimates(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def estimate_row(estimate: Estimate) -> tuple[float, float, float, float]:
    """Return latency, low and high end, error of one estimate; us."""
    latency_us = estimate.latency_us
    error_us = estimate.error_us
    low_us, high_us = estimate.interval_us or (latency_us - error_us, latency_us + error_us)
    return latency_us, low_us, high_us, error_us


def roofline_many(predictor: Roofline, kernels: Sequence[Kernel]) -> Estimates:
    """Estimate kernels by a roofline. Raises UnsupportedOp for a kind that was never measured."""
    width = ELEMENT_BYTES[predictor.dtype]
    try:
        rows = [roofline_features(kernel, width) for kernel in kernels]
    except UnsupportedOp as error:
        raise UnsupportedOp(f"{error}, processor {predictor.processor}") from None
    table = np.array(rows, dtype=np.float64).reshape(-1, len(RooflineFeatures._fields))
    latencies_us = latency_us(predictor.rates, RooflineFeatures(*table.T), predictor.busy_factor)
    latency = np.asarray(latencies_us, dtype=np.float64)
    shares = np.array([predictor.error_share(kernel) for kernel in kernels], dtype=np.float64)
    factor = np.exp(NORMAL_90 * np.log1p(shares))
    errors_us = np.minimum(shares, MOST) * latency
    return Estimates(latency, latency / factor, latency * factor, errors_us)
