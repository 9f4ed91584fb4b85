"""A processor that is a described accelerator: kernels priced in closed form.

A price is what the kernel adds to a branch: its engines work beside each other (`pipelined_us`), or
one after the other where the file says so (`serial_us`). Its error is how far sums of kernels are
from whole branches as scheduled, counted over branches (docs/results/accelerator_branches.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.pricing.kernel_times import kernel_times
from nnstretch.accelerate.pricing.kernel_work import COUNTS
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import Kernel
from nnstretch.predict.features import Numbers
from nnstretch.predict.learned import Estimates
from nnstretch.predict.roofline import MOST
from nnstretch.predictor import Estimate
from nnstretch.soc import Soc

BRANCH_ERROR = 0.10
"""Usual error where a file says none: 9.8 % in docs/results/accelerator_branches.md, rounded up."""


@dataclass(frozen=True, slots=True)
class DescribedAccelerator:
    """A `Predictor` of one accelerator that a file describes."""

    processor: str
    dtype: str
    rates: ChipRates = field(hash=False)
    machine: str
    """Name under `accelerators/`, or of a file in the chip's folder."""
    relative_error: float = BRANCH_ERROR
    serial: bool = False
    """Whether loads, computations and stores of a kernel wait for each other."""

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Estimate one kernel. Raises UnsupportedOp for a kind that has no price."""
        latency_us = float(self.estimate_grid(kernel).item())
        error_us = min(self.relative_error, MOST) * latency_us
        factor = 1.0 + self.relative_error
        return Estimate(latency_us, error_us, (latency_us / factor, latency_us * factor))

    def estimate_grid(self, kernel: Kernel, /) -> Numbers:
        """Estimate a kernel whose counts are arrays that broadcast, us. Raises UnsupportedOp."""
        try:
            times = kernel_times(kernel, self.rates, ELEMENT_BYTES[self.dtype])
        except UnsupportedOp as error:
            raise UnsupportedOp(f"{error}, processor {self.processor}") from None
        if self.serial:
            return times.serial_us
        return times.pipelined_us(self.rates.accelerator.ddr.both_directions)

    def estimate_many(self, kernels: Sequence[Kernel], /) -> Estimates:
        """Estimate all kernels, those of one kind in arrays. Raises UnsupportedOp."""
        places: dict[tuple[object, ...], list[int]] = {}
        for place, kernel in enumerate(kernels):
            form = kernel.kind, kernel.op, kernel.epilogue, kernel.window
            places.setdefault(form, []).append(place)
        latency_us = np.empty(len(kernels))
        for rows in places.values():
            counts: dict[str, Any] = {}
            for name in COUNTS:
                counts[name] = np.array([getattr(kernels[i], name) for i in rows])
            latency_us[rows] = self.estimate_grid(replace(kernels[rows[0]], **counts))
        factor = 1.0 + self.relative_error
        error_us = min(self.relative_error, MOST) * latency_us
        return Estimates(latency_us, latency_us / factor, latency_us * factor, error_us)


def described_machines(soc: Soc, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return machine and assumed values of the processors that are described accelerators."""
    machines: dict[str, dict[str, Any]] = {}
    for name in names:
        predictor = soc.predictors[name]
        if isinstance(predictor, DescribedAccelerator):
            assumed = list(predictor.rates.accelerator.assumed)
            machines[name] = {"machine": predictor.machine, "assumed": assumed}
    return machines
