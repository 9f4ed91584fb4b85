"""Backward recursion: lower bounds on what is left from every cut and merged width.

The bound through one segment option is in lagrangian.py; here bounds are put together over the
options of a space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, bin_entries
from nnstretch.stretch.search.bounds.lagrangian import changes_width
from nnstretch.stretch.search.bounds.multipliers import AffineMinorants, CostToGo, Multipliers
from nnstretch.stretch.search.bounds.option_bounds import (
    CutBins,
    bound_option,
    cut_bins,
    single_bounds,
)
from nnstretch.stretch.search.bounds.weak_bounds import weak_bounds
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.search_space import SearchSpace

WIDE_BINS = 1.04
"""Factor of bins above which further ones only pay where something limits the whole network, or
where more than two branches meet."""
SLOPE_CENTRES = (0.7, 1.0, 1.3, 1.6, 2.0)
"""Merged widths around which lines are fitted, over the original's."""
NEARBY = 0.35
"""How far from one a width may be, over the original's."""


def cost_to_go(
    space: SearchSpace,
    options: Sequence[SegmentOption],
    multipliers: Multipliers,
    alive: Sequence[int] | None = None,
    bin_factor: float = 1.05,
    usable: Mapping[int, Array] | None = None,
    report: Callable[[], None] | None = None,
    before: CostToGo | None = None,
) -> CostToGo:
    """Bound backwards from the output, over width bins that span at most `bin_factor`.

    `alive` are the numbers of the options that plans may use, all by default; `usable` says by
    number from which merged widths, all where it says nothing. `report` is called at every cut.
    Of options with a bound at the same multipliers in `before`, or a weak one, only those are
    bounded anew that could be best by it.
    """
    is_simple = multipliers == Multipliers() and len(space.processors) <= 2
    weighs_width = not is_simple or bin_factor <= WIDE_BINS
    values = CostToGo(multipliers, bin_factor, weighs_width)
    numbers = range(len(options)) if alive is None else alive
    by_start, weak = numbers_by_start(options, numbers), dict[int, Array]()
    # On two processors, too few options are far enough from best for sums over units to show it.
    is_weak = before is None and multipliers == Multipliers() and len(space.processors) > 2
    alike = alike_by_end(options, numbers if is_weak else ())
    for i in reversed(range(space.last)):
        if report:
            report()
        best = np.full(len(space.merged_widths(i)), np.inf)
        if i in by_start:
            bins = cut_bins(options[by_start[i][0]].tables, i, bin_factor)
            cut = CutBounds(bins, values, before, weak)
            starting = {number: options[number] for number in by_start[i]}
            best = cut.least_bound(starting, usable or {})
        values.at[i] = best
        values.minorants[i] = affine_minorants(
            space.merged_widths(i), best, space.original_width(i)
        )
        for group in alike.get(i, ()):
            weak |= weak_bounds({number: options[number] for number in group}, values)
    return values


def alike_by_end(
    options: Sequence[SegmentOption], numbers: Iterable[int]
) -> dict[int, list[list[int]]]:
    """Return by end the numbers of options that share processors and merge, several branches."""
    alike: dict[int, dict[object, list[int]]] = {}
    for number in numbers:
        option = options[number]
        if option.branched:
            groups = alike.setdefault(option.j, {})
            groups.setdefault((option.processors, option.merge), []).append(number)
    return {j: list(groups.values()) for j, groups in alike.items()}


def numbers_by_start(
    options: Sequence[SegmentOption], numbers: Iterable[int]
) -> dict[int, list[int]]:
    """Return the numbers of options by the cut where they start."""
    by_start: dict[int, list[int]] = {}
    for number in numbers:
        by_start.setdefault(options[number].i, []).append(number)
    return by_start


