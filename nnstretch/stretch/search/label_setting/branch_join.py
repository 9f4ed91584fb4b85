"""Branches of one segment option joined one by one.

An option, or a partial combination, is dropped where no choice of the other branches keeps the
bound or a rule, or where another dominates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.lagrangian import DeadlineTable
from nnstretch.stretch.search.compiled.library import JoinRulesStruct, load_kernels
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.branch_options import BranchOptions
from nnstretch.stretch.search.label_setting.compiled_join import Joinable, join_compiled
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.label_setting.small_sums import SmallSums
from nnstretch.stretch.search.options.segment_option import SegmentOption

DOMINANCE_FROM = 2_000
"""Combinations from which on it pays to drop dominated ones."""
MOST_PAIRS = 10_000_000
"""Pairs of partial combinations and options that arrays look at; beyond, the worst bounds go."""
MOST_COMPILED_PAIRS = 100_000_000
"""The same of compiled loops."""
PARTIAL_SHARE, MOST_PARTIAL = 400, 2_000_000
"""Partial combinations that are kept: the square of the whole ones over a share, at most so many.
Few of them take little time, but most proofs need nearly all."""
SLICE = 60_000
"""Pairs that are looked at at once."""
ROUNDING_US = 1e-3
"""More than sums of latencies and rewards differ by when they are added in another order."""


def may_dominate(option: SegmentOption, limits: NetworkLimits) -> bool:
    """Return whether few enough limits count for options of branches to dominate others."""
    return option.branched and not limits.max_held


@dataclass(frozen=True)
class JoinedOptions:
    """Partial combinations, each joined with one option of the next branch."""

    partial_rows: Array
    """Rows among the partial combinations."""
    option_rows: Array
    """Rows among the options."""
    bound_us: Array
    totals: BranchOptions

    def __len__(self) -> int:
        return len(self.partial_rows)

    def take(self, rows: Array) -> JoinedOptions:
        """Return the chosen rows."""
        totals = self.totals.take(rows)
        both = self.partial_rows[rows], self.option_rows[rows]
        return JoinedOptions(*both, self.bound_us[rows], totals)


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
    is_proof: bool = True
    """Whether what is left out may cost a proof."""
    discarded_us: float = np.inf
    """Least bound of what was left out although it is within the slack."""

    def __post_init__(self) -> None:
        self.deadlines = self.table.deadline_us[0]
        self.best_rewards = [reward[0, 0] for reward in self.table.rewards]
        self.may_dominate = may_dominate(self.option, self.limits)
        self.kernels = load_kernels()

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
            following = branch.take(kept)
            before, columns = self.join(b, totals, following)
            rows = (*(row[before] for row in rows), kept[columns])
            totals = totals.pair(before, following, columns)
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
        most_pairs = MOST_PAIRS if self.kernels is None else MOST_COMPILED_PAIRS
        if b == 0 or len(rows) * partners <= most_pairs:
            return rows
        most = max(1, most_pairs // partners)
        order = np.argsort(bound_us)
        self.discarded_us = min(self.discarded_us, float(bound_us[order[most]]))
        return rows[order[:most]]

    def join(self, b: int, totals: BranchOptions, branch: BranchOptions) -> tuple[Array, Array]:
        """Return rows of both that together are within the slack, at most `most` by their bound."""
        remaining_us = self.remaining_cost(self.best_rewards[b + 1 :])
        if self.kernels is None:
            joined = self.join_by_arrays(b, remaining_us, totals, branch)
            return joined.partial_rows, joined.option_rows
        ahead, following = (
            Joinable(options, remaining_us[np.searchsorted(self.deadlines, options.us)])
            for options in (totals, branch)
        )
        asked = self.kernels, self.join_rules(b), ahead, following, self.most_joined(b)
        rows, columns, discarded_us = join_compiled(*asked)
        self.discarded_us = min(self.discarded_us, discarded_us)
        return rows, columns

    def most_joined(self, b: int) -> int:
        """Return how many combinations up to branch b are kept."""
        if b == len(self.branches) - 1 or not self.is_proof:
            return self.most
        return max(self.most, min(self.most * self.most // PARTIAL_SHARE, MOST_PARTIAL))

    def join_rules(self, b: int) -> JoinRulesStruct:
        """Return what combinations up to branch b keep, for compiled loops."""
        option, limits, behind = self.option, self.limits, self.branches[b + 1 :]
        return JoinRulesStruct(
            *(self.slack_us, ROUNDING_US),
            *(option.bounds.communication_us, option.bounds.main_macs, option.bounds.macs),
            *(option.sync_us, option.merge_us, option.merge_us_per_channel),
            sum(int(branch.channels_out.min()) for branch in behind),
            sum(int(branch.channels_out.max()) for branch in behind),
            *(not behind, self.may_dominate),
            *(limits.min_macs > 0, limits.max_macs < np.inf, limits.min_params > 0),
        )

    def join_by_arrays(
        self, b: int, remaining_us: Array, totals: BranchOptions, branch: BranchOptions
    ) -> JoinedOptions:
        """Return `join`."""
        joined = self.pairs(remaining_us, totals, branch)
        joined = joined.take(np.flatnonzero(self.may_keep_rules(b, joined.totals)))
        if self.may_dominate and len(joined) > min(self.most, DOMINANCE_FROM):
            joined = joined.take(self.undominated_joined(b, joined.totals))
        most = self.most_joined(b)
        if len(joined) > most:
            order = np.argpartition(joined.bound_us, most)
            least_us = float(joined.bound_us[order[most]])
            self.discarded_us = min(self.discarded_us, least_us)
            joined = joined.take(order[:most])
        return joined

    def may_keep_rules(self, b: int, totals: BranchOptions) -> Array:
        """Return where some choice of the branches behind branch b may keep the segment's rules."""
        behind = self.branches[b + 1 :]
        least = sum(int(branch.channels_out.min()) for branch in behind)
        keeps = self.option.amortises(totals.copies_us, totals.channels_out + least)
        if not behind:
            keeps &= self.option.bounds.has_capacity(totals.largest_macs, totals.macs)
        return keeps

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
        """Return combinations up to branch b that no other dominates in all that counts."""
        largest, macs = self.option.bounds.useful_macs(totals.largest_macs, totals.macs)
        return self.undominated(totals, [macs, largest, -self.decisive_copies_us(b, totals)])

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
