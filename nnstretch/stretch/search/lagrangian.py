"""Lower bounds on what is left to go, by Lagrangian relaxation of everything that ties branches
together.

Bounds on MACs and parameters of the whole get a price each; within a segment, the demand for
MACs gets one, too, and the value of the merged width becomes a straight line below it. What
is left falls apart: for every deadline, each branch takes its most rewarding option that keeps it.
Every number here is a proven lower bound, whatever the prices; good prices make it tight. The
relaxation alone would leave a gap: wide operators run more efficiently, so latency over MACs is not
convex. label_setting.py closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.search_space import Array
from nnstretch.stretch.search.segment_options import BranchTable, SegmentOption


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Microseconds that a MAC and a parameter are worth.

    A negative price of MACs serves an upper bound.
    """

    per_mac: float = 0.0
    per_param: float = 0.0

    def constant(self, bounds: NetworkLimits) -> float:
        """Return what the bounds add to the relaxed latency."""
        macs = (
            self.per_mac * (bounds.min_macs if self.per_mac >= 0 else bounds.max_macs)
            if self.per_mac
            else 0.0
        )
        return macs + self.per_param * bounds.min_params

    def reduced(self, latency_us: Array, macs: Array, params: Array) -> Array:
        """Return reduced costs, us."""
        return latency_us - self.per_mac * macs - self.per_param * params


@dataclass(frozen=True)
class SegmentMultipliers:
    """Ways to relax one segment option, a row each.

    Microseconds for a MAC of the segment, and for a channel of the merged tensor.
    """

    per_mac: Array
    per_channel: Array

    def __len__(self) -> int:
        return len(self.per_mac)

    def take(self, rows: Sequence[int]) -> SegmentMultipliers:
        """Return the chosen rows."""
        return SegmentMultipliers(self.per_mac[rows], self.per_channel[rows])


@dataclass(frozen=True)
class AffineMinorants:
    """What is left to go from one cut, as straight lines below it."""

    slopes: Array
    bases: Array
    """base + slope x width is nowhere above the values, but perhaps at the original width."""
    full: int
    at_full: float

    def merged_width_cost(self, slopes: Array, least: Array) -> Array:
        """Return what merged widths add at the least.

        `least` is what a segment option costs at these slopes, over (slope, ...).
        """
        bases = np.array([self.bases[np.flatnonzero(self.slopes == s)[0]] for s in slopes]).reshape(
            -1, *([1] * (least.ndim - 1))
        )
        bound_ = (least + bases).max(axis=0)
        whole = (least + self.at_full - (slopes * self.full).reshape(bases.shape)).max(axis=0)
        return np.asarray(np.minimum(bound_, whole))


@dataclass
class CostToGo:
    """A proven bound on the reduced latency from every cut and width to the output."""

    prices: Multipliers
    at: dict[int, Array] = field(default_factory=dict)
    """Cut -> over the widths in which branches can meet there."""
    tails: dict[int, AffineMinorants] = field(default_factory=dict)
    options: dict[int, Array] = field(default_factory=dict)
    """Number of the segment option -> bound through it, over the widths it can read."""
    ways: dict[int, SegmentMultipliers] = field(default_factory=dict)
    """Number of the segment option -> the few ways to relax it that bound it best."""


@dataclass(frozen=True)
class EntryBins:
    """First units on tensors of several ranges of widths.

    Over (range, column of the front), the least time and the most work.
    """

    us: Array
    macs: Array
    params: Array
    plain: EntryBins | None = None
    """The same where no adapter is needed; infinite where one always is."""

    def take(self, rows: Array) -> EntryBins:
        """Return the chosen rows."""
        plain = None if self.plain is None else self.plain.take(rows)
        return EntryBins(
            self.us[rows],
            self.macs[rows],
            self.params[rows],
            plain if plain is not None and np.isfinite(plain.us).any() else None,
        )


def bin_entries(option: SegmentOption, starts: Array) -> list[EntryBins] | None:
    """Return what each branch of a segment option reads, over ranges of input widths.

    None where it cannot start from any.
    """
    widths = option.space.merged_widths(option.i)
    if option.merge == "project":
        entries = option.entry_costs(option.space.original_width(option.i))
        return (
            None
            if entries is None
            else [EntryBins(e.us[None], e.macs[None], e.params[None]) for e in entries]
        )
    bins = []
    for p, link in zip(option.processors, option.copies_in, strict=True):
        copy = (link.fixed_us + link.us_per_kib * option.bytes_in * widths[starts] / 1024)[:, None]
        adapted, plain = (
            option.space.binned_head_costs(option.i, p, starts, alike) for alike in (False, True)
        )
        same = EntryBins(option.slowdown * plain[0] + copy, plain[1], plain[2])
        bins.append(EntryBins(option.slowdown * adapted[0] + copy, adapted[1], adapted[2], same))
    return bins


