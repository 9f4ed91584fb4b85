"""Which ways to relax a segment option bound it best."""

from __future__ import annotations

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.compiled_bounds import (
    compiled_tightest_rows,
    pack_relaxations,
)
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, exact_entries
from nnstretch.stretch.search.bounds.lagrangian import (
    deadline_costs_by_arrays,
    offsets_us,
    tilt_losses_us,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.options.segment_option import SegmentOption

LOOSEST_US = 1e12
"""What stands for an infinite bound in sums."""
MOST_TOGETHER = 3
"""Relaxations that bound one width bin together."""
LIKE_LENGTHS = 3.0
"""Segments with one end relax alike up to this factor of their lengths, in units."""
SHORT_LENGTH = 4
"""Units up to which every segment has relaxations of its own choice."""
MAC_SHARES = (0.0, 0.8)
"""Multipliers of a segment's MACs, as shares of what a MAC costs when all processors work."""
WIDTH_SHARES = (0.5, 1.0, 2.0)
"""Further ones, as shares of what a MAC costs in merged channels: branches that have the MACs of a
segment are wider than those that earn most."""


def best_relaxations(
    option: SegmentOption, entries: list[EntryBins], values: CostToGo, near: Array
) -> SegmentMultipliers:
    """Return those ways to relax an option that bound a sample best at one of a few bins."""
    relaxations = candidate_relaxations(option, values)
    key, length = (option.j, option.processors, option.merge), option.j - option.i
    if len(relaxations) <= 2:
        return relaxations
    if key in values.choices:
        chosen_length, rows = values.choices[key]
        if SHORT_LENGTH < length < LIKE_LENGTHS * chosen_length:
            return relaxations.take(rows)
    rows, levels_us = sampled_rows(option, entries, relaxations, values, near)
    if relaxations.per_channel[rows].all():
        # With prices of widths alone, bins outside the sample may be bounded by next to nothing.
        is_level = relaxations.per_channel == 0
        rows.append(int(np.where(is_level, levels_us, -np.inf).argmax()))
    values.choices[key] = length, rows
    return relaxations.take(rows)


def known_relaxations(
    number: int, option: SegmentOption, values: CostToGo, width: int
) -> SegmentMultipliers:
    """Return how an option is relaxed, chosen at one width where no bound has chosen it yet."""
    if number not in values.relaxations:
        entries = exact_entries(option, width)
        assert entries is not None  # its bound is finite
        near = np.zeros(1, dtype=np.int64)
        values.relaxations[number] = best_relaxations(option, entries, values, near)
    return values.relaxations[number]


def sampled_rows(
    option: SegmentOption,
    entries: list[EntryBins],
    relaxations: SegmentMultipliers,
    values: CostToGo,
    near: Array,
) -> tuple[list[int], Array]:
    """Return `tightest_rows` of a sample of options in a few bins, and levels of all relaxations.

    The level of a relaxation is the sum over the bins of its least bound.
    """
    kernels, multipliers, bins = load_kernels(), values.multipliers, near
    offsets = offsets_us(option, relaxations, values)
    losses = tilt_losses_us(entries, relaxations, multipliers)
    if option.merge == "project":
        bins = np.zeros(1, dtype=np.int64)
    if kernels is not None:
        packed = pack_relaxations(option, relaxations, multipliers, offsets)
        few = option, entries, packed, losses, bins
        is_chosen, levels = compiled_tightest_rows(kernels, *few, MOST_TOGETHER, LOOSEST_US)
        return np.flatnonzero(is_chosen).tolist() or [0], levels
    few_entries = [entry.take(bins) for entry in entries]
    samples = option.branch_samples()
    table = deadline_costs_by_arrays(option, samples, few_entries, relaxations, multipliers)
    costs = table.costs + losses[:, bins, None]
    by_case = (costs + offsets[:, :, None, None]).min(axis=3, initial=LOOSEST_US)
    return tightest_rows(costs, offsets), by_case.min(axis=0).sum(axis=1)


def tightest_rows(costs: Array, offsets: Array) -> list[int]:
    """Return few relaxations that together bound every bin and case nearly as well as all do."""
    bounds = costs + offsets[:, :, None, None]  # [case, relaxation, bin, deadline]
    if not bounds.shape[3]:
        return [0]
    cases, bins = np.ogrid[: bounds.shape[0], : bounds.shape[2]]
    together = bounds.min(axis=1)
    chosen: set[int] = set()
    for n in range(MOST_TOGETHER):
        can_rise = np.isfinite(together).any(axis=2)
        rows = bounds[cases, :, bins, together.argmin(axis=2)].argmax(axis=2)
        chosen.update(rows[can_rise].tolist())
        tightest = bounds[cases, rows, bins]
        together = np.maximum(together, tightest) if n else tightest
    return sorted(chosen) or [0]


def candidate_relaxations(option: SegmentOption, values: CostToGo) -> SegmentMultipliers:
    """Return ways to relax an option: every slope of the minorants with MAC multipliers."""
    if not option.branched:
        return SegmentMultipliers(np.zeros(1), np.zeros(1))
    us, macs = option.tables.original(option.i, option.j)
    rate = sum(macs / (us[p] * option.slowdown) for p in option.processors)
    slopes = values.minorants[option.j].slopes if option.merge == "concat" else np.zeros(1)
    full, demand = option.space.original_width(option.j), max(1.0, option.bounds.macs)
    per_mac = np.repeat(np.array(MAC_SHARES)[:, None] / rate, len(slopes), axis=1)
    if values.weighs_width:
        width_us = (slopes + option.merge_us_per_channel) * full
        weighed = np.array(WIDTH_SHARES)[:, None] * width_us / demand
        per_mac = np.concatenate([per_mac, weighed])
    prices = np.maximum(0.0, per_mac - values.multipliers.per_mac).T.ravel()
    return SegmentMultipliers(prices, np.repeat(slopes, len(per_mac)))
