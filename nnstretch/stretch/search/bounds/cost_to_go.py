"""Backward recursion: lower bounds on what is left from every cut and merged width.

The bound through one segment option is in lagrangian.py; here bounds are put together over the
options of a space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import (
    EntryBins,
    bin_entries,
    channels_missing,
    per_channel_us,
)
from nnstretch.stretch.search.bounds.lagrangian import (
    changes_width,
    segment_bound,
)
from nnstretch.stretch.search.bounds.multipliers import (
    AffineMinorants,
    CostToGo,
    Multipliers,
    SegmentMultipliers,
)
from nnstretch.stretch.search.bounds.relaxations import best_relaxations
from nnstretch.stretch.search.options.segment_option import BranchCombinations, SegmentOption
from nnstretch.stretch.search.search_space import SearchSpace

SINGLE_BINS = 30
"""Merged widths up to which each is a bin of its own."""
CHUNK = 10_000
"""Numbers of an array `[relaxation, bin, option]` at a time, so that it stays in the cache."""
WIDE_BINS = 1.04
"""Factor of bins above which further ones only pay where something limits the whole network, or
where more than two branches meet."""
SLOPE_CENTRES = (1.1, 1.6)
"""Merged widths around which lines are fitted, over the original's."""


def cost_to_go(
    space: SearchSpace,
    options: Sequence[SegmentOption],
    multipliers: Multipliers,
    alive: Sequence[int] | None = None,
    bin_factor: float = 1.05,
    usable: Mapping[int, Array] | None = None,
    report: Callable[[], None] | None = None,
) -> CostToGo:
    """Bound backwards from the output, over width bins that span at most `bin_factor`.

    `alive` are the numbers of the options that plans may use, all by default; `usable` says by
    number from which merged widths, all where it says nothing. `report` is called at every cut.
    """
    is_simple = multipliers == Multipliers() and len(space.processors) <= 2
    values = CostToGo(multipliers, weighs_width=not is_simple or bin_factor <= WIDE_BINS)
    by_start: dict[int, list[int]] = {}
    for number in range(len(options)) if alive is None else alive:
        by_start.setdefault(options[number].i, []).append(number)
    for i in reversed(range(space.last)):
        if report:
            report()
        widths = space.merged_widths(i)
        full = space.original_width(i)
        starts = width_bins(space, i, bin_factor)
        best = np.full(len(widths), np.inf)
        shared: dict[tuple[str, ...], list[EntryBins] | None] = {}
        for number in by_start.get(i, ()):
            entries = known_entries(options[number], starts, shared)
            is_usable = (usable or {}).get(number)
            if entries is not None and (is_usable is None or is_usable.any()):
                bound = bound_option(number, options[number], values, starts, entries, is_usable)
                values.options[number] = bound
                best = np.minimum(best, bound)
        values.at[i] = best
        values.minorants[i] = affine_minorants(widths, best, full)
    return values


def width_bins(space: SearchSpace, i: int, bin_factor: float) -> Array:
    """Return where bins of merged widths begin at a cut; the original width stands alone."""
    widths = space.merged_widths(i)
    factor = bin_factor if len(widths) > SINGLE_BINS else 1.0
    full = space.merged_row(i, space.original_width(i))
    starts = [0]
    for k in range(1, len(widths)):
        if k in (full, full + 1) or widths[k] > factor * widths[starts[-1]]:
            starts.append(k)
    return np.array(starts)


def known_entries(
    option: SegmentOption, starts: Array, shared: dict[tuple[str, ...], list[EntryBins] | None]
) -> list[EntryBins] | None:
    """Return `bin_entries`, made once for all ends of segments from one cut.

    Of one cut only, so that memory does not grow with the network.
    """
    if option.merge == "project":
        return bin_entries(option, starts)
    if option.processors not in shared:
        shared[option.processors] = bin_entries(option, starts)
    return shared[option.processors]


def bound_option(
    number: int,
    option: SegmentOption,
    values: CostToGo,
    starts: Array,
    entries: list[EntryBins],
    is_usable: Array | None,
) -> Array:
    """Return the bound through an option: `[merged width it reads]`, infinite where not usable."""
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
        by_width[full] = segment_bound(option, entries, relaxations, values)[0][0]
        return by_width
    parts = [rows[rows <= full_bin], rows[rows > full_bin]]
    together, widest = bin_bounds(option, values, entries, relaxations, parts)
    sizes = np.diff(np.append(starts, len(widths)))
    by_width = np.repeat(together, sizes)
    if len(starts) < len(widths):
        gain_us = per_channel_us(entries, relaxations, values.multipliers)
        lines = gain_us[:, None] * channels_missing(widths, starts)
        lines = np.repeat(widest, sizes, axis=2) + lines
        by_width = np.maximum(by_width, lines.max(axis=1).min(axis=0))
    return by_width if is_usable is None else np.where(is_usable, by_width, np.inf)