@dataclass(frozen=True)
class DeadlineTable:
    """All options of a segment option's branches in the order of their latency.

    Over (way to relax, range, option).
    """

    deadline_us: Array
    """Over (range, option)."""
    rewards: list[Array]
    """For every branch: the best reward of its options that keep each deadline."""
    meets_demands: Array
    """Over (range, option).

    Whether some combination that keeps the deadline has the MACs that a segment must have.
    """

    @property
    def costs(self) -> Array:
        """Return the time that a deadline leaves, infinite where demands are not met, us."""
        total: Array | float = 0.0
        for reward in self.rewards:
            total = total + reward
        return np.asarray(np.where(self.meets_demands, self.deadline_us - total, np.inf))


def deadline_costs(
    option: SegmentOption,
    read: list[EntryBins],
    ways: SegmentMultipliers,
    prices: Multipliers,
    tables: Sequence[BranchTable] | None = None,
) -> DeadlineTable:
    """Return for every deadline what branches cost that all keep it.

    Of `tables` with fewer options than the option's, no bound.
    """
    us, rewards, work = [], [], []
    per_mac = (prices.per_mac + ways.per_mac)[:, None, None]
    per_channel = (ways.per_channel + option.merge_us_per_channel)[:, None, None]
    for table, entry in zip(option.branch_tables if tables is None else tables, read, strict=True):
        both = (entry, entry.plain) if entry.plain is not None else (entry,)
        latency = np.concatenate([branch.us[:, table.first] + table.us for branch in both], axis=1)
        keeps = (
            option.bounds.keeps_pace(latency) if option.branched else np.full(latency.shape, True)
        )
        some = np.flatnonzero(keeps.any(axis=0))
        choice, plain = some % len(table.us), some >= len(table.us)
        first = table.first[choice]
        macs = np.where(plain, both[-1].macs[:, first], entry.macs[:, first]) + table.macs[choice]
        reward = per_mac * macs - per_channel * table.channels_out[choice]
        if prices.per_param:
            params = (
                np.where(plain, both[-1].params[:, first], entry.params[:, first])
                + table.params[choice]
            )
            reward = reward + prices.per_param * params
        us.append(np.where(keeps, latency, np.inf)[:, some])
        rewards.append(reward)
        work.append(macs)
    if not option.branched:
        return DeadlineTable(us[0], rewards, np.ones(us[0].shape, dtype=bool))
    return deadline_table(option, us, rewards, work)


def deadline_table(
    option: SegmentOption, us: list[Array], rewards: list[Array], work: list[Array]
) -> DeadlineTable:
    """Return the best reward of a branch for each deadline."""
    every = np.concatenate(us, axis=1)
    most = int(np.isfinite(every).sum(axis=1).max(initial=0)) + 1
    order = np.argsort(every, axis=1)[:, :most]
    rows = np.arange(len(every))[:, None]
    owner = np.repeat(np.arange(len(us)), [branch.shape[1] for branch in us])[order]
    gained = np.concatenate(rewards, axis=2)[:, rows, order]
    done = np.concatenate(work, axis=1)[rows, order]
    mine = [owner == b for b in range(len(us))]
    best = [np.maximum.accumulate(np.where(m, gained, -np.inf), axis=2) for m in mine]
    largest = [np.maximum.accumulate(np.where(m, done, -np.inf), axis=1) for m in mine]
    return DeadlineTable(every[rows, order], best, meets_demands(option, largest))


def meets_demands(option: SegmentOption, most: Sequence[Array]) -> Array:
    """Return where the largest options together meet the demands on a segment's MACs."""
    largest_macs = np.maximum.reduce(list(most))
    return np.asarray(option.bounds.has_capacity(largest_macs, sum(most)))


def multiplier_constant(option: SegmentOption, ways: SegmentMultipliers) -> Array:
    """Return what every combination of a segment option pays, over ways to relax it."""
    demand = option.bounds.macs if option.branched else 0.0
    return np.asarray(option.sync_us + option.merge_us + ways.per_mac * demand)


def segment_bound(
    option: SegmentOption,
    read: list[EntryBins],
    ways: SegmentMultipliers,
    values: CostToGo,
    tables: Sequence[BranchTable] | None = None,
) -> Array:
    """Return a bound on the reduced latency from the segment option's start to the output.

    Over (way to relax, range of widths).
    """
    least = (
        deadline_costs(option, read, ways, values.prices, tables).costs.min(axis=2, initial=np.inf)
        + multiplier_constant(option, ways)[:, None]
    )
    if option.j == len(option.space.cuts) - 1:
        return least
    tail = values.tails[option.j]
    if option.branched and option.merge == "concat":
        return least
    return np.asarray(
        least + tail.at_full - (ways.per_channel * (tail.full if option.branched else 0))[:, None]
    )


def tightest_bound(
    option: SegmentOption, least: Array, ways: SegmentMultipliers, values: CostToGo
) -> Array:
    """Return the tightest lower bound over all multipliers, over ranges of widths."""
    if option.j == len(option.space.cuts) - 1 or not option.branched or option.merge == "project":
        return np.asarray(least.max(axis=0))
    return values.tails[option.j].merged_width_cost(ways.per_channel, least)
