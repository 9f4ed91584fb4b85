"""Lagrangian lower bound through one segment option.

Limits on MACs and parameters of the network get a multiplier each; within a segment, the MACs it
must have get one too, and the cost-to-go of the merged width is replaced by a line below it. Then
the branches fall apart: for every deadline, each takes its most rewarding option that keeps it.
Every number is a proven lower bound, whatever the multipliers; good ones make it tight. A duality
gap stays, because wide operators run more efficiently, so latency over MACs is not convex;
label_setting/ closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers, SegmentMultipliers
from nnstretch.stretch.search.segment_options import BranchTable, SegmentOption


@dataclass(frozen=True)
class EntryBins:
    """First units of one branch: least latency and most work, `[width bin, output width]`."""

    us: Array
    macs: Array
    params: Array
    plain: EntryBins | None = None
    """The same where no adapter is needed; infinite where one always is."""

    def take(self, rows: Array) -> EntryBins:
        """Return the chosen bins."""
        plain = None if self.plain is None else self.plain.take(rows)
        if plain is not None and not np.isfinite(plain.us).any():
            plain = None
        return EntryBins(self.us[rows], self.macs[rows], self.params[rows], plain)


@dataclass(frozen=True)
class BranchRewards:
    """Options of one branch that keep pace."""

    us: Array
    """`[width bin, option]`; infinite where an option straggles."""
    rewards: Array
    """Work and width at their multipliers, us: `[relaxation, width bin, option]`."""
    macs: Array
    """`[width bin, option]`."""


@dataclass(frozen=True)
class DeadlineTable:
    """Options of all branches of a segment option in the order of their latency."""

    deadline_us: Array
    """`[width bin, option]`."""
    rewards: list[Array]
    """For every branch, its best reward that keeps a deadline: `[relaxation, bin, option]`."""
    meets_demands: Array
    """Whether branches that keep a deadline can have the MACs of a segment: `[bin, option]`."""

    @property
    def costs(self) -> Array:
        """Return deadlines less rewards, infinite where demands are not met, us."""
        total: Array | float = 0.0
        for reward in self.rewards:
            total = total + reward
        return np.asarray(np.where(self.meets_demands, self.deadline_us - total, np.inf))


def exact_entries(option: SegmentOption, width: int) -> list[EntryBins] | None:
    """Return the first units of each branch on one width, as a single bin."""
    entries = option.entry_costs(width)
    if entries is None:
        return None
    return [EntryBins(e.us[None], e.macs[None], e.params[None]) for e in entries]


def bin_entries(option: SegmentOption, starts: Array) -> list[EntryBins] | None:
    """Return the first units of each branch over width bins; None where it cannot start."""
    space = option.space
    if option.merge == "project":
        return exact_entries(option, space.original_width(option.i))
    widths = space.merged_widths(option.i)[starts]
    bins = []
    for price_key, link in zip(option.price_keys, option.copies_in, strict=True):
        copy_us = link.fixed_us + link.us_per_kib * option.bytes_in * widths / 1024
        kinds: list[EntryBins] = []
        for adapted in (False, True):
            head = option.tables.binned_head_costs(option.i, price_key, starts, adapted)
            us = option.slowdown * head.latency_us[price_key] + copy_us[:, None]
            plain = kinds[0] if adapted else None
            kinds.append(EntryBins(us, head.macs, head.params, plain))
        bins.append(kinds[1])
    return bins


def deadline_costs(
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: SegmentMultipliers,
    multipliers: Multipliers,
    tables: Sequence[BranchTable] | None = None,
) -> DeadlineTable:
    """Return the table of a segment option; of `tables` that are samples, it is no bound."""
    pairs = zip(tables or option.branch_tables, entries, strict=True)
    branches = [branch_rewards(option, t, e, relaxations, multipliers) for t, e in pairs]
    if option.branched:
        return merge_deadlines(option, branches)
    (branch,) = branches
    return DeadlineTable(branch.us, [branch.rewards], np.ones(branch.us.shape, dtype=bool))


def branch_rewards(
    option: SegmentOption,
    table: BranchTable,
    entry: EntryBins,
    relaxations: SegmentMultipliers,
    multipliers: Multipliers,
) -> BranchRewards:
    """Return what the options of one branch earn, those without an adapter behind the others."""
    plain = entry.plain or entry
    kinds = (entry,) if entry.plain is None else (entry, plain)
    latency_us = np.concatenate([kind.us[:, table.first] + table.us for kind in kinds], axis=1)
    keeps_pace = np.full(latency_us.shape, True)
    if option.branched:
        keeps_pace = option.bounds.keeps_pace(latency_us)
    columns = np.flatnonzero(keeps_pace.any(axis=0))
    choice = columns % len(table.us)
    is_plain = columns >= len(table.us)
    first = table.first[choice]
    per_mac = (multipliers.per_mac + relaxations.per_mac)[:, None, None]
    per_channel = (relaxations.per_channel + option.merge_us_per_channel)[:, None, None]
    macs = np.where(is_plain, plain.macs[:, first], entry.macs[:, first]) + table.macs[choice]
    rewards = per_mac * macs - per_channel * table.channels_out[choice]
    if multipliers.per_param:
        params = np.where(is_plain, plain.params[:, first], entry.params[:, first])
        rewards = rewards + multipliers.per_param * (params + table.params[choice])
    return BranchRewards(np.where(keeps_pace, latency_us, np.inf)[:, columns], rewards, macs)


def merge_deadlines(option: SegmentOption, branches: Sequence[BranchRewards]) -> DeadlineTable:
    """Return the best reward of every branch at the latency of each option of any branch."""
    us = np.concatenate([branch.us for branch in branches], axis=1)
    most = int(np.isfinite(us).sum(axis=1).max(initial=0)) + 1
    order = np.argsort(us, axis=1)[:, :most]
    bins = np.arange(len(us))[:, None]
    sizes = [branch.us.shape[1] for branch in branches]
    owner = np.repeat(np.arange(len(branches)), sizes)[order]
    rewards = np.concatenate([branch.rewards for branch in branches], axis=2)[:, bins, order]
    macs = np.concatenate([branch.macs for branch in branches], axis=1)[bins, order]
    best_rewards = []
    most_macs = []
    for b in range(len(branches)):
        is_own = owner == b
        best_rewards.append(np.maximum.accumulate(np.where(is_own, rewards, -np.inf), axis=2))
        most_macs.append(np.maximum.accumulate(np.where(is_own, macs, -np.inf), axis=1))
    meets = option.bounds.has_capacity(np.maximum.reduce(most_macs), sum(most_macs))
    return DeadlineTable(us[bins, order], best_rewards, np.asarray(meets))


def segment_bound(
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: SegmentMultipliers,
    values: CostToGo,
) -> Array:
    """Return bounds through a segment option, with what follows it: `[width bin]`, us."""
    costs = deadline_costs(option, entries, relaxations, values.multipliers).costs
    return least_over_deadlines(costs, offsets_us(option, relaxations, values))


def least_over_deadlines(costs: Array, offsets: Array) -> Array:
    """Return the least over deadlines and cases of the tightest relaxation: `[width bin]`, us.

    Every relaxation bounds what keeps one deadline, so each deadline takes its tightest.
    """
    bounds = []
    for offset in offsets:
        bounds.append((costs + offset[:, None, None]).max(axis=0).min(axis=1, initial=np.inf))
    return np.asarray(np.minimum.reduce(bounds))


def offsets_us(option: SegmentOption, relaxations: SegmentMultipliers, values: CostToGo) -> Array:
    """Return what adds to deadlines less rewards: `[case, relaxation]`, us.

    What a segment demands and what follows it. The cases are the merged widths: any but the
    original's, and this one; one case where they cannot differ.
    """
    demand = option.bounds.macs if option.branched else 0.0
    constant = option.sync_us + option.merge_us + relaxations.per_mac * demand
    constant = constant - values.multipliers.per_meeting * option.meetings
    if option.is_last:
        return np.asarray(constant[None])
    behind = values.minorants[option.j]
    full = behind.full if option.branched else 0
    at_full = constant + behind.at_full - relaxations.per_channel * full
    if not changes_width(option):
        return np.asarray(at_full[None])
    return np.stack([constant + behind.bases_at(relaxations.per_channel), at_full])


def changes_width(option: SegmentOption) -> bool:
    """Return whether branches may merge into another width than the original's."""
    return option.branched and option.merge == "concat"
