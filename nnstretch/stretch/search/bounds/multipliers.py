"""Lagrange multipliers, and what is known at them: affine minorants and cost-to-go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.compiled.library import (
    MinorantsStruct,
    Packed,
    PricesStruct,
    doubles,
)
from nnstretch.stretch.search.constraints import NetworkLimits

MAC_SHARES = (0.0, 0.8)
"""Multipliers of a segment's MACs, as shares of what a MAC costs when all processors work."""
WIDTH_SHARES = (0.5, 1.0, 2.0)
"""Further ones, as shares of what a MAC costs in merged channels: branches that have the MACs of a
segment are wider than those that earn most."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Microseconds that a MAC, a parameter and a meeting point of the network are worth.

    A negative multiplier of MACs serves an upper limit.
    """

    per_mac: float = 0.0
    per_param: float = 0.0
    per_meeting: float = 0.0

    def constant(self, limits: NetworkLimits) -> float:
        """Return what the limits add to the relaxed latency, us."""
        macs_us = 0.0
        if self.per_mac:
            macs_us = self.per_mac * (limits.min_macs if self.per_mac >= 0 else limits.max_macs)
        meetings_us = self.per_meeting * limits.min_meetings
        return macs_us + self.per_param * limits.min_params + meetings_us

    def reduced(
        self, latency_us: Array, macs: Array, params: Array, meetings: Array | int
    ) -> Array:
        """Return reduced costs, us."""
        work_us = self.per_mac * macs + self.per_param * params
        return np.asarray(latency_us - work_us - self.per_meeting * meetings)


def reduced_by_each(
    multipliers: Sequence[Multipliers],
    latency_us: Array,
    macs: Array,
    params: Array,
    meetings: Array | int,
) -> Array:
    """Return reduced costs at several multipliers: `[multipliers, row]`, us."""
    prices = np.array([(m.per_mac, m.per_param, m.per_meeting) for m in multipliers])
    per_mac, per_param, per_meeting = prices.T[:, :, None]
    work_us = per_mac * macs + per_param * params
    return np.asarray(latency_us - work_us - per_meeting * meetings)


@dataclass(frozen=True)
class SegmentMultipliers:
    """Multipliers of one segment option, a row for each way to relax it."""

    per_mac: Array
    """Microseconds for a MAC that the segment must have."""
    per_channel: Array
    """Microseconds for a channel of the merged tensor."""

    def __len__(self) -> int:
        return len(self.per_mac)

    def take(self, rows: Sequence[int] | Array) -> SegmentMultipliers:
        """Return the chosen rows."""
        return SegmentMultipliers(self.per_mac[rows], self.per_channel[rows])


@dataclass(frozen=True)
class AffineMinorants:
    """Lines nowhere above the cost-to-go of one cut as a function of the merged width."""

    slopes: Array
    """Rising."""
    bases: Array
    """base + slope x width is below the cost-to-go, except perhaps at the original width."""
    full: int
    """The original width."""
    at_full: float
    """Cost-to-go there, us."""

    @cached_property
    def packed(self) -> Packed:
        """Return the lines for compiled loops."""
        arrays = doubles(self.slopes), doubles(self.bases)
        lines = (array.ctypes.data for array in arrays)
        return Packed(MinorantsStruct(len(self.slopes), *lines, self.at_full), arrays)

    def bases_at(self, slopes: Array) -> Array:
        """Return the bases of the lines of these slopes."""
        return np.asarray(self.bases[np.searchsorted(self.slopes, slopes)])

    def highest(self, widths: Array) -> Array:
        """Return the highest line at each width, us."""
        return np.asarray((self.bases[:, None] + self.slopes[:, None] * widths).max(axis=0))

    def rise_us(self, later: AffineMinorants, widths: Array | None) -> float:
        """Return by how much later minorants are higher at least, us.

        At all of these widths and the original one; None for the latter alone.
        """
        rises = [np.array([math.inf])]
        if self.at_full < math.inf:
            rises.append(np.array([later.at_full - self.at_full]))
        if widths is not None and np.isfinite(self.bases).all():
            rises.append(later.highest(widths) - self.highest(widths))
        return float(np.concatenate(rises).min())


@dataclass
class CostToGo:
    """Proven lower bounds on the reduced latency from cuts and widths to the output, us."""

    multipliers: Multipliers
    bin_factor: float = 1.0
    """Factor that a bin of merged widths spans at most."""
    weighs_width: bool = True
    """Whether segments are relaxed in more ways, which weigh MACs against merged channels."""
    at: dict[int, Array] = field(default_factory=dict)
    """By cut: `[merged width]`."""
    minorants: dict[int, AffineMinorants] = field(default_factory=dict)
    """By cut."""
    options: dict[int, Array] = field(default_factory=dict)
    """Bound through a segment option, by its number: `[merged width it reads]`."""
    relaxations: dict[int, list[int]] = field(default_factory=dict)
    """Rows of the few ways to relax a segment option that bound it best, by its number."""
    choices: dict[tuple[int, tuple[str, ...], str], tuple[int, list[int]]] = field(
        default_factory=dict
    )
    """Which of the ways to relax were chosen last, by end, processors and merge of a segment, and
    its length."""

    @cached_property
    def packed_prices(self) -> Packed:
        """Return the multipliers, and shares that those of segments follow from."""
        shares = doubles(np.array(MAC_SHARES)), doubles(np.array(self.width_shares))
        network = self.multipliers
        prices = network.per_mac, network.per_param, network.per_meeting
        arrays = (share.ctypes.data for share in shares)
        return Packed(PricesStruct(*prices, *map(len, shares), *arrays), shares)

    @property
    def width_shares(self) -> tuple[float, ...]:
        """Return the shares that weigh MACs against merged channels."""
        return WIDTH_SHARES if self.weighs_width else ()

    def total(self, limits: NetworkLimits) -> float:
        """Return the Lagrangian bound on the latency of every plan within the limits, us."""
        return float(self.at[0][0]) + self.multipliers.constant(limits)
