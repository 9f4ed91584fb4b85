"""A latency from ten physical rates.

    latency = launch + arithmetic / rate + traffic / bandwidth + groups + pieces + patches +
    element-wise

Terms add, so nothing is assumed to overlap: every term is a cost that can be read on its own, and
more work is never faster. Narrow operators leave vector lanes idle (`half_channels`), and too few
outputs leave cores idle (`fill_outputs`): that is why wide operators reach a processor's peak and
branches do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from nnstretch.errors import UnsupportedOp
from nnstretch.files.limits import Range
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import Kernel
from nnstretch.predict.sampled_range import (
    LARGEST,
    UNSEEN,
    WIDER,
    Amount,
    Ranges,
    ranged_features,
    reason_outside,
)
from nnstretch.predictor import Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

DENSE = frozenset({"conv", "gconv", "linear", "matmul"})
DEPTHWISE = "dwconv"
MEMORY_BOUND = frozenset(
    {"pool", "gap", "add", "mul", "concat", "norm", "activation", "softmax", "reshape"}
)
KINDS = DENSE | {DEPTHWISE} | MEMORY_BOUND

AtLeastOne = Annotated[float, Range(1, LARGEST)]
Positive = Annotated[float, Range(1e-9, LARGEST)]


@dataclass(frozen=True, slots=True)
class Rates:
    """One processor, as fitted from whole networks and single kernels."""

    launch_us: Positive
    dense_macs_per_us: Positive
    """Peak of convolutions and linear layers that are wide and large."""
    depthwise_macs_per_us: Positive
    half_channels: Amount
    """Channels per group, in or out, at which half of the vector lanes are idle."""
    fill_outputs: Amount
    """Outputs below which cores are idle, because each output is one thread's work.

    Time stops falling there.
    """
    bytes_per_us: Positive
    group_us: Amount
    """Each group of a grouped convolution: deployed as split, convolutions, concatenation."""
    piece_us_per_thousand: Amount
    """Split and concatenation move, for every pixel, one short run of channels per group."""
    patch_us_per_kib: Amount
    """Copying the windows of a convolution side by side before it is multiplied (im2col)."""
    elementwise_us_per_kib: Amount
    """A sum or product of two tensors beyond its traffic, where it runs on one thread."""


class RooflineFeatures(NamedTuple):
    """The quantities that rates multiply; numbers for one kernel, arrays for many."""

    dense_macs: float = 0.0
    inverse_width: float = 0.0
    """1 / channels in + 1 / channels out, per group."""
    inverse_area: float = 0.0
    """Product of the two."""
    reduction: float = 0.0
    """Multiply-accumulates per output, summed over groups, which run one after another."""
    depthwise_macs: float = 0.0
    traffic_bytes: float = 0.0
    groups: float = 0.0
    thousand_pieces: float = 0.0
    """Runs of channels that a split takes apart and a concatenation puts together again."""
    patch_kib: float = 0.0
    elementwise_kib: float = 0.0


def roofline_features(kernel: Kernel, element_bytes: int) -> RooflineFeatures:
    """Return a kernel as the deployed network runs it; its counts may be arrays.

    Raises UnsupportedOp when the kind was never measured.
    """
    moved = kernel.read_elements + kernel.write_elements
    kind = kernel.kind
    if kind == "add" or kind == "mul":
        return memory(moved, kernel.weight_elements, kernel.write_elements, element_bytes)
    if kind in MEMORY_BOUND:
        return memory(moved, kernel.weight_elements, 0, element_bytes)
    residual = 0
    if kind != "matmul":
        most = elementwise_max(kernel)
        residual = most(0, kernel.read_elements - kernel.cin * kernel.hw_in * kernel.batch)
    if kind == DEPTHWISE:
        return RooflineFeatures(
            depthwise_macs=kernel.macs,
            traffic_bytes=(moved + kernel.weight_elements) * element_bytes,
            elementwise_kib=residual * element_bytes / 1024,
        )
    if kind not in DENSE:
        raise UnsupportedOp(
            f"kind {kind!r} was never measured, kernel {kernel.name}, known are"
            f" {', '.join(sorted(KINDS))}"
        )
    return dense_features(kernel, residual, element_bytes)


def dense_features(kernel: Kernel, residual: int, element_bytes: int) -> RooflineFeatures:
    """Return a convolution or product of matrices; `residual` is elements of a fused sum."""
    most = elementwise_max(kernel)
    moved = kernel.read_elements + kernel.write_elements
    groups = kernel.groups if kernel.kind == "gconv" else 1
    narrow_in = groups / most(1, kernel.cin)
    narrow_out = groups / most(1, kernel.cout)
    reduction = kernel.macs / most(1, kernel.cout * kernel.hw_out * kernel.batch)
    split = groups * (groups > 1)
    pieces = split * (kernel.hw_in + kernel.hw_out) * kernel.batch
    gathers = kernel.kernel > 1 or kernel.stride > 1
    patch = reduction * groups * kernel.hw_out * kernel.batch if gathers else 0.0
    return RooflineFeatures(
        dense_macs=kernel.macs,
        inverse_width=narrow_in + narrow_out,
        inverse_area=narrow_in * narrow_out,
        reduction=reduction * groups,
        traffic_bytes=(moved + kernel.weight_elements) * element_bytes,
        groups=split,
        thousand_pieces=pieces / 1000,
        patch_kib=patch * element_bytes / 1024,
        elementwise_kib=residual * element_bytes / 1024,
    )


def elementwise_max(kernel: Kernel) -> Any:
    """Return the larger of two numbers, or of each pair in two arrays."""
    if type(kernel.read_elements) is int and type(kernel.cout) is int:
        return max
    import numpy

    return numpy.maximum


def memory(moved: int, weights: int, combined: int, element_bytes: int) -> RooflineFeatures:
    """Return the features of a kernel that is bound by memory."""
    traffic_bytes = (moved + weights) * element_bytes
    elementwise_kib = combined * element_bytes / 1024
    return RooflineFeatures(traffic_bytes=traffic_bytes, elementwise_kib=elementwise_kib)


def arithmetic_us(rates: Rates, features: RooflineFeatures) -> float:
    """Return the time that dense arithmetic takes, one row or arrays of them."""
    half = rates.half_channels
    share = 1 + half * features.inverse_width + half * half * features.inverse_area
    padded = features.dense_macs * share
    # The work of a full processor in the time that one output takes.
    alone = rates.fill_outputs * features.reduction
    arithmetic: float = (padded * padded + alone * alone) ** 0.5 / rates.dense_macs_per_us
    return arithmetic


def latency_us(rates: Rates, features: RooflineFeatures, busy_factor: float = 1.0) -> float:
    """Return the latency of features, one row or arrays of them.

    With a busy factor, dense arithmetic and gathering take that much longer, as far as the kernel
    does not wait for something else meanwhile.
    """
    arithmetic = arithmetic_us(rates, features)
    alone_us = (
        rates.launch_us
        + arithmetic
        + features.depthwise_macs / rates.depthwise_macs_per_us
        + features.traffic_bytes / rates.bytes_per_us
        + rates.group_us * features.groups
        + rates.piece_us_per_thousand * features.thousand_pieces
        + rates.patch_us_per_kib * features.patch_kib
        + rates.elementwise_us_per_kib * features.elementwise_kib
    )
    if busy_factor == 1.0:
        return alone_us
    busy_us = busy_factor * (arithmetic + rates.patch_us_per_kib * features.patch_kib)
    longer_us: float = (alone_us + busy_us + abs(alone_us - busy_us)) / 2
    return longer_us


NORMAL_90 = 1.645
"""Standard deviations within which 90% of normal errors lie."""
MOST = 0.99
"""Share of an estimate that its error is said to be at most; the interval says the rest."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A `Predictor` that is nothing but its rates."""

    processor: str
    dtype: str
    rates: Rates
    relative_error: float
    """Root-mean-square error, a share of the estimate, on networks not used to fit the rates."""
    sampled: Mapping[str, Ranges] = field(default_factory=dict, hash=False)
    """What was measured, by kind; empty where nobody wrote it down."""
    busy_factor: float = 1.0
    """How much longer its threads multiply and gather than alone on the chip."""

    def beside(self, busy_factor: float, /) -> Roofline:
        """Return the predictor while others keep its threads busy."""
        return replace(self, busy_factor=busy_factor)

    def estimate(self, kernel: Kernel, /) -> Estimate:
        """Estimate one kernel; its error widens outside of what was measured.

        Raises UnsupportedOp for a kind without a rate.
        """
        try:
            features = roofline_features(kernel, ELEMENT_BYTES[self.dtype])
        except UnsupportedOp as error:
            raise UnsupportedOp(f"{error}, processor {self.processor}") from None
        latency = latency_us(self.rates, features, self.busy_factor)
        share = self.error_share(kernel)
        factor = math.exp(NORMAL_90 * math.log1p(share))
        return Estimate(latency, min(share, MOST) * latency, (latency / factor, latency * factor))

    def error_share(self, kernel: Kernel) -> float:
        """Return the usual error of a kernel as a share of its estimate."""
        if not self.measured_kind(kernel):
            return UNSEEN * self.relative_error
        return self.relative_error * (WIDER if self.outside(kernel) else 1.0)

    def outside(self, kernel: Kernel, /) -> str:
        """Return how a kernel lies outside of what was measured, empty where it does not."""
        if not self.sampled:
            return ""
        if not self.measured_kind(kernel):
            return f"kind {kernel.kind} was never measured"
        features = ranged_features(kernel, ELEMENT_BYTES[self.dtype])
        return reason_outside(self.sampled[kernel.kind], features)

    def measured_kind(self, kernel: Kernel, /) -> bool:
        """Return False for a kind that is priced by arithmetic and traffic alone."""
        return not self.sampled or kernel.kind in self.sampled

    def estimate_grid(self, kernel: Kernel, /) -> Numbers:
        """Estimate a kernel whose counts are arrays that broadcast against each other, us."""
        import numpy

        features = roofline_features(kernel, ELEMENT_BYTES[self.dtype])
        latencies_us = latency_us(self.rates, features, self.busy_factor)
        return numpy.asarray(latencies_us, dtype=numpy.float64)
