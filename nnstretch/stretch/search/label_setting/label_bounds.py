"""What completions of labels take at least, by the bounds of a search at several multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import CostToGo, reduced_by_each
from nnstretch.stretch.search.compiled.library import (
    CompletionsStruct,
    NetworkLimitsStruct,
    Packed,
    doubles,
    integers,
)
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
        self.packed: dict[int, Packed] = {}
        self.behind: dict[int, list[Array]] = {}
        self.most_meetings = most_meetings(self.options, self.space.last)

    @cached_property
    def packed_limits(self) -> Packed:
        """Return limits of the whole network for compiled loops."""
        limits, max_held = self.limits, doubles(np.array(self.limits.max_held))
        least = limits.min_macs, limits.max_macs, limits.min_params
        struct = NetworkLimitsStruct(*least, len(max_held), max_held.ctypes.data)
        return Packed(struct, (max_held,))

    def packed_completions(self, option: SegmentOption) -> Packed:
        """Return what completes combinations of an option for compiled loops."""
        if option.j not in self.packed:
            self.packed[option.j] = self.pack_completions(option)
        return self.packed[option.j]

    def pack_completions(self, option: SegmentOption) -> Packed:
        """Compute `packed_completions`."""
        prices = doubles(np.array([astuple(multipliers) for multipliers in self.multipliers]).T)
        by_kind = [row.ctypes.data for row in prices]
        if option.is_last:
            struct = CompletionsStruct(prices.shape[1], *by_kind, 0, None, None)
            return Packed(struct, (prices,))
        widths = integers(self.space.merged_widths(option.j))
        left_us = doubles(self.bounds_at(option.j))
        behind = len(widths), widths.ctypes.data, left_us.ctypes.data
        return Packed(
            CompletionsStruct(prices.shape[1], *by_kind, *behind), (prices, widths, left_us)
        )

    def bounds_at(self, i: int) -> Array:
        """Return bounds on what is left from a cut: `[multipliers, merged width]`, us."""
        if i not in self.at:
            self.at[i] = np.stack([v.at[i] for v in self.values])
        return self.at[i]

    def left_us(self, i: int, widths: Array) -> Array:
        """Return bounds on what is left from a cut and merged widths: `[multipliers, width]`."""
        return self.bounds_at(i).take(self.space.merged_widths(i).searchsorted(widths), axis=1)

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
