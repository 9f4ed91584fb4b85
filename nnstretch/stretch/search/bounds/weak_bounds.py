"""Weak lower bounds through many segment options at once, by sums over units.

Latencies of branches get weights that sum to one, and MACs a price; then each branch takes its best
width. That shows of most options that they are far from best, before any table of them is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.lagrangian import changes_width
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.bounds.unit_sums import (
    POWER_OFFSETS,
    PRICE_STEP,
    added_by_input,
    priced_branches,
    reads_any_width,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption

MOST_COMBINED = 4
"""Branches up to which every combination of their prices is tried; of more, all rise together."""


def weak_bounds(options: Mapping[int, SegmentOption], values: CostToGo) -> dict[int, Array]:
    """Return bounds, by number, through options of one end, processors and merge.

    `[merged width it reads]` each; none where units of some widths cannot be built, where layouts
    of maps decide what they cost, or where widths inside branches change with their depth. Work of
    the network must have no multipliers.
    """
    assert values.multipliers == Multipliers()
    first = next(iter(options.values()))
    if first.tables.passed_units(first.j).us is None:
        return {}
    if any(each.tables.rejoined_branches(each.i, each.j) for each in options.values()):
        return {}
    sums = BranchSums(list(options.values()), values)
    balanced = sums.tightest(sums.balanced())
    by_main = [sums.tightest(sums.by_main_branch(b)) for b in sums.main_branches]
    bounds: dict[int, Array] = {}
    for n, (number, option) in enumerate(options.items()):
        if not is_separable(option):
            continue
        bounds[number] = balanced.at_widths(n)
        if by_main:
            mains_us = [main.at_widths(n) for main in by_main]
            bounds[number] = np.maximum(bounds[number], np.minimum.reduce(mains_us))
    return bounds


def is_separable(option: SegmentOption) -> bool:
    """Return whether other merged widths than the original only add to what branches cost."""
    i, tables = option.i, option.tables
    return option.merge == "project" or all(
        reads_any_width(tables, i, key) for key in option.price_keys
    )


@dataclass(frozen=True)
class SumRelaxations:
    """Weights and prices of branches, and what the MACs that are demanded add."""

    offsets: Array
    """Rows of `POWER_OFFSETS`: `[relaxation, branch, option]`."""
    weights: Array
    """Of the branches' latencies: `[relaxation, branch, option]`."""
    demands_us: Array
    """`[relaxation, option]`."""

    def choose(self, rows: Array) -> SumRelaxations:
        """Return one relaxation for every option."""
        options = np.arange(len(rows))
        offsets, weights = self.offsets[rows, :, options].T, self.weights[rows, :, options].T
        return SumRelaxations(offsets[None], weights[None], self.demands_us[rows, options][None])


