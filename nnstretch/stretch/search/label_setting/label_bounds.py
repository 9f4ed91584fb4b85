"""What completions of labels take at least, by the bounds of a search at several multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.cost_to_go import bound_through
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.labels import LabelGroup, LabelSet
from nnstretch.stretch.search.label_setting.small_sums import SmallSums
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import most_meetings
from nnstretch.stretch.search.space.search_space import SearchSpace


@dataclass
class LabelBounds:
    """Bounds at several multipliers; a label must be promising under all of them."""

    space: SearchSpace
    options: Sequence[SegmentOption]
    values: Sequence[CostToGo]
    limits: NetworkLimits

    def __post_init__(self) -> None:
        self.constants = [v.multipliers.constant(self.limits) for v in self.values]
        self.behind: dict[int, list[Array]] = {}
        self.most_meetings = most_meetings(self.options, self.space.last)

    def at_cut(self, i: int, labels: LabelSet) -> Array:
        """Return the tightest lower bound on the completions of labels at a cut, us.

        Infinite where too few meeting points can follow.
        """
        rows = np.searchsorted(self.space.merged_widths(i), labels.width)
        bounds = []
        for v, reduced_us in zip(self.values, self.reduced_us(labels), strict=True):
            bounds.append(reduced_us + v.at[i][rows])
        suffices = labels.meetings + self.most_meetings[i] >= self.limits.min_meetings
        return np.asarray(np.where(suffices, np.maximum.reduce(bounds), np.inf))

    def reduced_us(self, labels: LabelSet) -> list[Array]:
        """Return reduced costs of labels with what the limits add to them, us, one by one."""
        costs = []
        for v, constant_us in zip(self.values, self.constants, strict=True):
            columns = labels.latency_us, labels.macs, labels.params, labels.meetings
            costs.append(v.multipliers.reduced(*columns) + constant_us)
        return costs

    def through(self, i: int, numbers: Sequence[int], group: LabelGroup) -> Array:
        """Return bounds on completions of any label of a group, us, by option from a cut.

        `numbers` are always the same for a cut. Infinite where an option has no bound.
        """
        row = self.space.merged_row(i, group.width)
        if i not in self.behind:
            self.behind.clear()  # each cut is looked at once
            self.behind[i] = [self.bounds_behind(i, numbers, v) for v in self.values]
        pairs = zip(self.behind[i], group.least_us, strict=True)
        return np.asarray(np.maximum.reduce([least_us + by[:, row] for by, least_us in pairs]))

    def bounds_behind(self, i: int, numbers: Sequence[int], values: CostToGo) -> Array:
        """Return bounds through options from a cut: `[option, merged width]`."""
        nothing = np.full(len(self.space.merged_widths(i)), np.inf)
        return np.stack([values.options.get(number, nothing) for number in numbers])

    def pairs_below(
        self,
        option: SegmentOption,
        labels: LabelSet,
        combinations: BranchCombinations,
        limit_us: float,
    ) -> SmallSums:
        """Return pairs of a label and a combination, all by some multipliers below a limit."""
        pairs = []
        for v, before_us in zip(self.values, self.reduced_us(labels), strict=True):
            after_us = bound_through(option, combinations, v)
            pairs.append(SmallSums.up_to(before_us, after_us, limit_us))
        return min(pairs, key=len)
