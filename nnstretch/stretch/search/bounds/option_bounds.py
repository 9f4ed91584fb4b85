"""Tight lower bounds through one segment option, over all merged widths that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.branch_costs import (
    EntryFeatures,
    branch_costs,
    cost_weights,
)
from nnstretch.stretch.search.bounds.deadline_windows import DeadlineWindow
from nnstretch.stretch.search.bounds.entry_bins import (
    EntryBins,
    channels_missing,
    per_channel_us,
)
from nnstretch.stretch.search.bounds.lagrangian import (
    changes_width,
    offsets_us,
    segment_bound,
    tilt_losses_us,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.bounds.relaxations import best_relaxations
from nnstretch.stretch.search.bounds.separable_bounds import least_deadline
from nnstretch.stretch.search.options.segment_option import SegmentOption

CHUNK = 400_000
"""Numbers of an array `[relaxation, bin, option]` at a time, so that it stays in the cache."""

ROUNDING = 1e-9
"""What windows of deadlines are wider by: a share of the first, microseconds at the last."""


def bound_option(
    number: int,
    option: SegmentOption,
    values: CostToGo,
    starts: Array,
    entries: list[EntryBins],
    is_usable: Array | None,
    window: DeadlineWindow | None = None,
) -> Array:
    """Return the bound through an option: `[merged width it reads]`, infinite where not usable.

    Of plans whose segment keeps no deadline of the `window` it says nothing.
    """
    space, i = option.space, option.i
    widths, full = space.merged_widths(i), space.merged_row(i, space.original_width(i))
    rows = np.arange(len(starts))
    if is_usable is not None:
        rows = np.flatnonzero(np.logical_or.reduceat(is_usable, starts))
    full_bin = int(np.searchsorted(starts, full))
    near = sampled_bins(rows, full_bin, len(starts))
    relaxations = values.relaxations[number] = best_relaxations(option, entries, values, near)
    if option.merge == "project":
        by_width = np.full(len(widths), np.inf)
        by_width[full] = segment_bound(option, entries, relaxations, values, window)[0][0]
        return by_width
    parts = [rows[rows <= full_bin], rows[rows > full_bin]]
    together, widest = bin_bounds(option, values, entries, relaxations, parts, window)
    sizes = np.diff(np.append(starts, len(widths)))
    by_width = np.repeat(together, sizes)
    if len(starts) < len(widths):
        gain_us = per_channel_us(entries, relaxations, values.multipliers)
        lines = gain_us[:, None] * channels_missing(widths, starts)
        lines = np.repeat(widest, sizes, axis=2) + lines
        by_width = np.maximum(by_width, lines.max(axis=1).min(axis=0))
    return by_width if is_usable is None else np.where(is_usable, by_width, np.inf)


def deadline_window(
    option: SegmentOption,
    values: CostToGo,
    entries: Sequence[EntryBins],
    features: Sequence[EntryFeatures],
    ceiling_us: Array,
) -> DeadlineWindow:
    """Return deadlines outside which a bound through a branched option is above a ceiling.

    `ceiling_us` is by width bin.
    """
    tried = values.separable[option.j, option.processors, option.merge]
    first_us = least_deadline(option, features, tried, values).max(axis=0)
    level = SegmentMultipliers(np.zeros(1), np.zeros(1))
    multipliers = values.multipliers
    weights = cost_weights(
        np.array([multipliers.per_mac]),
        np.array([option.merge_us_per_channel]),
        multipliers.per_param,
    )
    least_us = offsets_us(option, level, values).min(axis=0)[:, None]
    least_us = least_us + tilt_losses_us(entries, level, multipliers)
    for table, entry in zip(option.branch_tables, features, strict=True):
        least_us = least_us + branch_costs(option, table, entry, weights, False)[0]
    return DeadlineWindow(first_us * (1 - ROUNDING), (ceiling_us - least_us[0]) + ROUNDING)


def single_bound(option: SegmentOption, values: CostToGo) -> Array:
    """Return the bound through an option of one processor, exact: `[merged width it reads]`."""
    space, head, (table,) = option.space, option.head.costs, option.branch_tables
    (price_key,), (link,), column = option.price_keys, option.copies_in, table.first[0]
    widths = space.merged_widths(option.i)
    copy_us = link.fixed_us + link.us_per_kib * option.bytes_in * widths / 1024
    is_plain = option.tables.needs_no_adapter(option.i)[:, column]
    behind_us = np.where(is_plain, table.plain_us[0], table.adapted_us[0])
    us = head.latency_us[price_key][:, column] + behind_us + copy_us + option.sync_us
    macs, params = head.macs[:, column] + table.macs[0], head.params[:, column] + table.params[0]
    to_output_us = 0.0 if option.is_last else values.minorants[option.j].at_full
    return values.multipliers.reduced(us, macs, params, option.meetings) + to_output_us


def bin_bounds(
    option: SegmentOption,
    values: CostToGo,
    entries: list[EntryBins],
    relaxations: SegmentMultipliers,
    parts: Sequence[Array],
    window: DeadlineWindow | None,
) -> tuple[Array, Array]:
    """Return `segment_bound` of the bins in `parts`, infinite for others; some at a time."""
    bins = len(entries[0].spans)
    branch_options = sum(len(table.us) for table in option.branch_tables)
    step = max(4, CHUNK // (len(relaxations) * branch_options))
    if sum(map(len, parts)) <= step // 2:  # apart, bins below have fewer options, but calls cost
        parts = [np.concatenate(list(parts))]
    cases = 2 if changes_width(option) else 1
    together = np.full(bins, np.inf)
    widest = np.full((cases, len(relaxations), bins), np.inf)
    for part in parts:
        for low in range(0, len(part), step):
            few = part[low : low + step]
            few_entries = [entry.take(few) for entry in entries]
            few_deadlines = None if window is None else window.take(few)
            bounds = segment_bound(option, few_entries, relaxations, values, few_deadlines)
            together[few], widest[:, :, few] = bounds
    return together, widest


def sampled_bins(rows: Array, full_bin: int, bins: int) -> Array:
    """Return a few of the bins in `rows`: below the original width, there, above it, the widest."""
    wanted = np.array([full_bin // 3, full_bin, (2 * full_bin + bins) // 3, bins - 1])
    return np.unique(rows[np.abs(rows[:, None] - wanted).argmin(axis=0)])