@dataclass
class BranchSums:
    """Branches of segment options that share end, processors and merge."""

    options: Sequence[SegmentOption]
    values: CostToGo

    def __post_init__(self) -> None:
        option = self.options[0]
        starts, branches = (
            np.array([each.i for each in self.options]),
            range(len(option.processors)),
        )
        self.branches = [priced_branches(option, b, starts) for b in branches]
        self.channels_out = [self.branch_widths(b) for b in range(len(self.branches))]
        self.times_us = [self.branch_times(b) for b in range(len(self.branches))]
        self.powers = np.array([branch.powers for branch in self.branches])
        """`[branch, offset, option]`."""
        self.us_per_mac = option.slowdown * PRICE_STEP**self.powers

    def branch_widths(self, b: int) -> Array:
        """Return what branch b adds to the merged width: `[width]`."""
        option = self.options[0]
        widths = option.space.widths_at(option.j)
        return np.full_like(widths, option.shares[b]) if option.merge == "project" else widths

    def branch_times(self, b: int) -> Array:
        """Return what branch b takes less what its MACs earn: `[offset, option, width]`, us."""
        option = self.options[0]
        copy_in, copy_out = option.copies_in[b], option.copies_out[b]
        read_bytes = [each.bytes_in * each.space.original_width(each.i) for each in self.options]
        read_us = np.array([copy_in.cost_us(size_bytes) for size_bytes in read_bytes])
        size_bytes = option.bytes_out * self.channels_out[b]
        write_us = copy_out.fixed_us + copy_out.us_per_kib * size_bytes / 1024
        compute_us = option.slowdown * self.branches[b].us
        return np.asarray(compute_us + read_us[:, None] + write_us)

    def balanced(self) -> SumRelaxations:
        """Return relaxations of the MACs that all branches must have together."""
        branches = np.arange(len(self.branches))
        rows = range(len(POWER_OFFSETS))
        free = len(branches) if len(branches) <= MOST_COMBINED else 1
        offsets = np.array(list(product(rows, repeat=free)))
        offsets = np.broadcast_to(offsets, (len(offsets), len(branches)))
        us_per_mac = self.us_per_mac[branches, offsets]
        per_mac = 1 / (1 / us_per_mac).sum(axis=1)
        demand = np.array([option.bounds.macs for option in self.options])
        offsets = np.broadcast_to(offsets[:, :, None], us_per_mac.shape)
        return SumRelaxations(offsets, per_mac[:, None] / us_per_mac, per_mac * demand)

    @property
    def main_branches(self) -> range:
        """Return the branches one of which must be the main one; none where some one always is.

        The largest of n branches has an nth of their MACs at least.
        """
        bounds, branches = [option.bounds for option in self.options], len(self.branches)
        is_given = all(each.main_macs * branches <= each.macs * (1 + 1e-9) for each in bounds)
        return range(0 if is_given else branches)

    def by_main_branch(self, b: int) -> SumRelaxations:
        """Return relaxations of the MACs that branch b must have as the main one."""
        demand = np.array([option.bounds.main_macs for option in self.options])
        shape = len(POWER_OFFSETS), len(self.branches), len(demand)
        offsets, weights = np.zeros(shape, dtype=int), np.zeros(shape)
        offsets[:, b], weights[:, b] = np.arange(len(POWER_OFFSETS))[:, None], 1.0
        return SumRelaxations(offsets, weights, self.us_per_mac[b] * demand)

    def tightest(self, relaxations: SumRelaxations) -> RelaxedBounds:
        """Return bounds by the best relaxation of every option.

        One line below what follows chooses the relaxation; the bound is the best of all lines.
        """
        lines = lines_behind(self.options[0], self.values)
        middle = lines[len(lines) // 2]
        chosen = relaxations.choose(self.totals_us(relaxations, *middle).argmax(axis=0))
        bound_us = np.maximum.reduce([self.totals_us(chosen, *line)[0] for line in lines])
        branches = np.arange(len(self.branches))[:, None]
        powers = self.powers[branches, chosen.offsets[0], np.arange(len(self.options))]
        return RelaxedBounds(self.options, bound_us, powers, chosen.weights[0])

    def totals_us(self, relaxations: SumRelaxations, slope: float, base_us: float) -> Array:
        """Return bounds behind the original width, by one line: `[relaxation, option]`."""
        option, numbers = self.options[0], np.arange(len(self.options))
        totals_us = relaxations.demands_us + (base_us + option.sync_us + option.merge_us)
        for b, times_us in enumerate(self.times_us):
            us = times_us[relaxations.offsets[:, b], numbers]
            us *= relaxations.weights[:, b, :, None]
            us += (slope + option.merge_us_per_channel) * self.channels_out[b]
            totals_us += us.min(axis=2)
        return totals_us


def lines_behind(option: SegmentOption, values: CostToGo) -> list[tuple[float, float]]:
    """Return slopes and bases of lines that are nowhere above what follows an option, us."""
    behind = values.minorants[option.j]
    if not changes_width(option):
        return [(0.0, behind.at_full)]
    bases = np.minimum(behind.bases, behind.at_full - behind.slopes * behind.full)
    return list(zip(behind.slopes.tolist(), bases.tolist(), strict=True))


@dataclass(frozen=True)
class RelaxedBounds:
    """Bounds through options, by one relaxation of each."""

    options: Sequence[SegmentOption]
    bound_us: Array
    """Behind the original width: `[option]`."""
    powers: Array
    """Prices of the MACs of each branch: `[branch, option]`."""
    weights: Array
    """Of the branches' latencies: `[branch, option]`."""

    def at_widths(self, n: int) -> Array:
        """Return the bound of option n at all merged widths that it reads."""
        option = self.options[n]
        widths, full = option.space.merged_widths(option.i), option.space.original_width(option.i)
        if option.merge == "project":
            return np.where(widths == full, self.bound_us[n], np.inf)
        copies = zip(self.weights[:, n], option.copies_in, strict=True)
        us_per_kib = sum(weight * copy_in.us_per_kib for weight, copy_in in copies)
        bound = self.bound_us[n] + us_per_kib * option.bytes_in / 1024 * (widths - full)
        for b, key in enumerate(option.price_keys):
            added_us = added_by_input(option.tables, option.i, key, int(self.powers[b, n]))
            bound += self.weights[b, n] * option.slowdown * added_us
        return np.asarray(bound)
