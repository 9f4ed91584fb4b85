"""How far plans through a segment option exceed the bound of all plans at least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.lagrangian import changes_width
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.options.segment_option import SegmentOption


def reduced_costs(options: Sequence[SegmentOption], values: CostToGo) -> dict[int, float]:
    """Return how far every plan through an option exceeds the bound at least, us, by number."""
    excess = excess_by_width(options, values)
    return {number: float(excess_us.min()) for number, excess_us in excess.items()}


def excess_by_width(
    options: Sequence[SegmentOption], values: CostToGo, alive: Iterable[int] | None = None
) -> dict[int, Array]:
    """Return how far plans through an option exceed the bound at least, us, by number and width.

    Widths are the merged ones that the option reads; plans use options that are `alive`, all by
    default.
    """
    numbers = values.options if alive is None else values.options.keys() & alive
    costs: dict[int, Array] = {}
    cuts: dict[int, tuple[Array, int]] = {}
    at_full, elsewhere = {0: 0.0}, dict[int, float]()  # least excess up to a cut, by merged width
    for number in sorted(numbers, key=lambda n: (options[n].i, n)):
        option, bound = options[number], values.options[number]
        i, j, space = option.i, option.j, option.space
        if i not in cuts:
            at_us = np.where(np.isfinite(values.at[i]), values.at[i], 0.0)
            cuts[i] = at_us, space.merged_row(i, space.original_width(i))
        at_us, full = cuts[i]
        excess_us = bound - at_us
        full_us = excess_us[full] + at_full.get(i, math.inf)
        excess_us += elsewhere.get(i, math.inf)
        excess_us[full] = full_us
        least_us = float(excess_us.min())
        if least_us < math.inf:
            costs[number] = excess_us
            at_full[j] = min(at_full.get(j, math.inf), least_us)
            if changes_width(option):
                elsewhere[j] = min(elsewhere.get(j, math.inf), least_us)
    return costs


def usable_widths(
    options: Sequence[SegmentOption],
    values: CostToGo,
    alive: Iterable[int],
    usable: Mapping[int, Array],
    room_us: float,
) -> dict[int, Array]:
    """Return by number which merged widths plans may read that exceed the bound by less than room.

    Of the options that are `alive`, and of the widths that were usable before.
    """
    excess = excess_by_width(options, values, alive)
    kept: dict[int, Array] = {}
    for number in alive:
        if number in excess:
            is_usable = (excess[number] < room_us) & usable.get(number, True)
            if is_usable.any():
                kept[number] = is_usable
    return kept


def promising_options(
    options: Sequence[SegmentOption], bounds: Sequence[CostToGo], limits: NetworkLimits, most: int
) -> set[int]:
    """Return the numbers of options whose highest bound, over all multipliers, is least."""
    costs = [reduced_costs(options, values) for values in bounds]
    totals_us = [values.total(limits) for values in bounds]
    highest_us: dict[int, float] = {}
    for number in set.intersection(*map(set, costs)):
        pairs = zip(totals_us, costs, strict=True)
        highest_us[number] = max(total_us + excess[number] for total_us, excess in pairs)
    by_bound = sorted(highest_us, key=lambda number: highest_us[number])
    return set(by_bound[:most])
