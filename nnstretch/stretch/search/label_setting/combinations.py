"""Branch combinations of one segment option whose lower bound is good enough.

Branches are joined one by one. An option, or a partial combination, is dropped where no choice of
the other branches keeps the bound, or where another dominates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, take_rows
from nnstretch.stretch.search.bounds.compiled_bounds import compiled_candidate_pairs
from nnstretch.stretch.search.bounds.entry_bins import exact_entries
from nnstretch.stretch.search.bounds.lagrangian import (
    DeadlineTable,
    candidate_relaxations,
    deadline_costs,
    offsets_us,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.label_setting.small_sums import SmallSums
from nnstretch.stretch.search.options.option_costs import OptionCosts
from nnstretch.stretch.search.options.segment_option import SegmentOption

DOMINANCE_FROM = 2_000
"""Combinations from which on it pays to drop dominated ones."""
MOST_PAIRS = 10_000_000
"""Pairs of partial combinations and options that arrays look at; beyond, the worst bounds go."""
SLICE = 60_000
"""Pairs that are looked at at once."""
ROUNDING_US = 1e-3
"""More than sums of latencies and rewards differ by when they are added in another order."""


def candidate_combinations(
    option: SegmentOption,
    width: int,
    values: CostToGo,
    rows: Sequence[int],
    limits: NetworkLimits,
    slack_us: float,
    most: int,
    drop_dominated: bool = True,
) -> tuple[tuple[Array, ...] | None, float]:
    """Return options of every branch, as parallel arrays, with a bound to the output of `slack_us`.

    `width` is what it reads, `rows` how it is relaxed. Of more than `most` combinations, those of
    the least bounds; dominated ones may be among them where they need not be dropped. The second
    value is the least bound of what was left out nevertheless, infinite where nothing was. None
    where no combination is good enough.
    """
    entries = exact_entries(option, width)
    if entries is None:
        return None, np.inf
    kernels = load_kernels()
    may_drop = drop_dominated and may_dominate(option, limits)
    if kernels is not None and len(entries) == 2 and not may_drop:
        return compiled_candidate_pairs(kernels, option, entries, values, rows, slack_us, most)
    table = deadline_costs(option, entries, values, rows)
    costs = table.costs
    if not np.isfinite(costs).any():
        return None, np.inf
    relaxations = candidate_relaxations(option, values).take(rows)
    tails_us = offsets_us(option, relaxations, values).min(axis=0)
    row = int((costs[:, 0].min(axis=1) + tails_us).argmax())
    best, tail_us = relaxations.take([row]), float(tails_us[row])
    totals = option.branch_totals(width)
    assert totals is not None  # there are entries
    branches = branch_options(option, totals, best, values)
    join = BranchJoin(option, table.take(row), branches, limits, slack_us - tail_us, most)
    options = join.run()
    return options, join.discarded_us + tail_us


def may_dominate(option: SegmentOption, limits: NetworkLimits) -> bool:
    """Return whether few enough limits count for options of branches to dominate others."""
    if not option.branched or limits.max_held:
        return False
    return not (limits.min_params > 0 and limits.min_macs > 0)


@dataclass(frozen=True)
class BranchOptions:
    """Options of one branch as parallel arrays, or of several branches together."""

    us: Array
    """Latency; of the slowest branch."""
    reward: Array
    """Work and width at their multipliers, us."""
    channels_out: Array
    macs: Array
    largest_macs: Array
    """MACs of the largest branch."""
    params: Array

    def __len__(self) -> int:
        return len(self.us)

    def take(self, rows: Array) -> BranchOptions:
        """Return the chosen rows."""
        return take_rows(self, rows)

    def pair(self, rows: Array, other: BranchOptions, columns: Array) -> BranchOptions:
        """Return chosen options joined with chosen ones of another branch, one by one."""
        return BranchOptions(
            np.maximum(self.us[rows], other.us[columns]),
            self.reward[rows] + other.reward[columns],
            self.channels_out[rows] + other.channels_out[columns],
            self.macs[rows] + other.macs[columns],
            np.maximum(self.largest_macs[rows], other.largest_macs[columns]),
            self.params[rows] + other.params[columns],
        )


def branch_options(
    option: SegmentOption,
    totals: Sequence[OptionCosts],
    relaxation: SegmentMultipliers,
    values: CostToGo,
) -> list[BranchOptions]:
    """Return every option of every branch under one relaxation."""
    multipliers = values.multipliers
    per_mac = multipliers.per_mac + float(relaxation.per_mac[0])
    per_channel = float(relaxation.per_channel[0]) + option.merge_us_per_channel
    options = []
    for table, (us, macs, params) in zip(option.branch_tables, totals, strict=True):
        reward = per_mac * macs - per_channel * table.channels_out
        reward += multipliers.per_param * params
        options.append(BranchOptions(us, reward, table.channels_out, macs, macs, params))
    return options


@dataclass(frozen=True)
class JoinedOptions:
    """Partial combinations, each joined with one option of the next branch."""

    left: Array
    """Rows among the partial combinations."""
    right: Array
    """Rows among the options."""
    bound_us: Array
    totals: BranchOptions

    def __len__(self) -> int:
        return len(self.left)

    def take(self, rows: Array) -> JoinedOptions:
        """Return the chosen rows."""
        totals = self.totals.take(rows)
        return JoinedOptions(self.left[rows], self.right[rows], self.bound_us[rows], totals)


@dataclass
class BranchJoin:
    """Joins the branches of one segment option, keeping what may stay within the slack."""

    option: SegmentOption
    table: DeadlineTable
    """Of one relaxation and one width."""
    branches: list[BranchOptions]
    limits: NetworkLimits
    slack_us: float
    most: int
    discarded_us: float = np.inf
    """Least bound of what was left out although it is within the slack."""

    def __post_init__(self) -> None:
        self.deadlines = self.table.deadline_us[0]
        self.best_rewards = [reward[0, 0] for reward in self.table.rewards]

    def run(self) -> tuple[Array, ...] | None:
        """Return options of every branch as parallel arrays, None without any."""
        rows: tuple[Array, ...] = ()
        totals: BranchOptions | None = None
        for b, branch in enumerate(self.branches):
            kept = self.promising_options(b, 1 if totals is None else len(totals))
            if not len(kept):
                return None
            if totals is None:
                rows, totals = (kept,), branch.take(kept)
                continue
            joined = self.join(b, totals, branch.take(kept))
            rows = (*(row[joined.left] for row in rows), kept[joined.right])
            totals = joined.totals
        return rows if totals is not None and len(totals) else None

    def promising_options(self, b: int, partners: int) -> Array:
        """Return rows of a branch's options that the best of all others keep within the slack."""
        branch = self.branches[b]
        others = self.best_rewards[:b] + self.best_rewards[b + 1 :]
        remaining_us = self.remaining_cost(others)
        rows = np.flatnonzero(np.isfinite(branch.us))
        at_deadline = np.searchsorted(self.deadlines, branch.us[rows])
        bound_us = remaining_us[at_deadline] - branch.reward[rows]
        is_good = bound_us <= self.slack_us
        rows, bound_us = rows[is_good], bound_us[is_good]
        kept = self.undominated(branch.take(rows), is_single=True)
        rows, bound_us = rows[kept], bound_us[kept]
        if b == 0 or len(rows) * partners <= MOST_PAIRS:
            return rows
        most = max(1, MOST_PAIRS // partners)
        order = np.argsort(bound_us)
        self.discarded_us = min(self.discarded_us, float(bound_us[order[most]]))
        return rows[order[:most]]

    def join(self, b: int, totals: BranchOptions, branch: BranchOptions) -> JoinedOptions:
        """Return joined rows within the slack, the least bounds of at most `most`."""
        joined = self.pairs(self.remaining_cost(self.best_rewards[b + 1 :]), totals, branch)
        if b == len(self.branches) - 1 and self.option.branched:
            both = joined.totals
            has_capacity = self.option.bounds.has_capacity(both.largest_macs, both.macs)
            if not has_capacity.all():
                joined = joined.take(np.flatnonzero(has_capacity))
        if len(joined) > min(self.most, DOMINANCE_FROM):
            joined = joined.take(self.undominated(joined.totals))
        if len(joined) > self.most:
            order = np.argpartition(joined.bound_us, self.most)
            least_us = float(joined.bound_us[order[self.most]])
            self.discarded_us = min(self.discarded_us, least_us)
            joined = joined.take(order[: self.most])
        return joined

    def pairs(
        self, remaining_us: Array, totals: BranchOptions, branch: BranchOptions
    ) -> JoinedOptions:
        """Return all pairs of rows whose bound is within the slack."""
        rows, columns, bound_us = self.pairs_within_slack(remaining_us, totals, branch)
        return JoinedOptions(rows, columns, bound_us, totals.pair(rows, branch, columns))

    def pairs_within_slack(
        self, remaining_us: Array, totals: BranchOptions, branch: BranchOptions
    ) -> tuple[Array, Array, Array]:
        """Return rows of both, and bounds, of pairs within the slack, looked at in slices.

        What remains rises with the deadline, so it is the larger of what remains at either's.
        """
        first_us = remaining_us[np.searchsorted(self.deadlines, totals.us)]
        second_us = remaining_us[np.searchsorted(self.deadlines, branch.us)]
        most_us = self.slack_us + ROUNDING_US
        pairs = min(
            SmallSums.up_to(-totals.reward, second_us - branch.reward, most_us),
            SmallSums.up_to(first_us - totals.reward, -branch.reward, most_us),
            key=len,
        )
        nothing = np.zeros(0, dtype=np.int64)
        all_rows, all_columns, bounds_us = [nothing], [nothing], [np.zeros(0)]
        for rows, columns in pairs.slices(SLICE):
            ahead_us = np.maximum(first_us[rows], second_us[columns])
            bound_us = ahead_us - totals.reward[rows] - branch.reward[columns]
            kept = np.flatnonzero(bound_us <= self.slack_us)
            all_rows.append(rows[kept])
            all_columns.append(columns[kept])
            bounds_us.append(bound_us[kept])
        return np.concatenate(all_rows), np.concatenate(all_columns), np.concatenate(bounds_us)

    def remaining_cost(self, rewards: Sequence[Array]) -> Array:
        """Return the least of later deadlines less the rewards of other branches, us.

        Over deadlines; infinite behind the last.
        """
        total: Array | float = 0.0
        for reward in rewards:
            total = total + reward
        cost_us = np.where(self.table.meets_demands[0], self.deadlines - total, np.inf)
        return np.append(np.minimum.accumulate(cost_us[::-1])[::-1], np.inf)

    def undominated(self, options: BranchOptions, is_single: bool = False) -> Array:
        """Return rows that no other with as many output channels dominates in all that counts."""
        everything = np.arange(len(options))
        limits = self.limits
        if not may_dominate(self.option, limits):
            return everything
        largest, macs = self.option.bounds.useful_macs(options.largest_macs, options.macs)
        if is_single:  # The largest is itself, and may need more MACs than all of them together.
            macs = np.maximum(largest, macs)
        resources = [options.macs if limits.min_macs > 0 else macs]
        if not is_single:
            resources.append(largest)
        if limits.max_macs < np.inf:
            resources.append(-options.macs)
        if limits.min_params > 0:
            resources.append(options.params)
        resources = [r for r in resources if len(r) and np.ptp(r) > 0]
        if len(resources) >= 2:
            return everything
        return undominated(options.channels_out, options.us, resources)