def bin_bounds(
    option: SegmentOption,
    values: CostToGo,
    entries: list[EntryBins],
    relaxations: SegmentMultipliers,
    parts: Sequence[Array],
) -> tuple[Array, Array]:
    """Return `segment_bound` of the bins in `parts`, infinite for others; some at a time."""
    bins = len(entries[0].spans)
    branch_options = sum(len(table.us) for table in option.branch_tables)
    step = max(4, CHUNK // (len(relaxations) * branch_options))
    cases = 2 if changes_width(option) else 1
    together = np.full(bins, np.inf)
    widest = np.full((cases, len(relaxations), bins), np.inf)
    for part in parts:
        for low in range(0, len(part), step):
            few = part[low : low + step]
            few_entries = [entry.take(few) for entry in entries]
            bounds = segment_bound(option, few_entries, relaxations, values)
            together[few], widest[:, :, few] = bounds
    return together, widest


def sampled_bins(rows: Array, full_bin: int, bins: int) -> Array:
    """Return a few of the bins in `rows`: below the original width, there, above it, the widest."""
    wanted = np.array([full_bin // 3, full_bin, (2 * full_bin + bins) // 3, bins - 1])
    return np.unique(rows[np.abs(rows[:, None] - wanted).argmin(axis=0)])


def affine_minorants(widths: Array, values: Array, full: int) -> AffineMinorants:
    """Return lines nowhere above the values, each close to them around another width."""
    finite = np.isfinite(values) & (widths != full)
    at_full = float(values[np.searchsorted(widths, full)])
    if finite.sum() < 2:
        least = float(values[finite].min(initial=np.inf))
        return AffineMinorants(np.zeros(1), np.array([least]), full, at_full)
    x = widths[finite].astype(float)
    y = values[finite]
    fitted = {0.0}
    for centre in SLOPE_CENTRES:
        near = np.abs(x - centre * full) <= 0.35 * full
        if near.sum() > 1:
            fitted.add(float(np.polyfit(x[near], y[near], 1)[0]))
    slopes = np.array(sorted(fitted))
    return AffineMinorants(slopes, (y - slopes[:, None] * x).min(axis=1), full, at_full)


def bound_through(
    option: SegmentOption, combinations: BranchCombinations, values: CostToGo
) -> Array:
    """Return the reduced latency of combinations plus the bound on what follows, us."""
    reduced = values.multipliers.reduced(
        combinations.latency_us, combinations.macs, combinations.params, option.meetings
    )
    if option.is_last:
        return reduced
    rows = np.searchsorted(option.space.merged_widths(option.j), combinations.width)
    return np.asarray(reduced + values.at[option.j][rows])


def reduced_costs(options: Sequence[SegmentOption], values: CostToGo) -> dict[int, float]:
    """Return how far every plan through an option exceeds the bound at least, us, by number."""
    excess = excess_by_width(options, values)
    return {number: float(excess_us.min()) for number, excess_us in excess.items()}


def excess_by_width(options: Sequence[SegmentOption], values: CostToGo) -> dict[int, Array]:
    """Return how far plans through an option exceed the bound at least, us, by number and width.

    Widths are the merged ones that the option reads.
    """
    costs: dict[int, Array] = {}
    at_full, elsewhere = {0: 0.0}, dict[int, float]()  # least excess up to a cut, by merged width
    for number in sorted(values.options, key=lambda n: options[n].i):
        option, bound = options[number], values.options[number]
        i, j, space = option.i, option.j, option.space
        ahead_us = np.full(len(bound), elsewhere.get(i, math.inf))
        ahead_us[space.merged_row(i, space.original_width(i))] = at_full.get(i, math.inf)
        excess_us, finite = np.full(len(bound), np.inf), np.isfinite(bound)
        excess_us[finite] = ahead_us[finite] + (bound[finite] - values.at[i][finite])
        least_us = float(excess_us.min())
        if least_us < math.inf:
            costs[number] = excess_us
            at_full[j] = min(at_full.get(j, math.inf), least_us)
            if changes_width(option):
                elsewhere[j] = min(elsewhere.get(j, math.inf), least_us)
    return costs
