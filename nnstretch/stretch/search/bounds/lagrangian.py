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

from nnstretch.stretch.cost.cost_arrays import Array, BranchTable
from nnstretch.stretch.search.bounds.compiled_bounds import compiled_deadline_costs
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, per_channel_us
from nnstretch.stretch.search.bounds.multipliers import (
    MAC_SHARES,
    CostToGo,
    Multipliers,
    SegmentMultipliers,
)
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.options.segment_option import SegmentOption

CHUNK = 400_000
"""Numbers of an array `[relaxation, bin, option]` at a time, so that it stays in the cache."""


@dataclass(frozen=True)
class DeadlineTable:
    """Options of all branches of a segment option in the order of their latency.

    It begins where branches that keep a deadline can first have the MACs of the segment.
    """

    deadline_us: Array
    """`[width bin, option]`."""
    rewards: list[Array]
    """For every branch, its best reward that keeps a deadline: `[relaxation, bin, option]`."""
    meets_demands: Array
    """Whether branches that keep a deadline can have the MACs of a segment: `[bin, option]`."""

    @property
    def costs(self) -> Array:
        """Return deadlines less rewards, infinite where demands are not met, us."""
        total = self.rewards[0]
        for reward in self.rewards[1:]:
            total = total + reward
        return np.asarray(np.where(self.meets_demands, self.deadline_us - total, np.inf))

    def take(self, relaxation: int) -> DeadlineTable:
        """Return the table of one relaxation."""
        rewards = [reward[[relaxation]] for reward in self.rewards]
        return DeadlineTable(self.deadline_us, rewards, self.meets_demands)


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


def candidate_relaxations(option: SegmentOption, values: CostToGo) -> SegmentMultipliers:
    """Return ways to relax an option: every slope of the minorants with MAC multipliers."""
    if not option.branched:
        return SegmentMultipliers(np.zeros(1), np.zeros(1))
    slopes = values.minorants[option.j].slopes if option.merge == "concat" else np.zeros(1)
    full, demand = option.space.original_width(option.j), max(1.0, option.bounds.macs)
    per_mac = np.repeat(np.array(MAC_SHARES)[:, None] / option.macs_per_us, len(slopes), axis=1)
    if values.width_shares:
        width_us = (slopes + option.merge_us_per_channel) * full
        weighed = np.array(values.width_shares)[:, None] * width_us / demand
        per_mac = np.concatenate([per_mac, weighed])
    prices = np.maximum(0.0, per_mac - values.multipliers.per_mac).T.ravel()
    return SegmentMultipliers(prices, np.repeat(slopes, len(per_mac)))


def deadline_costs(
    option: SegmentOption, entries: Sequence[EntryBins], values: CostToGo, rows: Sequence[int]
) -> DeadlineTable:
    """Return the table of a segment option at chosen rows of `candidate_relaxations`."""
    kernels = load_kernels()
    if kernels is None or not option.branched:
        relaxations = candidate_relaxations(option, values).take(rows)
        tables, multipliers = option.branch_tables, values.multipliers
        return deadline_costs_by_arrays(option, tables, entries, relaxations, multipliers)
    deadlines, rewards = compiled_deadline_costs(kernels, option, entries, values, rows)
    return DeadlineTable(deadlines, list(rewards), np.isfinite(deadlines))


def deadline_costs_by_arrays(
    option: SegmentOption,
    tables: Sequence[BranchTable],
    entries: Sequence[EntryBins],
    relaxations: SegmentMultipliers,
    multipliers: Multipliers,
) -> DeadlineTable:
    """Return the table over options of the branches, which may be a sample of them."""
    with_params = bool(multipliers.per_param)
    branches = [
        branch_work(option, table, entry, with_params)
        for table, entry in zip(tables, entries, strict=True)
    ]
    if option.branched:
        return merge_deadlines(option, branches, relaxations, multipliers)
    (work,) = branches
    meets_demands = np.ones(work.us.shape, dtype=bool)
    return DeadlineTable(work.us, [work.rewards(option, relaxations, multipliers)], meets_demands)


def branch_work(
    option: SegmentOption, table: BranchTable, entry: EntryBins, with_params: bool
) -> BranchWork:
    """Return the options of one branch, those without an adapter behind the others."""
    kinds = [entry] if entry.plain is None else [entry, entry.plain]
    behind_us = table.adapted_us, table.plain_us
    columns = [np.arange(len(table.us))]
    if entry.plain is not None:
        exists = np.isfinite(entry.plain.us).any(axis=0)
        columns.append(np.flatnonzero(exists[table.first]))
    choice = np.concatenate(columns)
    width = entry.us.shape[1]
    first = np.concatenate([table.first[c] + n * width for n, c in enumerate(columns)])
    us = np.concatenate([kind.us for kind in kinds], axis=1).take(first, axis=1)
    us += np.concatenate([times[c] for times, c in zip(behind_us, columns, strict=False)])
    if option.branched:
        keeps_pace = option.bounds.keeps_pace(us - entry.tilt.us * entry.spans[:, None])
        if not keeps_pace.all():
            kept = np.flatnonzero(keeps_pace.any(axis=0))
            us = np.where(keeps_pace, us, np.inf).take(kept, axis=1)
            choice, first = choice[kept], first[kept]
    macs = np.concatenate([kind.macs for kind in kinds], axis=1).take(first, axis=1)
    params = None
    if with_params:
        params = np.concatenate([kind.params for kind in kinds], axis=1).take(first, axis=1)
        params = params + table.params[choice]
    return BranchWork(us, macs + table.macs[choice], params, table.channels_out[choice])


