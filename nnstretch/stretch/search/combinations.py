"""Combinations of a segment's branches that are good enough, without looking at all of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.dominance import undominated
from nnstretch.stretch.search.lagrangian import (
    CostToGo,
    DeadlineTable,
    EntryBins,
    SegmentMultipliers,
    deadline_costs,
    segment_bound,
    tightest_bound,
)
from nnstretch.stretch.search.search_space import Array
from nnstretch.stretch.search.segment_options import SegmentOption

MANY = 2_000
"""Combinations from which on it pays to look for those that others do better."""
PRODUCTS = 10_000_000
"""Pairs that are looked at for one segment option and input width.

Beyond, the options with the worst bounds are left out.
"""
SLICE = 500_000


def candidate_combinations(
    option: SegmentOption,
    width: int,
    values: CostToGo,
    ways: SegmentMultipliers,
    bounds: NetworkLimits,
    slack_us: float,
    most: int,
) -> tuple[tuple[Array, ...] | None, float]:
    """Return options of every branch, as parallel arrays, whose bound on the reduced latency to the
    output is below `slack_us`.

    Of more than `most`, those with the least bounds; the second value is the least bound of what
    was left out although it was below the room, infinite where nothing was. None where no
    combination is good enough.
    """
    entries = option.entry_costs(width)
    if entries is None:
        return None, np.inf
    read = [EntryBins(e.us[None], e.macs[None], e.params[None]) for e in entries]
    least = segment_bound(option, read, ways, values)
    alone = [
        float(tightest_bound(option, least[k : k + 1], ways.take([k]), values)[0])
        for k in range(len(ways))
    ]
    way = ways.take([int(np.argmax(alone))])
    raced = deadline_costs(option, read, way, values.prices)
    if not np.isfinite(raced.costs).any():
        return None, np.inf
    tail = max(alone) - float(raced.costs.min())
    options = branch_options(option, read, way, values)
    return feasible_combinations(option, raced, options, bounds, slack_us - tail, most, tail)


@dataclass(frozen=True)
class BranchOptions:
    """What one branch may be, as parallel arrays.

    Of several branches together, the slowest latency and sums of the rest.
    """

    us: Array
    reward: Array
    handed: Array
    macs: Array
    largest: Array
    """MACs of the largest branch."""
    params: Array

    def take(self, rows: Array) -> BranchOptions:
        """Return the chosen rows."""
        return BranchOptions(*(getattr(self, f.name)[rows] for f in fields(self)))

    def with_rewards(self, addition: BranchOptions) -> BranchOptions:
        """Return the options with the rewards of other branches added."""
        us, largest = np.maximum(self.us, addition.us), np.maximum(self.largest, addition.largest)
        sums = (
            self.handed + addition.handed,
            self.macs + addition.macs,
            largest,
            self.params + addition.params,
        )
        return BranchOptions(us, self.reward + addition.reward, *sums)


def branch_options(
    option: SegmentOption, read: list[EntryBins], way: SegmentMultipliers, values: CostToGo
) -> list[BranchOptions]:
    """Return every option of every branch."""
    prices = values.prices
    per_mac, per_channel = (
        prices.per_mac + float(way.per_mac[0]),
        float(way.per_channel[0]) + option.merge_us_per_channel,
    )
    options = []
    for table, entry in zip(option.branch_tables, read, strict=True):
        latency_us = entry.us[0, table.first] + table.us
        keeps_pace = option.bounds.keeps_pace(latency_us) if option.branched else True
        us = np.where(keeps_pace, latency_us, np.inf)
        macs, params = (
            entry.macs[0, table.first] + table.macs,
            entry.params[0, table.first] + table.params,
        )
        reward = per_mac * macs + prices.per_param * params - per_channel * table.channels_out
        options.append(BranchOptions(us, reward, table.channels_out, macs, macs, params))
    return options


def feasible_combinations(
    option: SegmentOption,
    raced: DeadlineTable,
    tables: list[BranchOptions],
    bounds: NetworkLimits,
    slack_us: float,
    most: int,
    tail: float,
) -> tuple[tuple[Array, ...] | None, float]:
    """Combine branch by branch, dropping what no choice of the others can save, and what another
    does better in every way.
    """
    deadlines = raced.deadline_us[0]
    best = [reward[0, 0] for reward in raced.rewards]
    left_out = np.inf
    rows: tuple[Array, ...] = ()
    combined: BranchOptions | None = None
    for b, table in enumerate(tables):
        ahead = remaining_cost_by_deadline(deadlines, best[b + 1 :], raced.meets_demands[0])
        alone = remaining_cost_by_deadline(
            deadlines, best[:b] + best[b + 1 :], raced.meets_demands[0]
        )
        fits = np.flatnonzero(np.isfinite(table.us))
        least = alone[np.searchsorted(deadlines, table.us[fits])] - table.reward[fits]
        fits = fits[least <= slack_us]
        fits = fits[undominated_options(option, table.take(fits), bounds, alone=True)]
        if not len(fits):
            return None, left_out
        if combined is None:
            rows, combined = (fits,), table.take(fits)
            continue
        if len(fits) * len(combined.us) > PRODUCTS:
            keep = max(1, PRODUCTS // len(combined.us))
            least = alone[np.searchsorted(deadlines, table.us[fits])] - table.reward[fits]
            order = np.argsort(least)
            left_out, fits = min(left_out, tail + float(least[order[keep]])), fits[order[:keep]]
        row, right, bound = bounded_pairs(deadlines, ahead, combined, table.take(fits), slack_us)
        both = combined.take(row).with_rewards(table.take(fits[right]))
        if b == len(tables) - 1:
            kept = meets_capacity(option, both)
            row, right, bound, both = row[kept], right[kept], bound[kept], both.take(kept)
        if len(bound) > min(most, MANY):
            kept = undominated_options(option, both, bounds)
            row, right, bound, both = row[kept], right[kept], bound[kept], both.take(kept)
        if len(bound) > most:
            order = np.argpartition(bound, most)
            left_out, order = min(left_out, tail + float(bound[order[most]])), order[:most]
            row, right, both = row[order], right[order], both.take(order)
        rows, combined = (*(r[row] for r in rows), fits[right]), both
    return (rows if combined is not None and len(combined.us) else None), left_out


def undominated_options(
    option: SegmentOption, options: BranchOptions, bounds: NetworkLimits, alone: bool = False
) -> Array:
    """Return options that no other with as many output channels equals or beats in all that
    counts.
    """
    everyone = np.arange(len(options.us))
    if not option.branched or (bounds.min_params > 0 and bounds.min_macs > 0) or bounds.max_held:
        return everyone
    largest, macs = option.bounds.useful_macs(options.largest, options.macs)
    resources = [options.macs if bounds.min_macs > 0 else macs]
    if not alone:  # of one branch alone, the largest is itself
        resources.append(largest)
    resources += [-options.macs] if bounds.max_macs < np.inf else []
    resources += [options.params] if bounds.min_params > 0 else []
    resources = [r for r in resources if len(r) and np.ptp(r) > 0]
    return undominated(options.handed, options.us, resources) if len(resources) < 2 else everyone


def meets_capacity(option: SegmentOption, options: BranchOptions) -> Array:
    """Return combinations of all branches that have the MACs a segment must have."""
    if not option.branched:
        return np.arange(len(options.us))
    return np.flatnonzero(option.bounds.has_capacity(options.largest, options.macs))


def bounded_pairs(
    deadlines: Array, ahead: Array, combined: BranchOptions, more: BranchOptions, slack_us: float
) -> tuple[Array, Array, Array]:
    """Return pairs of what is held and one more option whose bound fits the room, a slice at a
    time.
    """
    pairs: list[tuple[Array, Array, Array]] = [
        (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    ]
    size = max(1, SLICE // max(1, len(more.us)))
    for low in range(0, len(combined.us), size):
        both = np.maximum(combined.us[low : low + size, None], more.us)
        bound = (
            ahead[np.searchsorted(deadlines, both)]
            - combined.reward[low : low + size, None]
            - more.reward
        )
        row, right = np.nonzero(bound <= slack_us)
        pairs.append((row + low, right, bound[row, right]))
    row, right, least = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return row, right, least


def remaining_cost_by_deadline(deadlines: Array, others: list[Array], able: Array) -> Array:
    """Return for every deadline: the least of later deadlines less what the other branches earn by
    them.

    Infinite behind the last.
    """
    total: Array | float = 0.0
    for other_costs in others:
        total = total + other_costs
    cost = np.where(able, deadlines - total, np.inf)
    return np.append(np.minimum.accumulate(cost[::-1])[::-1], np.inf)


__all__ = ["candidate_combinations"]
