"""Exact bounds through segment options, where nothing limits the whole network.

For one deadline, the most MACs that branches have together by their merged width are a (max, +)
convolution of what each has by its own width. So whether an option leads anywhere below a ceiling
is one convolution for each merged width, and the least such ceiling is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.cost_to_go import affine_minorants, numbers_by_start
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.bounds.option_bounds import single_bound
from nnstretch.stretch.search.options.segment_option import OptionCosts, SegmentOption
from nnstretch.stretch.search.search_space import SearchSpace

QUESTION = 100_000
"""Numbers that take as long as what a question costs whatever its size."""
PRECISION = 1e-10
"""Share of a bound up to which it is exact."""


@dataclass(frozen=True)
class WidthGroups:
    """Options of one branch by its output width, the fastest first."""

    us: Array
    """`[width, option]`."""
    most_macs: Array
    """Of an option and those before it; none in front: `[width, option + 1]`."""
    copies_us: Array
    """In and out: `[width]`."""

    def macs_within(self, deadline_us: Array) -> Array:
        """Return the most MACs of options that keep a deadline: `[width, deadline]`."""
        counts = (self.us[:, :, None] <= deadline_us).sum(axis=1)
        return np.take_along_axis(self.most_macs, counts, axis=1)


@dataclass(frozen=True)
class ExactOption:
    """One segment option that reads one merged width, for questions about ceilings."""

    option: SegmentOption
    groups: Sequence[WidthGroups]
    places: Array
    """Width of the last branch, by those of the others and the merged width; beyond all where
    there is none: `[width, ..., merged width]`."""
    behind_us: Array
    """What follows the slowest branch, by merged width."""
    is_amortised: Sequence[Array]
    """Whether copies of branches cost little enough: `[width, merged width]`."""

    def take(self, rows: Array) -> ExactOption:
        """Return the option with the chosen merged widths only."""
        is_amortised = [table[:, rows] for table in self.is_amortised]
        places, behind_us = self.places[..., rows], self.behind_us[rows]
        return ExactOption(self.option, self.groups, places, behind_us, is_amortised)

    def leads_below(self, ceiling_us: float) -> Array:
        """Return whether some branches have the MACs of the segment below a ceiling.

        By merged width.
        """
        deadlines = ceiling_us - self.behind_us
        macs = []
        for group, is_amortised in zip(self.groups, self.is_amortised, strict=True):
            most = np.where(is_amortised, group.macs_within(deadlines), -np.inf)
            macs.append(np.concatenate([most, np.full((1, len(deadlines)), -np.inf)]))
        bounds = self.option.bounds
        has_macs = self.has_capacity(macs)
        if len(macs) * bounds.main_macs <= bounds.macs or not has_macs.any():
            return has_macs  # the largest branch always has enough
        has_main = np.zeros(len(deadlines), dtype=bool)
        for main, row in enumerate(macs):
            large = np.where(row >= bounds.main_macs, row, -np.inf)
            has_main |= self.has_capacity([*macs[:main], large, *macs[main + 1 :]])
        return has_main

    def has_capacity(self, macs: Sequence[Array]) -> Array:
        """Return whether the most MACs of all branches suffice: `[merged width]`."""
        most = self.most_macs(macs)
        return np.asarray(most.max(axis=tuple(range(most.ndim - 1))) >= self.option.bounds.macs)

    def most_macs(self, macs: Sequence[Array]) -> Array:
        """Return the most MACs of all branches together: `[..., merged width]`."""
        columns = np.arange(self.places.shape[-1])
        total = macs[-1][self.places, columns]
        for n, row in enumerate(macs[:-1]):
            axes = [np.newaxis] * (len(macs) - 2)
            axes.insert(n, slice(None))
            total = total + row[:-1][(*axes, slice(None))]
        return np.asarray(total)

    def least_us(self, floor_us: float, ceiling_us: float) -> float:
        """Return the least that the option leads to, the ceiling where that is not below."""
        rows = np.flatnonzero(self.leads_below(ceiling_us))
        if not len(rows):
            return ceiling_us
        few, low, high = self.take(rows), floor_us, ceiling_us
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            rows = np.flatnonzero(few.leads_below(middle))
            if len(rows):
                few, high = few.take(rows), middle
            else:
                low = middle
        return low


def exact_cost_to_go(
    space: SearchSpace,
    options: Sequence[SegmentOption],
    known: CostToGo,
    usable: Mapping[int, Array],
    room_us: float,
    report: Callable[[], None],
) -> CostToGo:
    """Bound backwards again, exactly where plans may have up to `room_us` more than known bounds.

    Such plans use options at `usable` merged widths, by number.
    """
    values = CostToGo(known.multipliers, 1.0)
    by_start = numbers_by_start(options, usable)
    for i in reversed(range(space.last)):
        report()
        best = known.at[i] + room_us
        numbers = by_start.get(i, [])
        numbers.sort(key=lambda number: float(known.options[number][usable[number]].min()))
        for number in numbers:
            option, floor_us = options[number], known.options[number]
            if option.branched:
                rows = usable[number] & (floor_us < best)
                bound = exact_bound(option, values, floor_us, best, rows)
            else:
                bound = single_bound(option, values)
            bound = np.where(usable[number], bound, np.inf)
            values.options[number] = bound
            best = np.minimum(best, bound)
        is_left = np.logical_or.reduce([usable[number] for number in numbers])
        values.at[i] = np.where(is_left, best, np.inf)
        values.minorants[i] = affine_minorants(
            space.merged_widths(i), values.at[i], space.original_width(i)
        )
    return values


def exact_bound(
    option: SegmentOption, values: CostToGo, floor_us: Array, ceiling_us: Array, rows: Array
) -> Array:
    """Return the exact bound through a branched option at chosen merged widths that it reads.

    It lies between a floor and a ceiling, by merged width.
    """
    bound = floor_us.copy()
    widths = option.space.merged_widths(option.i)
    for row in np.flatnonzero(rows).tolist():
        asked = exact_option(option, values, int(widths[row]), float(ceiling_us[row]))
        bound[row] = ceiling_us[row]
        if asked is not None:
            bound[row] = asked.least_us(float(floor_us[row]), float(ceiling_us[row]))
    return bound


def exact_option(
    option: SegmentOption, values: CostToGo, width_in: int, ceiling_us: float
) -> ExactOption | None:
    """Return an option at one width; None where its branches cannot start there."""
    costs = option.branch_totals(width_in)
    if costs is None:
        return None
    merged = option.space.merged_widths(option.j)
    rows = np.flatnonzero(np.isfinite(values.at[option.j]))
    if option.merge == "project":
        full = option.space.merged_row(option.j, option.space.original_width(option.j))
        rows = rows[rows == full]
    merge_us = option.merge_us + option.merge_us_per_channel * merged[rows]
    groups = []
    for b, branch in enumerate(costs):
        in_us = option.copies_in[b].cost_us(option.bytes_in * width_in)
        groups.append(width_groups(option, b, branch, in_us))
    copies_us = [group.copies_us[:, None] + option.sync_us + merge_us for group in groups]
    amortised = [option.bounds.amortises(crossing_us) for crossing_us in copies_us]
    behind_us = option.sync_us + merge_us + values.at[option.j][rows]
    asked = ExactOption(option, groups, last_widths(option, merged[rows]), behind_us, amortised)
    first_us = min(float(group.us.min()) for group in groups)
    return asked.take(np.flatnonzero(behind_us + first_us <= ceiling_us))


def width_groups(option: SegmentOption, b: int, costs: OptionCosts, in_us: float) -> WidthGroups:
    """Return the options of one branch by output width; all are one where it is projected."""
    table, count = option.branch_tables[b], len(option.tail.widths)
    if option.merge == "project":
        us, macs, copies_us = costs.us[None], costs.macs[None], table.copy_out_us[:1]
    else:
        us, macs = costs.us.reshape(-1, count).T, costs.macs.reshape(-1, count).T
        copies_us = table.copy_out_us[:count]
    order = np.argsort(us, axis=1)
    sorted_us = np.take_along_axis(us, order, axis=1)
    most = np.maximum.accumulate(np.take_along_axis(macs, order, axis=1), axis=1)
    nothing = np.full((len(us), 1), -np.inf)
    return WidthGroups(sorted_us, np.concatenate([nothing, most], axis=1), in_us + copies_us)


def last_widths(option: SegmentOption, merged: Array) -> Array:
    """Return which width the last branch has, by those of the others and the merged width."""
    others = len(option.processors) - 1
    if option.merge == "project":
        return np.zeros((*[1] * others, len(merged)), dtype=np.int64)
    widths = option.tail.widths
    sums = reduce(np.add.outer, [widths] * others)
    wanted = merged - sums[..., None]
    places = np.searchsorted(widths, wanted)
    exists = widths[np.minimum(places, len(widths) - 1)] == wanted
    return np.where(exists, places, len(widths))


def exact_work(option: SegmentOption, rows: Array) -> float:
    """Return about how much questions about an option at chosen widths take, in numbers."""
    others = len(option.processors) - 1
    widths = 1 if option.merge == "project" else len(option.tail.widths)
    merged = 1 if option.merge == "project" else len(option.space.merged_widths(option.j))
    branches = len(option.branch_tables[0].us) * merged * len(option.processors)
    return float(rows.sum()) * (widths**others * merged + branches + QUESTION)
