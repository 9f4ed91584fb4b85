"""Deadlines of one segment option that matter: between them few options of its branches lie.

Before the first, branches lack the MACs of the segment; after the last, no plan is of interest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, BranchTable
from nnstretch.stretch.search.bounds.entry_bins import EntryBins
from nnstretch.stretch.search.bounds.multipliers import Multipliers, SegmentMultipliers
from nnstretch.stretch.search.options.segment_option import SegmentOption


@dataclass(frozen=True)
class BranchWork:
    """Options of one branch that keep pace, or of all branches together: `[width bin, option]`."""

    us: Array
    """Infinite where an option straggles."""
    macs: Array
    params: Array | None
    """None where parameters have no multiplier."""
    channels_out: Array
    """`[option]` where all bins have the same order."""

    def rewards(
        self, option: SegmentOption, relaxations: SegmentMultipliers, multipliers: Multipliers
    ) -> Array:
        """Return work and width at their multipliers, us: `[relaxation, width bin, option]`."""
        per_mac = (multipliers.per_mac + relaxations.per_mac)[:, None, None]
        per_channel = (relaxations.per_channel + option.merge_us_per_channel)[:, None, None]
        rewards = per_mac * self.macs
        rewards -= per_channel * self.channels_out
        if self.params is not None:
            rewards += multipliers.per_param * self.params
        return np.asarray(rewards)


@dataclass(frozen=True)
class EarlyOptions:
    """The best of one branch among options that keep every deadline of a window."""

    rewards: Array
    """`[relaxation, width bin]`."""
    macs: Array
    """`[width bin]`."""

    def join(self, other: EarlyOptions) -> EarlyOptions:
        """Return the best of both."""
        rewards, macs = np.maximum(self.rewards, other.rewards), np.maximum(self.macs, other.macs)
        return EarlyOptions(rewards, macs)


@dataclass(frozen=True)
class DeadlineWindow:
    """Deadlines of one segment option that matter, by width bin, us."""

    first_us: Array
    """Before it no branches have the MACs of the segment."""
    last_us: Array
    """After it no plan is of interest."""

    def take(self, bins: Array) -> DeadlineWindow:
        """Return the window of the chosen bins."""
        return DeadlineWindow(self.first_us[bins], self.last_us[bins])

    def early(self, work: BranchWork, rewards: Array) -> EarlyOptions:
        """Return the best options of one branch that end before the window."""
        is_late = work.us >= self.first_us[:, None]
        best = np.where(is_late, -np.inf, rewards).max(axis=2, initial=-np.inf)
        macs = np.where(is_late, -np.inf, work.macs).max(axis=1, initial=-np.inf)
        return EarlyOptions(best, macs)

    def within(self, work: BranchWork) -> BranchWork:
        """Return the options of one branch in the window; infinite latency for others."""
        is_within = (work.us >= self.first_us[:, None]) & (work.us <= self.last_us[:, None])
        columns = np.flatnonzero(is_within.any(axis=0))
        us = np.where(is_within[:, columns], work.us[:, columns], np.inf)
        params = None if work.params is None else work.params[:, columns]
        return BranchWork(us, work.macs[:, columns], params, work.channels_out[columns])

    def split(
        self,
        option: SegmentOption,
        table: BranchTable,
        entry: EntryBins,
        relaxations: SegmentMultipliers,
        multipliers: Multipliers,
    ) -> tuple[list[Array], EarlyOptions]:
        """Return the best options of one branch that are early in all bins, and which to look at.

        The latter, of each kind, are neither early nor late in all bins.
        """
        columns = list[Array]()
        shape = len(relaxations), len(self.first_us)
        early = EarlyOptions(np.full(shape, -np.inf), np.full(shape[1], -np.inf))
        kinds = [entry] if entry.plain is None else [entry, entry.plain]
        for kind, behind_us in zip(kinds, (table.adapted_us, table.plain_us), strict=False):
            exists = np.isfinite(kind.us)
            early_us, late_us = np.full((2, *kind.us.shape), np.inf)
            np.subtract(self.first_us[:, None], kind.us, out=early_us, where=exists)
            np.subtract(kind.us, self.last_us[:, None], out=late_us, where=exists)
            is_early = behind_us < early_us.min(axis=0)[table.first]
            is_late = behind_us > -late_us.min(axis=0)[table.first]
            columns.append(np.flatnonzero(~is_early & ~is_late))
            if is_early.any():
                best = best_of_kind(option, table, kind, is_early, relaxations, multipliers)
                early = early.join(best)
        return columns, early


def best_of_kind(
    option: SegmentOption,
    table: BranchTable,
    kind: EntryBins,
    is_chosen: Array,
    relaxations: SegmentMultipliers,
    multipliers: Multipliers,
) -> EarlyOptions:
    """Return the best of chosen options of one branch and one kind, wherever they exist."""
    width_count = len(option.tail.widths)
    shape, first = (-1, width_count), table.first[:width_count]
    per_mac = (multipliers.per_mac + relaxations.per_mac)[:, None, None]
    per_channel = (relaxations.per_channel + option.merge_us_per_channel)[:, None]
    behind = per_mac * table.macs.reshape(shape)
    ahead = per_mac * kind.macs[:, first]
    if multipliers.per_param:
        behind += multipliers.per_param * table.params.reshape(shape)
        ahead += multipliers.per_param * kind.params[:, first]
    rows = is_chosen.reshape(shape)
    best = np.where(rows, behind, -np.inf).max(axis=1)
    best -= per_channel * table.channels_out[:width_count]
    most = np.where(rows, table.macs.reshape(shape), -np.inf).max(axis=0)
    exists = np.isfinite(kind.us[:, first])
    rewards = np.where(exists, best[:, None] + ahead, -np.inf).max(axis=2)
    macs = np.where(exists, most + kind.macs[:, first], -np.inf).max(axis=1)
    return EarlyOptions(rewards, macs)
