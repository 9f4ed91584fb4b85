"""Kernels that share one learned model: rates, trees and errors, with the limits of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from nnstretch.files.limits import REQUIRED, Length, Range
from nnstretch.kernel import WEIGHTED
from nnstretch.predict.boosted_trees import STEEPEST, Forest
from nnstretch.predict.features import Column, ColumnOrFlag, FeatureBatch, FlagOrNothing, Numbers
from nnstretch.predict.sampled_range import (
    LARGEST,
    SIZE_SLACK,
    SLACK,
    Amount,
    AmountRange,
    Ranges,
    Rising,
)

FOLDED = ("scale", "shift")
"""Followers that a backend which fuses them folds into the weights."""
FASTEST = 1e-9
SLOWEST = 1e12
"""Microseconds that a latency or a rate may have at least and at most."""
FAR_OFF = STEEPEST / 10
"""Logarithm that no error exceeds."""
Duration = Annotated[float, Range(FASTEST, LARGEST)]
Names = Annotated[tuple[str, ...], Length()]
Classes = Length(1, 100)


@dataclass(frozen=True, slots=True)
class RateTerm:
    """One way in which work takes time."""

    column: Column
    """Of `features.COLUMNS`."""
    us_per_unit: Annotated[float, Range(0, SLOWEST)]
    above: Amount = field(default=0.0, metadata=REQUIRED)
    """Only what exceeds this counts: traffic that a cache of this many bytes no longer holds."""
    only: FlagOrNothing = field(default="", metadata=REQUIRED)
    """`op:NAME`, `then:NAME` or `layout:NAME`: kernels of that operator, follower or layout."""

    def amount(self, kernels: FeatureBatch) -> Numbers:
        """Return how much of this term each kernel has."""
        amounts = kernels.column(self.column)
        amounts = np.maximum(amounts - self.above, 0.0) if self.above else amounts
        return amounts * kernels.flag(self.only) if self.only else amounts


@dataclass(frozen=True, slots=True)
class ErrorQuantiles:
    """How far estimates were off on kernels not fitted on, by size of the analytic part."""

    above_us: Annotated[tuple[Amount, ...], Classes]
    """Where each class of sizes starts; the first at 0."""
    low: Annotated[tuple[Annotated[float, Range(-FAR_OFF, 0)], ...], Classes]
    """log(measured / estimated) that 5% of the kernels stay below, for each class."""
    high: Annotated[tuple[Annotated[float, Range(0, FAR_OFF)], ...], Classes]
    """log(measured / estimated) that 5% of the kernels exceed."""
    error: Annotated[tuple[Amount, ...], Classes]
    """Root-mean-square error, a share of the longer of the measured and the estimated time."""

    def classes(self, analytic_us: Numbers) -> NDArray[np.intp]:
        """Return the size class of each kernel."""
        return np.searchsorted(np.array(self.above_us[1:]), analytic_us, side="right")


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels that share one model."""

    terms: Annotated[tuple[RateTerm, ...], Length(0, 500)]
    floor_us: Annotated[float, Range(FASTEST, SLOWEST)]
    """The least that the analytic part answers."""
    ops: Annotated[tuple[str, ...], Length(1)]
    """Operators that were measured, the commonest first."""
    followers: Names
    """Operators that were measured fused behind one."""
    macs: AmountRange
    """Least and most that were measured."""
    working_bytes: AmountRange
    analytic_us: Annotated[tuple[Duration, Duration], Rising]
    spread: ErrorQuantiles
    power: Annotated[float, Range(0, 1)] = field(default=1.0, metadata=REQUIRED)
    inputs: Annotated[tuple[ColumnOrFlag, ...], Length()] = field(default=(), metadata=REQUIRED)
    """What the trees look at: columns, and `op:` and `then:` flags."""
    forest: Forest | None = field(default=None, metadata=REQUIRED)
    ranges: Ranges = field(default_factory=dict, hash=False)
    """Least and most of each feature that was measured; empty in files of earlier versions."""

    def rate_model_us(self, kernels: FeatureBatch) -> Numbers:
        """Return the analytic part of the model, without the trees; us."""
        time_us = np.zeros(len(kernels.form))
        for term in self.terms:
            time_us += term.us_per_unit * term.amount(kernels)
        return np.maximum(time_us, self.floor_us)

    def latency_us(self, kernels: FeatureBatch, analytic_us: Numbers) -> Numbers:
        """Return the latency, us; outside of measurements only the analytic part goes on."""
        if self.forest is None:
            return analytic_us
        low, high = self.analytic_us
        inside = np.clip(analytic_us, low, high)
        trees = self.forest.predict([kernels.input(name) for name in self.inputs])
        return np.asarray(analytic_us / inside * inside**self.power * np.exp(trees))

    def is_extrapolation(self, kernels: FeatureBatch) -> Numbers:
        """Return 1 where nothing like it was measured, else 0."""
        known = set(self.followers)
        strange_forms = [not known.issuperset(costly(form[0], form[2])) for form in kernels.forms]
        strange = np.array(strange_forms, dtype=bool)[kernels.form]
        for name, (low, high) in self.measured_ranges.items():
            amount = kernels.column(name)
            slack = SLACK.get(name, SIZE_SLACK)
            strange |= (amount > slack * max(high, 1.0)) | (np.maximum(amount, 1.0) * slack < low)
        return strange.astype(np.float64)

    @property
    def measured_ranges(self) -> Ranges:
        """Return the ranges of all features that the file knows."""
        return {"macs": self.macs, "working_bytes": self.working_bytes} | self.ranges


def costly(kind: str, epilogue: Sequence[str]) -> list[str]:
    """Return the followers that cost something: a weight takes in numbers that scale or shift."""
    if kind not in WEIGHTED:
        return list(epilogue)
    return [follower for follower in epilogue if follower not in FOLDED]
