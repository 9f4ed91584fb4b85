"""Tight lower bounds through one segment option, over all merged widths that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.compiled_bounds import compiled_option_bound, pack_cut
from nnstretch.stretch.search.bounds.entry_bins import (
    EntryBins,
    channels_missing,
    per_channel_us,
    width_bins,
)
from nnstretch.stretch.search.bounds.lagrangian import candidate_relaxations, segment_bound
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.bounds.relaxations import (
    chosen_before,
    chosen_rows,
    note_choice,
)
from nnstretch.stretch.search.compiled.library import Packed, load_kernels
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.single_costs import single_costs
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


@dataclass(frozen=True)
class CutBins:
    """Bins of the merged widths at one cut."""

    space: SearchSpace
    i: int
    starts: Array

    @cached_property
    def packed(self) -> Packed:
        """Return the bins for compiled loops."""
        return pack_cut(self.space, self.i, self.starts)


def cut_bins(tables: CostTables, i: int, bin_factor: float) -> CutBins:
    """Return the bins at a cut that span at most a factor, the same whenever they are asked for."""
    space = tables.space
    once = "cut bins", (i, bin_factor)
    return tables.once(once, lambda: CutBins(space, i, width_bins(space, i, bin_factor)))


def bound_option(
    number: int,
    option: SegmentOption,
    values: CostToGo,
    bins: CutBins,
    entries: list[EntryBins],
    is_usable: Array,
    is_example: bool = True,
) -> Array:
    """Return the bound through an option: `[merged width it reads]`, infinite where not usable.

    How it is relaxed is an example for others like it, where it may be.
    """
    kernels = load_kernels()
    if kernels is None:
        asked = bins.starts, entries, is_usable, is_example
        return bound_by_arrays(number, option, values, *asked)
    rows = chosen_before(option, values)
    known = option, entries, values, bins.packed, is_usable, rows
    by_width, values.relaxations[number] = compiled_option_bound(kernels, *known)
    if is_example and not rows:
        note_choice(option, values, values.relaxations[number])
    return by_width


def bound_by_arrays(
    number: int,
    option: SegmentOption,
    values: CostToGo,
    starts: Array,
    entries: list[EntryBins],
    is_usable: Array,
    is_example: bool = True,
) -> Array:
    """Return `bound_option`."""
    space, i = option.space, option.i
    widths, full = space.merged_widths(i), space.merged_row(i, space.original_width(i))
    sizes, is_read = (
        np.diff(np.append(starts, len(widths))),
        np.logical_or.reduceat(is_usable, starts),
    )
    bins, rows = np.flatnonzero(is_read), np.flatnonzero(np.repeat(is_read, sizes))
    full_bin = int(np.searchsorted(starts, full))
    near = sampled_bins(bins, full_bin, len(starts))
    chosen = values.relaxations[number] = chosen_rows(option, entries, values, near, is_example)
    relaxations = candidate_relaxations(option, values).take(chosen)
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


def single_bounds(options: Sequence[SegmentOption], values: CostToGo) -> Array:
    """Return exact bounds through options that share start and only processor.

    `[option, merged width it reads]`.
    """
    us, macs, params = single_costs(options)
    ends = [None if option.is_last else values.minorants[option.j] for option in options]
    to_output_us = np.array([0.0 if behind is None else behind.at_full for behind in ends])
    return values.multipliers.reduced(us, macs, params, 0) + to_output_us[:, None]


def sampled_bins(rows: Array, full_bin: int, bins: int) -> Array:
    """Return a few of the bins in `rows`: below the original width, there, above it, the widest."""
    wanted = np.array([full_bin // 3, full_bin, (2 * full_bin + bins) // 3, bins - 1])
    return np.unique(rows[np.abs(rows[:, None] - wanted).argmin(axis=0)])
