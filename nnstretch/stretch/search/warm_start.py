"""Coarse to fine: few widths and cuts, then few options, for what a search begins with.

What a search is told here is proven nowhere: it makes the search faster, never its answer worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.reduced_costs import promising_options
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.label_setting.labels import PlanPath
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import price_options
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace

COARSE_WIDTHS = 8
"""Widths of a branch in the coarse space."""
COARSE_CUTS = 20
"""Cuts of the coarse space at most, beside the output."""
WORTH_WIDTHS = 3 * COARSE_WIDTHS
"""Widths of a branch from which on a coarse space is worth its search."""
MANY_OPTIONS = 8_000
"""Options from which on the first bounds of a free search take so long that a plan comes before."""
COARSE_GAP = 0.003
"""Relative gap at which a search that only prepares another is over."""
FREE_COARSE_GAP = 0.01
"""The same where nothing limits the whole network: the first bounds lead to better plans soon."""
TOTALS = ("latency_us", "macs", "params", "params_held")
"""What the segments of a plan sum up to."""
PROMISING_OPTIONS = 60
"""Options of the coarse space that are searched over all widths before the others."""


def warm_up(search: ExactSearch) -> None:
    """Give a search an incumbent and multipliers, from few widths first and then few options.

    What has been reached is handed over, too, where the progress of the search raises.
    """
    space = coarse_space(search.space)
    has_many = len(search.options) > MANY_OPTIONS
    if space is None or not (search.limits.any or has_many):
        return  # free, the first bounds lead to the best plan, or near it, at once
    gap = max(search.gap, COARSE_GAP if search.limits.any else FREE_COARSE_GAP)

    def tell_stage(stage: str, what: str, done: int, of: int) -> None:
        search.report_progress(f"{stage}, {what.partition(':')[0]}", done, of)

    tell = partial(tell_stage, "few widths")
    tables = CostTables(space)
    priced = price_options(tables, tell, coarse_cuts(space.last, search.limits.min_meetings))
    numbers = option_numbers(search.options)
    # A search may have been given fewer segments than its space has.
    options = tuple(option for option in priced if option.key in numbers)
    coarse = ExactSearch(tables, options, search.limits, gap, tell)
    try:
        coarse.run()
    finally:
        if coarse.best is not None:
            hand_over(coarse, refined_path(coarse.best, coarse, search, numbers), search)
    tell = partial(tell_stage, "few options")
    few = ExactSearch(search.tables, search.options, search.limits, gap, tell)
    few.schedule = search.schedule.first_phase()
    few.alive = promising_numbers(coarse, numbers)
    hand_over(search, search.best, few)
    try:
        few.run()
    finally:
        hand_over(few, few.best, search)


def hand_over(source: ExactSearch, path: PlanPath | None, target: ExactSearch) -> None:
    """Tell one search the multipliers, the plans and perhaps a path of another."""
    target.first_multipliers = source.best_multipliers
    target.planes.planes = list(source.planes.planes)
    if path is not None:
        target.best = path
        target.used |= set(path.option_numbers)


def coarse_space(space: SearchSpace) -> SearchSpace | None:
    """Return the space with few widths, None where the space has not many more."""
    if max(len(space.widths_at(k)) for k in range(1, space.last + 1)) < WORTH_WIDTHS:
        return None
    coarse = replace(space, width_steps=COARSE_WIDTHS)
    coarse.share_units(space)
    return coarse


def coarse_cuts(last: int, min_meetings: int) -> list[int]:
    """Return cuts in even steps and the output; all where a plan has to meet at most of them."""
    step = 1 if 2 * min_meetings > COARSE_CUTS else -(-last // COARSE_CUTS)
    return [*range(0, last, step), last]


def option_numbers(options: Sequence[SegmentOption]) -> dict[object, int]:
    """Return the numbers of segment options by what they are in any space of the network."""
    return {option.key: number for number, option in enumerate(options)}


def promising_numbers(coarse: ExactSearch, numbers: Mapping[object, int]) -> list[int]:
    """Return options of the fine space: like promising ones of the coarse space, and like its plan.

    The latter also where they begin or end a cut before or behind. `numbers` are the fine ones.
    """
    known = coarse.options, coarse.bounds, coarse.limits
    promising = promising_options(*known, PROMISING_OPTIONS)
    chosen = {numbers[coarse.options[number].key] for number in promising}
    for used in () if coarse.best is None else coarse.best.option_numbers:
        i, j, processors, merge = coarse.options[used].key
        for start, end in product((i - 1, i, i + 1), (j - 1, j, j + 1)):
            number = numbers.get((start, end, processors, merge))
            if number is not None:
                chosen.add(number)
    return sorted(chosen)


def refined_path(
    path: PlanPath, coarse: ExactSearch, fine: ExactSearch, numbers: Mapping[object, int]
) -> PlanPath | None:
    """Return a plan of the coarse space as one of the fine space, None where it has no such.

    `numbers` are the fine ones.
    """
    width, parts = fine.space.original_width(0), list[BranchCombinations]()
    steps: list[tuple[int, tuple[int, ...]]] = []
    for coarse_number, choice in path.steps:
        number = numbers[coarse.options[coarse_number].key]
        option = fine.options[number]
        rows = refined_rows(coarse.options[coarse_number], option, choice)
        totals = option.branch_totals(width)
        if rows is None or totals is None:
            return None
        part = option.admissible_combinations(width, totals, rows)
        if not len(part):
            return None
        steps.append((number, tuple(int(row[0]) for row in rows)))
        parts.append(part)
        width = int(part.width[0])
    sums = [sum(getattr(part, name) for part in parts) for name in TOTALS]
    meetings = np.array([sum(fine.options[number].meetings for number, _ in steps)])
    latency_us, macs, params, params_held = map(np.asarray, sums)
    if not fine.limits.keeps(macs, params, meetings, params_held).all():
        return None
    return PlanPath(float(latency_us[0]), tuple(steps))


def refined_rows(
    coarse: SegmentOption, fine: SegmentOption, choice: tuple[int, ...]
) -> tuple[Array, ...] | None:
    """Return the same depths and widths as rows of the fine space; None where one lacks there."""
    if not coarse.branched:
        return tuple(np.array([row]) for row in choice)
    rows = []
    for row in choice:
        depth, column = divmod(row, len(coarse.tail.widths))
        width = coarse.tail.widths[column]
        fine_depth = int(np.searchsorted(fine.tail.depths, coarse.tail.depths[depth]))
        fine_column = int(np.searchsorted(fine.tail.widths, width))
        if fine.tail.widths[fine_column] != width:
            return None
        rows.append(np.array([fine_depth * len(fine.tail.widths) + fine_column]))
    return tuple(rows)
