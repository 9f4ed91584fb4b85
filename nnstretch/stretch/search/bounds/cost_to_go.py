"""Backward recursion: lower bounds on what is left from every cut and merged width.

The bound through one segment option is in lagrangian.py; here bounds are put together over the
options of a space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.lagrangian import (
    EntryBins,
    bin_entries,
    deadline_costs,
    offsets_us,
    segment_bound,
)
from nnstretch.stretch.search.bounds.multipliers import (
    AffineMinorants,
    CostToGo,
    Multipliers,
    SegmentMultipliers,
)
from nnstretch.stretch.search.search_space import SearchSpace
from nnstretch.stretch.search.segment_options import BranchCombinations, SegmentOption

SINGLE_BINS = 30
"""Merged widths up to which each is a bin of its own."""
SAMPLE = 100
"""Options of a branch that choose between relaxations; the bound itself looks at all."""
CHUNK = 10_000
"""Numbers of an array `[relaxation, bin, option]` at a time, so that it stays in the cache."""
MOST_TOGETHER = 3
"""Relaxations that bound one width bin together."""
MAC_SHARES = (0.0, 0.8)
"""Multipliers of a segment's MACs, as shares of what a MAC costs when all processors work."""
WIDTH_SHARES = (0.5, 1.0, 2.0)
"""Further ones, as shares of what a MAC costs in merged channels: branches that have the MACs of a
segment are wider than those that earn most."""
SLOPE_CENTRES = (1.1, 1.6)
"""Merged widths around which lines are fitted, over the original's."""


def cost_to_go(
    space: SearchSpace,
    options: Sequence[SegmentOption],
    multipliers: Multipliers,
    alive: Sequence[int] | None = None,
    bin_factor: float = 1.05,
) -> CostToGo:
    """Bound backwards from the output, over width bins that span at most `bin_factor`.

    `alive` are the numbers of the options that plans may use, all by default.
    """
    values = CostToGo(multipliers)
    by_start: dict[int, list[int]] = {}
    for number in range(len(options)) if alive is None else alive:
        by_start.setdefault(options[number].i, []).append(number)
    for i in reversed(range(space.last)):
        widths = space.merged_widths(i)
        full = space.original_width(i)
        starts = width_bins(space, i, bin_factor)
        sizes = np.diff(np.append(starts, len(widths)))
        best = np.full(len(widths), np.inf)
        for number in by_start.get(i, ()):
            bound = bound_option(number, options[number], values, starts)
            if bound is None:
                continue
            if options[number].merge == "project":
                by_width = np.full(len(widths), np.inf)
                by_width[space.merged_row(i, full)] = bound[0]
            else:
                by_width = np.repeat(bound, sizes)
            values.options[number] = by_width
            best = np.minimum(best, by_width)
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


def bound_option(
    number: int, option: SegmentOption, values: CostToGo, starts: Array
) -> Array | None:
    """Return the bound through an option over width bins; None where it cannot start."""
    entries = bin_entries(option, starts)
    if entries is None:
        return None
    full = option.space.merged_row(option.i, option.space.original_width(option.i))
    behind_full = int(np.searchsorted(starts, full, side="right"))
    relaxations = best_relaxations(option, entries, values, len(starts), behind_full - 1)
    values.relaxations[number] = relaxations
    if option.merge == "project":
        return segment_bound(option, entries, relaxations, values)
    branch_options = sum(len(table.us) for table in option.branch_tables)
    step = max(4, CHUNK // (len(relaxations) * branch_options))
    parts = []
    for begin, end in ((0, behind_full), (behind_full, len(starts))):
        for low in range(begin, end, step):
            rows = np.arange(low, min(low + step, end))
            few = [entry.take(rows) for entry in entries]
            parts.append(segment_bound(option, few, relaxations, values))
    return np.concatenate(parts)


def best_relaxations(
    option: SegmentOption, entries: list[EntryBins], values: CostToGo, bins: int, full_bin: int
) -> SegmentMultipliers:
    """Return those ways to relax an option that bound a sample best at one of a few bins."""
    relaxations = candidate_relaxations(option, values)
    if len(relaxations) <= 2:
        return relaxations
    near = sorted({full_bin // 3, full_bin, (2 * full_bin + bins) // 3, bins - 1})
    few = entries
    if option.merge != "project":
        few = [entry.take(np.array(near)) for entry in entries]
    samples = [table.subsample(SAMPLE) for table in option.branch_tables]
    table = deadline_costs(option, few, relaxations, values.multipliers, samples)
    return relaxations.take(tightest_rows(table.costs, offsets_us(option, relaxations, values)))


def tightest_rows(costs: Array, offsets: Array) -> list[int]:
    """Return few relaxations that together bound every bin and case nearly as well as all do."""
    chosen: set[int] = set()
    for offset in offsets:
        bounds = costs + offset[:, None, None]
        for k in range(bounds.shape[1]):
            rows: list[int] = []
            for _ in range(MOST_TOGETHER):
                together = bounds[rows, k].max(axis=0) if rows else bounds[:, k].min(axis=0)
                if not np.isfinite(together).any():
                    break
                row = int(bounds[:, k, int(together.argmin())].argmax())
                if row in rows:
                    break
                rows.append(row)
            chosen.update(rows)
    return sorted(chosen) or [0]


def candidate_relaxations(option: SegmentOption, values: CostToGo) -> SegmentMultipliers:
    """Return ways to relax an option: every slope of the minorants with MAC multipliers."""
    if not option.branched:
        return SegmentMultipliers(np.zeros(1), np.zeros(1))
    us, macs = option.tables.original(option.i, option.j)
    rate = sum(macs / (us[p] * option.slowdown) for p in option.processors)
    slopes = values.minorants[option.j].slopes if option.merge == "concat" else np.zeros(1)
    full, demand = option.space.original_width(option.j), max(1.0, option.bounds.macs)
    pairs: set[tuple[float, float]] = set()
    for slope in slopes.tolist():
        width_us = (slope + option.merge_us_per_channel) * full
        per_mac = [share / rate for share in MAC_SHARES]
        per_mac += [share * width_us / demand for share in WIDTH_SHARES]
        pairs |= {(max(0.0, price - values.multipliers.per_mac), slope) for price in per_mac}
    columns = np.array(sorted(pairs)).T
    return SegmentMultipliers(columns[0], columns[1])


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
    costs: dict[int, float] = {}
    reach = {0: 0.0}
    for number in sorted(values.options, key=lambda n: options[n].i):
        option, bound = options[number], values.options[number]
        finite = np.isfinite(bound)
        if option.i in reach and finite.any():
            excess = float((bound[finite] - values.at[option.i][finite]).min())
            costs[number] = reach[option.i] + excess
            reach[option.j] = min(reach.get(option.j, math.inf), costs[number])
    return costs
