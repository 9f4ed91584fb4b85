"""Backwards from the output: a proven bound on what is left to go from every cut and width.

The rules of one segment option are in lagrangian.py; here they are put together over the options
of a space.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.search.lagrangian import (
    AffineMinorants,
    CostToGo,
    Multipliers,
    SegmentMultipliers,
    bin_entries,
    segment_bound,
    tightest_bound,
)
from nnstretch.stretch.search.search_space import Array, SearchSpace
from nnstretch.stretch.search.segment_options import SegmentOption

FEW = 30
"""Input widths of which bounds are told one by one."""

SAMPLE = 100
"""Options of a branch that are looked at to choose between ways to relax a segment option.

The bound itself looks at all.
"""

CHUNK = 10_000
"""Numbers of an array over (way to relax, range, option) at a time.

Small arrays stay in the cache, and their memory is used again at once.
"""


def multiplier_candidates(option: SegmentOption, values: CostToGo) -> SegmentMultipliers:
    """Return candidates: a MAC of the segment worth up to one over the sum of rates, a channel what
    the tail's lines say.
    """
    if not option.branched:
        return SegmentMultipliers(np.zeros(1), np.zeros(1))
    us, macs = option.space.original(option.i, option.j)
    rate = sum(macs / (us[p] * option.slowdown) for p in option.processors)
    extra = np.array(
        sorted({max(0.0, share / rate - values.prices.per_mac) for share in (0.0, 0.8)})
    )
    slopes = values.tails[option.j].slopes if option.merge == "concat" else np.zeros(1)
    return SegmentMultipliers(np.repeat(extra, len(slopes)), np.tile(slopes, len(extra)))


def cost_to_go(
    space: SearchSpace,
    options: Sequence[SegmentOption],
    prices: Multipliers,
    alive: Sequence[int] | None = None,
    finest: float = 1.05,
) -> CostToGo:
    """Bound backwards from the output, over ranges of input widths that span a factor of
    `finest`.
    """
    values = CostToGo(prices)
    last = len(space.cuts) - 1
    by_start: dict[int, list[int]] = {}
    for number in range(len(options)) if alive is None else alive:
        by_start.setdefault(options[number].i, []).append(number)
    for i in range(last - 1, -1, -1):
        widths = space.merged_widths(i)
        starts = width_bins(space, i, finest)
        spread = np.diff(np.append(starts, len(widths)))
        full = int(np.searchsorted(widths, space.original_width(i)))
        best = np.full(len(widths), np.inf)
        for number in by_start.get(i, ()):
            option = options[number]
            bound_ = bound_option(number, option, values, starts, full)
            if bound_ is None:
                continue
            over = np.full(len(widths), np.inf)
            if option.merge == "project":
                over[full] = bound_[0]
            else:
                over[:] = np.repeat(bound_, spread)
            values.options[number] = over
            best = np.minimum(best, over)
        values.at[i] = best
        values.tails[i] = affine_minorants(widths, best, space.original_width(i))
    return values


def bound_option(
    number: int, option: SegmentOption, values: CostToGo, starts: Array, full: int
) -> Array | None:
    """Bound an option over ranges by the multipliers that are best at a few of them."""
    ways = multiplier_candidates(option, values)
    last_range = int(np.searchsorted(starts, full, side="right")) - 1
    near = np.array(
        sorted({last_range // 3, last_range, (2 * last_range + len(starts)) // 3, len(starts) - 1})
    )
    read = bin_entries(option, starts)
    if read is None:
        return None
    few = read if option.merge == "project" else [r.take(near) for r in read]
    if len(ways) > 2:
        least = segment_bound(
            option, few, ways, values, [table.subsample(SAMPLE) for table in option.branch_tables]
        )
        alone = np.array(
            [
                tightest_bound(option, least[k : k + 1], ways.take([k]), values)
                for k in range(len(ways))
            ]
        )
        ways = ways.take(sorted({int(k) for k in alone.argmax(axis=0)}))
    values.ways[number] = ways
    if option.merge == "project":
        return tightest_bound(option, segment_bound(option, read, ways, values), ways, values)
    above = int(np.searchsorted(starts, full, side="right"))
    step = max(4, CHUNK // (len(ways) * sum(len(table.us) for table in option.branch_tables)))
    rows = [
        np.arange(a, min(a + step, end))
        for begin, end in ((0, above), (above, len(starts)))
        for a in range(begin, end, step)
    ]
    parts = [[r.take(some) for r in read] for some in rows]
    return np.concatenate(
        [
            tightest_bound(option, segment_bound(option, part, ways, values), ways, values)
            for part in parts
        ]
    )


def affine_minorants(widths: Array, values: Array, full: int) -> AffineMinorants:
    """Return lines nowhere above the values, each close to them around another width."""
    finite = np.isfinite(values) & (widths != full)
    whole = float(values[np.searchsorted(widths, full)])
    if finite.sum() < 2:
        return AffineMinorants(
            np.zeros(1), np.array([float(values[finite].min(initial=np.inf))]), full, whole
        )
    x, y = widths[finite].astype(float), values[finite]
    slopes = {0.0}
    for centre in (1.1, 1.6):
        near = np.abs(x - centre * full) <= 0.35 * full
        if near.sum() > 1:
            slopes.add(float(np.polyfit(x[near], y[near], 1)[0]))
    slope_values = np.array(sorted(slopes))
    return AffineMinorants(slope_values, (y - slope_values[:, None] * x).min(axis=1), full, whole)


def width_bins(space: SearchSpace, i: int, finest: float) -> Array:
    """Return where ranges of input widths begin at a cut: each spans a factor of at most `finest`.

    The original width stands alone.

    Of few widths, each is a range of its own.
    """
    widths = space.merged_widths(i)
    finest = finest if len(widths) > FEW else 1.0
    full = int(np.searchsorted(widths, space.original_width(i)))
    starts = [0]
    for k in range(1, len(widths)):
        if k in (full, full + 1) or widths[k] > finest * widths[starts[-1]]:
            starts.append(k)
    return np.array(starts)
