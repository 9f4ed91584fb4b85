"""What completions of labels take at least, by the bounds of a search at several multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import CostToGo, reduced_by_each
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.labels import LabelGroup, LabelSet
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
        self.multipliers = [v.multipliers for v in self.values]
        constants = [m.constant(self.limits) for m in self.multipliers]
        self.constants_us = np.array(constants)[:, None]
        self.at: dict[int, Array] = {}
        self.behind: dict[int, list[Array]] = {}
        self.most_meetings = most_meetings(self.options, self.space.last)

    def at_cut(self, i: int, labels: LabelSet) -> Array:
        """Return the tightest lower bound on the completions of labels at a cut, us.

        Infinite where too few meeting points can follow.
        """
        bounds = self.reduced_us(labels) + self.left_us(i, labels.width)
        suffices = labels.meetings + self.most_meetings[i] >= self.limits.min_meetings
        return np.asarray(np.where(suffices, bounds.max(axis=0), np.inf))

    def left_us(self, i: int, widths: Array) -> Array:
        """Return bounds on what is left from a cut and merged widths: `[multipliers, width]`."""
        if i not in self.at:
            self.at[i] = np.stack([v.at[i] for v in self.values])
        return self.at[i].take(self.space.merged_widths(i).searchsorted(widths), axis=1)

    def reduced_us(self, labels: LabelSet) -> Array:
        """Return reduced costs of labels with what the limits add: `[multipliers, label]`, us."""
        columns = labels.latency_us, labels.macs, labels.params, labels.meetings
        return np.asarray(reduced_by_each(self.multipliers, *columns) + self.constants_us)

    def after_us(self, option: SegmentOption, combinations: BranchCombinations) -> Array:
        """Return `bound_through` at each of the multipliers: `[multipliers, combination]`, us."""
        columns = combinations.latency_us, combinations.macs, combinations.params
        reduced_us = reduced_by_each(self.multipliers, *columns, option.meetings)
        if option.is_last:
            return reduced_us
        return np.asarray(reduced_us + self.left_us(option.j, combinations.width))

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
