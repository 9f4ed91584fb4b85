"""Which multipliers to try next: Kelley's cutting planes for the Lagrangian dual (1960)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.search_schedule import SearchSchedule

GRID = 121
"""Multipliers of each kind that are compared."""
UNLIMITED_MACS = 1e30


@dataclass
class CuttingPlanes:
    """Plans as cutting planes: each says how high the bound at any multipliers can be at most."""

    limits: NetworkLimits
    largest: Multipliers
    schedule: SearchSchedule
    planes: list[tuple[float, float, float]] = field(default_factory=list)
    """Latency in us, MACs and parameters of plans, within the limits or not."""
    bounds_us: dict[Multipliers, float] = field(default_factory=dict)
    """Bound at the multipliers tried so far."""

    @property
    def best(self) -> Multipliers:
        """Return the tried multipliers of the highest bound."""
        return max(self.bounds_us, key=lambda multipliers: self.bounds_us[multipliers])

    def first(self) -> Multipliers:
        """Return the multipliers to begin with: a price for what is limited, MACs before others."""
        if self.limits.min_macs > 0 or self.limits.max_macs < np.inf:
            return Multipliers(self.largest.per_mac / 3)
        if self.limits.min_params > 0:
            return Multipliers(0.0, self.largest.per_param / 3)
        return Multipliers()

    def rounds(self) -> int:
        """Return how many multipliers to try at most."""
        if self.first() == Multipliers():
            return 1
        return 8 if self.limits.min_params > 0 else 5

    def propose(self) -> tuple[Multipliers, float]:
        """Return the multipliers whose bound may be highest, and how high that is at most, us."""
        per_mac, per_param = self.grid()
        limits, largest = self.limits, self.largest
        most_macs = min(limits.max_macs, UNLIMITED_MACS)
        target = np.where(per_mac >= 0, limits.min_macs, most_macs)[:, None]
        ceiling = np.full((len(per_mac), len(per_param)), np.inf)
        for latency_us, macs, params in self.planes:
            macs_us = per_mac[:, None] * (target - macs)
            params_us = per_param * (limits.min_params - params)
            ceiling = np.minimum(ceiling, latency_us + macs_us + params_us)
        step = self.schedule.smallest_step
        for tried, bound_us in self.bounds_us.items():
            is_near = (np.abs(per_mac - tried.per_mac) <= step * largest.per_mac)[:, None]
            distance = np.abs(per_param - tried.per_param)
            is_near = is_near & (distance <= step * largest.per_param + 1e-30)
            ceiling = np.where(is_near, np.minimum(ceiling, bound_us), ceiling)
        row, column = np.unravel_index(int(ceiling.argmax()), ceiling.shape)
        proposal = Multipliers(float(per_mac[row]), float(per_param[column]))
        return proposal, float(ceiling.max())

    def grid(self) -> tuple[Array, Array]:
        """Return multipliers of MACs and of parameters to compare, not far from the best so far.

        Far away, few plans have been seen.
        """
        limits, largest = self.limits, self.largest
        shares = np.linspace(0.0, 1.0, GRID)
        lowest = -largest.per_mac if limits.max_macs < np.inf else 0.0
        per_mac = np.zeros(1)
        per_param = np.zeros(1)
        if limits.min_macs > 0 or lowest:
            per_mac = lowest + (largest.per_mac - lowest) * shares
        if limits.min_params > 0:
            per_param = largest.per_param * shares
        if self.bounds_us:
            best, step = self.best, self.schedule.largest_step
            macs_distance = np.abs(per_mac - best.per_mac)
            params_distance = np.abs(per_param - best.per_param)
            per_mac = per_mac[macs_distance <= step * largest.per_mac + 1e-30]
            per_param = per_param[params_distance <= step * largest.per_param + 1e-30]
        return per_mac, per_param