def merge_deadlines(
    option: SegmentOption,
    branches: Sequence[BranchWork],
    relaxations: SegmentMultipliers,
    multipliers: Multipliers,
) -> DeadlineTable:
    """Return the best reward of every branch at the latency of each option of any branch."""
    work, owner = sort_by_latency(branches)
    masks = [owner == b for b in range(len(branches))]
    macs = [np.where(mask, work.macs, -np.inf) for mask in masks]
    most_macs = [np.maximum.accumulate(row, axis=1) for row in macs]
    meets = np.asarray(option.bounds.has_capacity(np.maximum.reduce(most_macs), sum(most_macs)))
    begin = int(meets.any(axis=0).argmax()) if meets.any() else meets.shape[1]
    rewards = work.rewards(option, relaxations, multipliers)
    best_rewards = [best_so_far(np.where(mask, rewards, -np.inf), begin) for mask in masks]
    return DeadlineTable(work.us[:, begin:], best_rewards, meets[:, begin:])


def sort_by_latency(branches: Sequence[BranchWork]) -> tuple[BranchWork, Array]:
    """Return the options of all branches, the fastest first, and the branch of each.

    Of those that straggle, one is kept in every bin at least.
    """
    us = np.concatenate([branch.us for branch in branches], axis=1)
    most = int(np.isfinite(us).sum(axis=1).max(initial=0)) + 1
    order = np.argsort(us, axis=1, kind="stable")[:, :most]
    places = order + us.shape[1] * np.arange(len(us))[:, None]
    macs = np.concatenate([branch.macs for branch in branches], axis=1).take(places)
    channels_out = np.concatenate([branch.channels_out for branch in branches])[order]
    columns = [branch.params for branch in branches if branch.params is not None]
    params = np.concatenate(columns, axis=1).take(places) if columns else None
    owner = np.repeat(np.arange(len(branches)), [branch.us.shape[1] for branch in branches])
    return BranchWork(us.take(places), macs, params, channels_out), owner[order]


def best_so_far(rewards: Array, begin: int) -> Array:
    """Return the best reward up to every deadline from one on: `[relaxation, bin, option]`."""
    tail = rewards[:, :, begin:]
    if begin and tail.shape[2]:
        np.maximum(tail[:, :, 0], rewards[:, :, :begin].max(axis=2), out=tail[:, :, 0])
    return np.asarray(np.maximum.accumulate(tail, axis=2))


def segment_bound(
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: SegmentMultipliers,
    values: CostToGo,
    bins: Array,
) -> tuple[Array, Array]:
    """Return bounds through a segment option over chosen width bins, with what follows it, us.

    Of all widths of a bin, and of its widest by case and relaxation: `[bin]`,
    `[case, relaxation, bin]`. A narrower one adds `per_channel_us` to the latter.
    """
    multipliers = values.multipliers
    offsets = offsets_us(option, relaxations, values)
    losses = tilt_losses_us(entries, relaxations, multipliers)
    options = sum(len(table.us) for table in option.branch_tables)
    step = max(4, CHUNK // (len(relaxations) * options))
    parts = []
    for low in range(0, len(bins), step):
        few = bins[low : low + step]
        few_entries = [entry.take(few) for entry in entries]
        tables = option.branch_tables
        table = deadline_costs_by_arrays(option, tables, few_entries, relaxations, multipliers)
        costs = table.costs
        widest = costs.min(axis=2, initial=np.inf) + offsets[:, :, None]
        parts.append((least_over_deadlines(costs + losses[:, few, None], offsets), widest))
    together, widest_parts = zip(*parts, strict=True)
    return np.concatenate(together), np.concatenate(widest_parts, axis=2)


def tilt_losses_us(
    entries: Sequence[EntryBins], relaxations: SegmentMultipliers, multipliers: Multipliers
) -> Array:
    """Return what a bound loses at most from the widest to any of a bin: `[relaxation, bin]`."""
    gain_us = per_channel_us(entries, relaxations, multipliers)
    return np.asarray(np.minimum(0.0, gain_us)[:, None] * entries[0].spans)


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
