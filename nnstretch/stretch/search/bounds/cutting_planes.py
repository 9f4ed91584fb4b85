"""Which multipliers to try next: Kelley's cutting planes for the Lagrangian dual (1960)."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.search_schedule import SearchSchedule
from nnstretch.stretch.search.space.cost_tables import CostTables

GRID = {0: 1, 1: 121, 2: 121, 3: 41}
"""Multipliers of each kind that are compared, by how many kinds there are."""
SPREAD = 0.05
"""How far multipliers around others lie, as a share of the largest."""
UNLIMITED_MACS = 1e30


@dataclass
class CuttingPlanes:
    """Plans as cutting planes: each says how high the bound at any multipliers can be at most."""

    limits: NetworkLimits
    largest: Multipliers
    schedule: SearchSchedule
    planes: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Latency in us, MACs, parameters and meeting points of plans, within the limits or not."""
    bounds_us: dict[Multipliers, float] = field(default_factory=dict)
    """Bound at the multipliers tried so far."""

    @property
    def best(self) -> Multipliers:
        """Return the tried multipliers of the highest bound."""
        return max(self.bounds_us, key=lambda multipliers: self.bounds_us[multipliers])

    @property
    def fastest_us(self) -> float:
        """Return the least latency of any plan so far; 0 before the first."""
        return min((plane[0] for plane in self.planes), default=0.0)

    @property
    def limited(self) -> tuple[bool, bool, bool]:
        """Return which of MACs, parameters and meeting points are limited."""
        limits = self.limits
        macs = limits.min_macs > 0 or limits.max_macs < np.inf
        return macs, limits.min_params > 0, limits.min_meetings > 0

    def first(self, usual_macs: float) -> Multipliers:
        """Return the multipliers to begin with: a price for what is limited, MACs before others.

        None for at least the MACs that rules of segments demand anyway: few plans have fewer.
        """
        macs, params, meetings = self.limited
        is_usual = 0 < self.limits.min_macs <= usual_macs and self.limits.max_macs == np.inf
        per_mac = self.largest.per_mac / 3 if macs and not is_usual else 0.0
        per_param = self.largest.per_param / 3 if params and not macs else 0.0
        return Multipliers(per_mac, per_param, self.largest.per_meeting / 10 if meetings else 0.0)

    def rounds(self) -> int:
        """Return how many multipliers to try at most."""
        if not any(self.limited):
            return 1
        return 8 if any(self.limited[1:]) else 5

    def around(self, centre: Multipliers) -> list[Multipliers]:
        """Return multipliers and, for each kind that is limited, one above and one below."""
        values, largest = list(astuple(centre)), astuple(self.largest)
        nearby = [centre]
        for kind, is_limited in enumerate(self.limited):
            for step in (-SPREAD, SPREAD) if is_limited else ():
                moved = values.copy()
                moved[kind] += step * largest[kind]
                if moved[kind] >= 0 or values[kind] < 0:
                    nearby.append(Multipliers(*moved))
        return nearby

    def propose(self) -> tuple[Multipliers, float]:
        """Return the multipliers whose bound may be highest, and how high that is at most, us."""
        axes = self.grid()
        per_mac, per_param, per_meeting = np.ix_(*axes)
        limits = self.limits
        most_macs = min(limits.max_macs, UNLIMITED_MACS)
        target = np.where(per_mac >= 0, limits.min_macs, most_macs)
        ceiling = np.full(tuple(map(len, axes)), np.inf)
        for latency_us, macs, params, meetings in self.planes:
            macs_us = per_mac * (target - macs)
            params_us = per_param * (limits.min_params - params)
            meetings_us = per_meeting * (limits.min_meetings - meetings)
            ceiling = np.minimum(ceiling, latency_us + macs_us + params_us + meetings_us)
        for tried, bound_us in self.bounds_us.items():
            block = np.ix_(*self.near(axes, tried, self.schedule.smallest_step))
            ceiling[block] = np.minimum(ceiling[block], bound_us)
        place = np.unravel_index(int(ceiling.argmax()), ceiling.shape)
        proposal = [float(axis[k]) for axis, k in zip(axes, place, strict=True)]
        return Multipliers(*proposal), float(ceiling.max())

    def grid(self) -> list[Array]:
        """Return the multipliers of each kind to compare, not far from the best so far.

        Far away, few plans have been seen.
        """
        lowest = [-self.largest.per_mac if self.limits.max_macs < np.inf else 0.0, 0.0, 0.0]
        axes = []
        pairs = zip(self.limited, lowest, astuple(self.largest), strict=True)
        for is_limited, low, high in pairs:
            shares = np.linspace(0.0, 1.0, GRID[sum(self.limited)])
            axes.append(low + (high - low) * shares if is_limited else np.zeros(1))
        if not self.bounds_us:
            return axes
        # `around` may have tried some beyond the ends.
        values = zip(astuple(self.best), axes, strict=True)
        best = Multipliers(*(float(np.clip(value, axis[0], axis[-1])) for value, axis in values))
        near = self.near(axes, best, self.schedule.largest_step)
        return [axis[rows] for axis, rows in zip(axes, near, strict=True)]

    def near(self, axes: list[Array], around: Multipliers, step: float) -> list[Array]:
        """Return which multipliers of each kind are at most a share of the largest apart."""
        ends = zip(axes, astuple(around), astuple(self.largest), strict=True)
        return [np.abs(axis - centre) <= step * high + 1e-30 for axis, centre, high in ends]


def largest_multipliers(tables: CostTables) -> Multipliers:
    """Return three times what a MAC, and a parameter, costs when all processors work.

    A meeting point may be worth three times an average segment.
    """
    space = tables.space
    us, macs = tables.original(0, space.last)
    # Where a processor takes no time, neither does a MAC when all work.
    takes_time = macs and min(us.values()) > 0
    per_mac = 1 / sum(macs / times_us for times_us in us.values()) if takes_time else 0.0
    params = max(1, space.analysis.graph.params)
    per_meeting = min(us.values()) / space.last
    return Multipliers(3 * per_mac, 3 * per_mac * macs / params, 3 * per_meeting)
