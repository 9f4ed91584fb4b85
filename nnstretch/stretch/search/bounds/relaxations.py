"""Which ways to relax a segment option bound it best."""

from __future__ import annotations

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.compiled_bounds import (
    LOOSEST_US,
    MOST_TOGETHER,
    compiled_best_relaxations,
)
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, exact_entries
from nnstretch.stretch.search.bounds.lagrangian import (
    candidate_relaxations,
    deadline_costs_by_arrays,
    offsets_us,
    tilt_losses_us,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.options.segment_option import SegmentOption

LIKE_LENGTHS = 3.0
"""Segments with one end relax alike up to this factor of their lengths, in units."""
SHORT_LENGTH = 4
"""Units up to which every segment has relaxations of its own choice."""


def chosen_before(option: SegmentOption, values: CostToGo) -> list[int]:
    """Return rows that were chosen for an option like this one; nothing where there was none."""
    length = option.j - option.i
    chosen_length, rows = values.choices.get(choice_key(option), (0, []))
    return rows if SHORT_LENGTH < length < LIKE_LENGTHS * chosen_length else []


def note_choice(option: SegmentOption, values: CostToGo, rows: list[int]) -> None:
    """Note how an option is relaxed, for others like it."""
    values.choices[choice_key(option)] = option.j - option.i, rows


def choice_key(option: SegmentOption) -> tuple[int, tuple[str, ...], str]:
    """Return what options have in common that may relax alike."""
    return option.j, option.processors, option.merge


def best_relaxations(
    option: SegmentOption, entries: list[EntryBins], values: CostToGo, near: Array
) -> list[int]:
    """Return rows of those ways to relax an option that bound a sample best at a few bins."""
    relaxations = candidate_relaxations(option, values)
    if len(relaxations) <= 2:
        return list(range(len(relaxations)))
    rows, levels_us = sampled_rows(option, entries, relaxations, values, near)
    if relaxations.per_channel[rows].all():
        # With prices of widths alone, bins outside the sample may be bounded by next to nothing.
        is_level = relaxations.per_channel == 0
        rows.append(int(np.where(is_level, levels_us, -np.inf).argmax()))
    return rows


def chosen_rows(
    option: SegmentOption,
    entries: list[EntryBins],
    values: CostToGo,
    near: Array,
    is_example: bool = True,
) -> list[int]:
    """Return how an option is relaxed: like one before, or as bounds a sample at bins best."""
    rows = chosen_before(option, values)
    if rows or not option.branched:
        return rows or [0]
    kernels = load_kernels()
    if kernels is None:
        rows = best_relaxations(option, entries, values, near)
    else:
        rows = compiled_best_relaxations(kernels, option, entries, values, near)
    if is_example:
        note_choice(option, values, rows)
    return rows


def known_rows(number: int, option: SegmentOption, values: CostToGo, width: int) -> list[int]:
    """Return how an option is relaxed, chosen at one width where no bound has chosen it yet."""
    if number not in values.relaxations:
        entries = exact_entries(option, width)
        assert entries is not None  # its bound is finite
        near = np.zeros(1, dtype=np.int64)
        values.relaxations[number] = chosen_rows(option, entries, values, near)
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
    multipliers = values.multipliers
    offsets = offsets_us(option, relaxations, values)
    losses = tilt_losses_us(entries, relaxations, multipliers)
    bins = np.zeros(1, dtype=np.int64) if option.merge == "project" else near
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
