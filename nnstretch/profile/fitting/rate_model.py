"""The analytic part of a learned predictor: non-negative rates per unit of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from nnstretch.predict.kernel_family import RateTerm
from nnstretch.profile.fitting.training_kernels import TrainingKernels

MIB = 2.0**20
BEYOND = 40
"""Samples beyond a threshold before what exceeds it may count.

A few would say anything about what lies further out.
"""
ROUNDS = 5
OUTLIER = 0.2
"""Error from which a sample's weight falls."""
FEW = 20
"""Samples below which a family has the plainest terms and no fold decides anything."""
SOME = 60
"""Samples below which it has only the commonest terms."""
FLAGGED = 5
"""Samples that an operator or a follower needs for more than one term of its own."""

WORK = (
    RateTerm("one", 1),
    RateTerm("macs", 1),
    RateTerm("padded_macs", 1),
    RateTerm("row_macs", 1),
    RateTerm("windows", 1),
    RateTerm("patches", 1),
    RateTerm("read_bytes", 1),
    RateTerm("write_bytes", 1),
    RateTerm("weight_bytes", 1),
    RateTerm("groups", 1),
    RateTerm("taps", 1),
    RateTerm("inputs", 1),
    RateTerm("rows", 1),
    RateTerm("cout", 1),
    RateTerm("tile_macs", 1),
    RateTerm("square_macs", 1),
    RateTerm("step_macs", 1),
    RateTerm("read_sweeps", 1),
    RateTerm("write_sweeps", 1),
    RateTerm("weight_sweeps", 1),
    RateTerm("lines", 1),
    RateTerm("calls", 1),
    RateTerm("block_writes", 1),
    RateTerm("block_taps", 1),
    RateTerm("step_taps", 1),
    RateTerm("working_bytes", 1, MIB),
    RateTerm("working_bytes", 1, 4 * MIB),
    RateTerm("working_bytes", 1, 16 * MIB),
    RateTerm("weight_bytes", 1, MIB / 2),
    RateTerm("weight_bytes", 1, 2 * MIB),
    RateTerm("moved_bytes", 1, MIB / 4),
    RateTerm("moved_bytes", 1, MIB),
)
"""Ways in which work may take time; the fit drops what does not."""
COMMON = tuple(
    RateTerm(name, 1)
    for name in (
        "one",
        "inputs",
        "macs",
        "padded_macs",
        "read_bytes",
        "write_bytes",
        "weight_bytes",
        "cout",
        "taps",
    )
)
PLAIN = (RateTerm("one", 1), RateTerm("moved_bytes", 1), RateTerm("macs", 1))


def terms_for(data: TrainingKernels) -> list[RateTerm]:
    """Return the model's terms; the fewer the samples, the fewer the terms."""
    count = len(data.latency_us)
    if count < FEW:
        return supported_terms(PLAIN, data)
    terms = supported_terms(COMMON if count < SOME else WORK, data)
    for flag, samples in data.flags().items():
        for column in flag_columns(flag, samples):
            terms.append(RateTerm(column, 1, only=flag))
    return terms


def supported_terms(terms: Sequence[RateTerm], data: TrainingKernels) -> list[RateTerm]:
    """Return the terms without those beyond a threshold that too few samples exceed."""
    return [
        term
        for term in terms
        if not term.above or np.count_nonzero(term.amount(data.kernels)) >= BEYOND
    ]


def flag_columns(flag: str, samples: int) -> tuple[str, ...]:
    """Return the columns in which kernels with a flag may cost extra."""
    if samples < FLAGGED:
        return ("write_bytes",)
    if flag.startswith("then:"):
        return ("one", "write_bytes")
    return ("one", "write_bytes", "read_bytes", "taps", "cout")


def fit_rates(terms: Sequence[RateTerm], data: TrainingKernels) -> tuple[RateTerm, ...]:
    """Fit non-negative rates to log ratios by a few rounds of weighted linear least squares.

    Far outliers count less. Terms with rate 0 are dropped.
    """
    latency_us = data.latency_us
    amounts = np.stack([term.amount(data.kernels) for term in terms], axis=1)
    unit = np.maximum(np.linalg.norm(amounts / latency_us[:, None], axis=0), 1e-300)
    scaled = amounts / unit
    base, weight, rates = latency_us, data.weight, np.zeros(len(terms))
    for _ in range(ROUNDS):
        rows = scaled * (weight / base)[:, None]
        rates, _ = nnls(rows, weight * latency_us / base, maxiter=100 * len(terms))
        estimate = np.maximum(scaled @ rates, latency_us / 10)
        base = np.sqrt(estimate * latency_us)
        log_error = np.abs(np.log(estimate / latency_us))
        weight = data.weight * np.sqrt(OUTLIER / np.maximum(log_error, OUTLIER))
    fitted: list[RateTerm] = []
    for term, rate in zip(terms, rates / unit, strict=True):
        if rate > 0:
            fitted.append(replace(term, us_per_unit=float(rate)))
    return tuple(fitted)
