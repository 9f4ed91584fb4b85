"""Tight lower bounds through one segment option, over all merged widths that it reads."""

from __future__ import annotations

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import (
    EntryBins,
    channels_missing,
    per_channel_us,
)
from nnstretch.stretch.search.bounds.lagrangian import (
    segment_bound,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.bounds.relaxations import best_relaxations
from nnstretch.stretch.search.options.segment_option import SegmentOption


def bound_option(
    number: int,
    option: SegmentOption,
    values: CostToGo,
    starts: Array,
    entries: list[EntryBins],
    is_usable: Array,
) -> Array:
    """Return the bound through an option: `[merged width it reads]`, infinite where not usable."""
    space, i = option.space, option.i
    widths, full = space.merged_widths(i), space.merged_row(i, space.original_width(i))
    sizes, is_read = (
        np.diff(np.append(starts, len(widths))),
        np.logical_or.reduceat(is_usable, starts),
    )
    bins, rows = np.flatnonzero(is_read), np.flatnonzero(np.repeat(is_read, sizes))
    full_bin = int(np.searchsorted(starts, full))
    near = sampled_bins(bins, full_bin, len(starts))
    relaxations = values.relaxations[number] = best_relaxations(option, entries, values, near)
    by_width = np.full(len(widths), np.inf)
    if option.merge == "project":
        only = np.zeros(1, dtype=np.int64)
        by_width[full] = segment_bound(option, entries, relaxations, values, only)[0][0]
        return by_width
    together, widest = segment_bound(option, entries, relaxations, values, bins)
    bound = np.repeat(together, sizes[bins])
    if len(starts) < len(widths):
        gain_us = per_channel_us(entries, relaxations, values.multipliers)
        lines = gain_us[:, None] * channels_missing(widths, starts)[rows]
        lines = np.repeat(widest, sizes[bins], axis=2) + lines
        bound = np.maximum(bound, lines.max(axis=1).min(axis=0))
    by_width[rows] = bound
    return np.where(is_usable, by_width, np.inf)


def single_bound(option: SegmentOption, values: CostToGo) -> Array:
    """Return the bound through an option of one processor, exact: `[merged width it reads]`."""
    us, macs, params = option.single_costs
    to_output_us = 0.0 if option.is_last else values.minorants[option.j].at_full
    return values.multipliers.reduced(us, macs, params, option.meetings) + to_output_us


def sampled_bins(rows: Array, full_bin: int, bins: int) -> Array:
    """Return a few of the bins in `rows`: below the original width, there, above it, the widest."""
    wanted = np.array([full_bin // 3, full_bin, (2 * full_bin + bins) // 3, bins - 1])
    return np.unique(rows[np.abs(rows[:, None] - wanted).argmin(axis=0)])