@dataclass
class CutBounds:
    """Bounds through the options that start at one cut."""

    bins: CutBins
    values: CostToGo
    before: CostToGo | None
    """At the same multipliers, by wider bins."""
    weak: Mapping[int, Array]
    """Weak bounds of options, by number."""

    def __post_init__(self) -> None:
        self.space, self.i = self.bins.space, self.bins.i
        self.full_row = self.space.merged_row(self.i, self.space.original_width(self.i))
        self.best = np.full(len(self.space.merged_widths(self.i)), np.inf)
        self.waiting: list[tuple[int, SegmentOption, Array]] = []
        self.entries: dict[tuple[str, ...], list[EntryBins] | None] = {}

    def least_bound(
        self, options: Mapping[int, SegmentOption], usable: Mapping[int, Array]
    ) -> Array:
        """Return the least bound through any option, by number: `[merged width]`."""
        singles: dict[tuple[str, ...], list[int]] = {}
        everywhere = np.ones(len(self.best), dtype=bool)
        for number, option in options.items():
            rows = usable.get(number, everywhere)
            if option.branched and rows.any():
                self.add(number, option, rows)
            elif rows.any():
                singles.setdefault(option.processors, []).append(number)
        for numbers in singles.values():
            bounds = single_bounds([options[number] for number in numbers], self.values)
            for number, bound in zip(numbers, bounds, strict=True):
                self.keep(number, np.where(usable.get(number, everywhere), bound, np.inf))
        return self.finish()

    def add(self, number: int, option: SegmentOption, rows: Array) -> None:
        """Bound an option; one that has a bound already waits until others are there."""
        if self.before is not None and number in self.before.options:
            bound = self.before.options[number] + self.rise_us(option)
            self.waiting.append((number, option, np.where(rows, bound, np.inf)))
        elif number in self.weak:
            self.waiting.append((number, option, np.where(rows, self.weak[number], np.inf)))
        else:
            self.keep(number, self.tight_bound(number, option, rows))

    def keep(self, number: int, bound: Array) -> None:
        """Note the bound of an option."""
        self.values.options[number] = bound
        self.best = np.minimum(self.best, bound)

    def rise_us(self, option: SegmentOption) -> float:
        """Return how much more follows an option at least than was known before, us."""
        assert self.before is not None
        if option.is_last:
            return 0.0
        now, then = self.values.minorants[option.j], self.before.minorants[option.j]
        widths = self.space.merged_widths(option.j) if changes_width(option) else None
        return then.rise_us(now, widths)

    def finish(self) -> Array:
        """Return the least bound of any option: `[merged width]`.

        Those that wait are bounded anew at those widths only where they could be the best.
        """
        self.waiting.sort(key=lambda entry: float(entry[2][self.full_row]))
        for number, option, bound in self.waiting:
            rows = bound < self.best
            if rows.any():
                tight = self.tight_bound(number, option, rows)
                bound = np.where(rows, np.maximum(bound, tight), bound)
            self.keep(number, bound)
        return self.best

    def tight_bound(self, number: int, option: SegmentOption, rows: Array) -> Array:
        """Return the bound through an option at some merged widths, infinite elsewhere.

        Where no bounds of wider bins exist, other options reuse its relaxations only if the
        original width is among these widths.
        """
        entries = self.known_entries(option)
        assert entries is not None  # only of a `project` merge there may be none
        is_example = self.before is not None or bool(rows[self.full_row])
        return bound_option(number, option, self.values, self.bins, entries, rows, is_example)

    def known_entries(self, option: SegmentOption) -> list[EntryBins] | None:
        """Return `bin_entries`, made once for all ends of segments."""
        if option.merge == "project":
            return bin_entries(option, self.bins.starts)
        if option.processors not in self.entries:
            self.entries[option.processors] = bin_entries(option, self.bins.starts)
        return self.entries[option.processors]


def affine_minorants(widths: Array, values: Array, full: int) -> AffineMinorants:
    """Return lines nowhere above the values, each close to them around another width."""
    finite = np.isfinite(values) & (widths != full)
    at_full = float(values[np.searchsorted(widths, full)])
    if finite.sum() < 2:
        least = float(values[finite].min(initial=np.inf))
        return AffineMinorants(np.zeros(1), np.array([least]), full, at_full)
    x, y = widths[finite].astype(float), values[finite]
    slopes = np.unique([0.0, *local_slopes(x, y, full)])
    return AffineMinorants(slopes, (y - slopes[:, None] * x).min(axis=1), full, at_full)


def local_slopes(x: Array, y: Array, full: int) -> Array:
    """Return slopes of lines fitted by least squares around each centre with two widths nearby."""
    centres = np.array(SLOPE_CENTRES)[:, None] * full
    near = (np.abs(x - centres) <= NEARBY * full).astype(float)
    counts = near.sum(axis=1)
    near, counts = near[counts > 1], counts[counts > 1, None]
    apart = near * (x - (near @ x)[:, None] / counts)
    return np.asarray((apart @ y) / (apart @ x))


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
