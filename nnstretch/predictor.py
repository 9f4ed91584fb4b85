"""Latency of a kernel on one processor: the estimate, and the protocol of what makes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from nnstretch.errors import BadInput
from nnstretch.files.limits import shorten
from nnstretch.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Estimate:
    """A latency, and how far it is usually off."""

    latency_us: float
    error_us: float
    """Root-mean-square error on cases that the predictor was not fitted on."""
    interval_us: tuple[float, float] | None = None
    """90% of the latencies lie between these; None where nobody counted."""


class Predictor(Protocol):
    """Estimates one kernel on one processor, from its description alone."""

    @property
    def processor(self) -> str:
        """Name of the `Processor` that was measured."""
        ...

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Raise `UnsupportedOp` for a kind never measured; never guess zero."""
        ...


class NeighbourPredictor(Predictor, Protocol):
    """A predictor that knows what its kernels take while others keep its threads busy."""

    def beside(self, busy_factor: float, /) -> Predictor:
        """Return it with the time that its threads multiply and gather times a factor."""
        ...


def require_estimate(estimate: object, kernel: Kernel, processor: str) -> None:
    """Check what a predictor gives. Raises BadInput for no `Estimate`, or one of no time."""
    if not isinstance(estimate, Estimate):
        raise BadInput(
            f"estimate of {kernel.kind} is {shorten(estimate)} ({type(estimate).__name__}) on"
            f" {processor}, kernel {kernel.name}, a predictor gives an Estimate"
        )
    require_time(estimate.latency_us, kernel, processor)


def require_time(time_us: float, kernel: Kernel, processor: str) -> None:
    """Check that a predicted latency is a time. Raises BadInput for NaN, infinity and below 0."""
    if not 0 <= time_us < inf:
        raise BadInput(
            f"latency of {kernel.kind} is {time_us:g} us on {processor}, kernel {kernel.name}, a"
            " predictor gives a finite number of at least 0"
        )
