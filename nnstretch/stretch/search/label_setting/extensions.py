"""Combinations of one segment option that may extend labels to good plans."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.compiled_bounds import pack_entries, pack_option
from nnstretch.stretch.search.bounds.entry_bins import exact_entries
from nnstretch.stretch.search.compiled.library import (
    CombinationsStruct,
    doubles,
    integers,
    load_kernels,
)
from nnstretch.stretch.search.label_setting.dominance import compared_resources, undominated
from nnstretch.stretch.search.label_setting.label_bounds import LabelBounds
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.search_space import WHOLE_NETWORK

DOMINANCE_FACTOR = 6
"""Rows that dominance looks at, over those that are kept."""


@dataclass(frozen=True)
class Extensions:
    """Combinations of one option, and what completes each of them at least."""

    combinations: BranchCombinations
    after_us: Array
    """`[multipliers, combination]`."""
    discarded_us: float
    """Least of what was left out although it is within the limits; infinite where nothing was."""


def admissible_extensions(
    option: SegmentOption,
    width: int,
    options: tuple[Array, ...],
    bounds: LabelBounds,
    limits_us: Array,
    most: int,
) -> Extensions:
    """Return combinations that no rule refuses, whose completions stay below limits.

    `options` has an array for each branch, which reads `width`; `limits_us` are those at each of
    the multipliers of a search. Of those that no other dominates, the `most` of the least bounds.
    """
    kernels = load_kernels()
    if kernels is not None:
        return compiled_extensions(kernels, option, width, options, bounds, limits_us, most)
    totals = option.branch_totals(width)
    assert totals is not None  # there are options
    combinations = option.admissible_combinations(width, totals, options)
    after_us = bounds.after_us(option, combinations)
    is_good = (after_us < limits_us[:, None]).all(axis=0)
    is_good &= bounds.limits.fits(combinations.params_held)
    rows, compared_us = least_rows(after_us[0], np.flatnonzero(is_good), DOMINANCE_FACTOR * most)
    few = combinations.take(rows)
    rows = rows[undominated(few.width, few.latency_us, compared_resources(few, bounds.limits))]
    rows, kept_us = least_rows(after_us[0], rows, most)
    discarded_us = min(compared_us, kept_us)
    return Extensions(combinations.take(rows), after_us[:, rows], discarded_us)


def least_rows(values: Array, rows: Array, most: int) -> tuple[Array, float]:
    """Return at most so many rows, those of the least values, and the least of the others."""
    if len(rows) <= most:
        return rows, np.inf
    order = np.argpartition(values[rows], most)
    return rows[order[:most]], float(values[rows[order[most]]])


def compiled_extensions(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    width: int,
    options: tuple[Array, ...],
    bounds: LabelBounds,
    limits_us: Array,
    most: int,
) -> Extensions:
    """Return `admissible_extensions` by a compiled loop."""
    entries = exact_entries(option, width)
    assert entries is not None  # there are options
    pointers, limits_us = pack_entries(entries), doubles(limits_us)
    held_by, discarded_us = holders_of(option), ctypes.c_double(np.inf)
    count, holders = len(options[0]), len(held_by)
    assert len(bounds.limits.max_held) in (0, holders)
    sums, widths = np.empty((3, count)), np.empty(count, dtype=np.int64)
    params_held, after_us = np.empty((count, holders)), np.empty((len(limits_us), count))
    chosen = np.array(options, dtype=np.int64)
    columns = [column.ctypes.data for column in (*sums, widths, params_held, after_us, chosen)]
    rows = CombinationsStruct(count, len(chosen), holders, len(limits_us), *columns)
    kept = kernels.admissible_combinations(
        pack_option(option).address,
        ctypes.addressof(pointers),
        held_by.ctypes.data,
        width,
        bounds.packed_limits.address,
        bounds.packed_completions(option).address,
        limits_us.ctypes.data,
        DOMINANCE_FACTOR * most,
        most,
        count,
        ctypes.addressof(rows),
        ctypes.byref(discarded_us),
    )
    if kept < 0:
        raise MemoryError
    latency_us, macs, params = sums[:, :kept]
    parts = latency_us, macs, params, widths[:kept], params_held[:kept], tuple(chosen[:, :kept])
    combinations = BranchCombinations(*parts)
    return Extensions(combinations, after_us[:, :kept], discarded_us.value)


def holders_of(option: SegmentOption) -> Array:
    """Return which branch's parameters each of `SearchSpace.holders` holds.

    As many as there are branches stand for all of them, -1 for none.
    """
    processors: Sequence[str] = (*option.processors, WHOLE_NETWORK)
    holders = option.space.holders
    return integers(np.array([processors.index(h) if h in processors else -1 for h in holders]))
