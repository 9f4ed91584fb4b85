"""Branches of one segment option joined one by one.

An option, or a partial combination, is dropped where no choice of the other branches keeps the
bound or a rule, or where another dominates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, take_rows
from nnstretch.stretch.search.bounds.lagrangian import DeadlineTable
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.label_setting.small_sums import SmallSums
from nnstretch.stretch.search.options.segment_option import SegmentOption

DOMINANCE_FROM = 2_000
"""Combinations from which on it pays to drop dominated ones."""
MOST_PAIRS = 10_000_000
"""Pairs of partial combinations and options that arrays look at; beyond, the worst bounds go."""
SLICE = 60_000
"""Pairs that are looked at at once."""
ROUNDING_US = 1e-3
"""More than sums of latencies and rewards differ by when they are added in another order."""


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
    copies_us: Array
    """Copies in and out; of the branch where they take longest."""

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
            np.maximum(self.copies_us[rows], other.copies_us[columns]),
        )


def branch_options(
    option: SegmentOption, width: int, relaxation: SegmentMultipliers, values: CostToGo
) -> list[BranchOptions]:
    """Return every option of every branch that reads a width, under one relaxation.

    There are such options.
    """
    totals = option.branch_totals(width)
    assert totals is not None
    multipliers = values.multipliers
    per_mac = multipliers.per_mac + float(relaxation.per_mac[0])
    per_channel = float(relaxation.per_channel[0]) + option.merge_us_per_channel
    options = []
    columns = zip(option.branch_tables, totals, option.copies_us(width), strict=True)
    for table, (us, macs, params), copies_us in columns:
        reward = per_mac * macs - per_channel * table.channels_out
        reward += multipliers.per_param * params
        work = macs, macs, params
        options.append(BranchOptions(us, reward, table.channels_out, *work, copies_us))
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
        self.may_dominate = may_dominate(self.option, self.limits)

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
        if self.may_dominate:
            kept = self.undominated_options(branch.take(rows))
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
        if b == len(self.branches) - 1:
            all_macs = joined.totals.largest_macs, joined.totals.macs
            has_capacity = self.option.bounds.has_capacity(*all_macs)
            if not has_capacity.all():
                joined = joined.take(np.flatnonzero(has_capacity))
        if self.may_dominate and len(joined) > min(self.most, DOMINANCE_FROM):
            joined = joined.take(self.undominated_joined(b, joined.totals))
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

    def undominated_options(self, options: BranchOptions) -> Array:
        """Return rows of one branch's options that no other dominates in all that counts."""
        largest, macs = self.option.bounds.useful_macs(options.largest_macs, options.macs)
        # The largest is itself, and may need more MACs than all of them together.
        return self.undominated(options, [np.maximum(largest, macs)])

    def undominated_joined(self, b: int, totals: BranchOptions) -> Array:
        """Return combinations up to branch b that no other dominates in all that counts.

        One whose copies no choice of the branches behind amortises makes no other pointless.
        """
        least = sum(int(branch.channels_out.min()) for branch in self.branches[b + 1 :])
        amortises = self.option.amortises(totals.copies_us, totals.channels_out + least)
        rows = np.flatnonzero(amortises)
        few = totals.take(rows)
        largest, macs = self.option.bounds.useful_macs(few.largest_macs, few.macs)
        return rows[self.undominated(few, [macs, largest, -self.decisive_copies_us(b, few)])]

    def decisive_copies_us(self, b: int, totals: BranchOptions) -> Array:
        """Return copies up to branch b that may break a rule behind it; 0 where they never do."""
        widest = sum(int(branch.channels_out.max()) for branch in self.branches[b + 1 :])
        never = self.option.amortises(totals.copies_us, totals.channels_out + widest)
        return np.where(never, 0.0, totals.copies_us)

    def undominated(self, options: BranchOptions, resources: list[Array]) -> Array:
        """Return rows that no other with as many output channels dominates.

        `resources` are those of the segment, MACs first; more is better.
        """
        limits = self.limits
        if limits.min_macs > 0:
            resources = [options.macs, *resources[1:]]
        if limits.max_macs < np.inf:
            resources.append(-options.macs)
        if limits.min_params > 0:
            resources.append(options.params)
        resources = [r for r in resources if len(r) and np.ptp(r) > 0]
        if len(resources) >= 2:
            return np.arange(len(options))
        return undominated(options.channels_out, options.us, resources)
