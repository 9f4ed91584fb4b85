"""Cheap lower bounds through a segment option: each branch apart, the slowest relaxed, too.

A segment takes as long as its slowest branch, so at least any weighted mean of its branches. With
the weights as further multipliers no deadline is left that joins the branches, and the least over
depths can be taken before the merged widths are looked at. A few percent looser than lagrangian.py
and much faster: these bounds tell which options need no tighter one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.branch_costs import (
    IMPOSSIBLE_US,
    EntryFeatures,
    branch_costs,
    cost_weights,
)
from nnstretch.stretch.search.bounds.entry_bins import (
    EntryBins,
    channels_missing,
    per_channel_us,
)
from nnstretch.stretch.search.bounds.lagrangian import offsets_us
from nnstretch.stretch.search.bounds.multipliers import (
    LEAST_SHARE,
    CostToGo,
    SegmentMultipliers,
    SeparableMultipliers,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption

BOUNDLESS_US = 1e12
"""Bounds from here on are infinite."""
SHARE_STEPS = (0.4, 0.15, 0.05)
"""Exponents by which shares of branches are tried that lie around the best so far, in turns."""
MAC_STEPS = (0.15, 0.06, 0.02)
"""The same for the multiplier of MACs, as shares of what a MAC usually costs."""
USUAL_MAC_SHARE = 0.8
"""Multiplier of MACs to begin with, as a share of what a MAC costs when all processors work."""
TRIED_SLOPES = slice(1, None, 3)
"""Which slopes of the cost-to-go are tried: of three neighbours, one."""
FIRST_ROUNDS = 3
"""Rounds of trials where no segment like it was bounded before."""


def separable_bound(
    option: SegmentOption,
    values: CostToGo,
    starts: Array,
    entries: Sequence[EntryBins],
    features: Sequence[EntryFeatures],
) -> Array:
    """Return the bound through an option of a `concat` merge: `[merged width it reads]`.

    The multipliers that bound it best are where the next segment with its end begins to look.
    """
    space, i = option.space, option.i
    widths, row = space.merged_widths(i), space.merged_row(i, space.original_width(i))
    full_bin = int(np.searchsorted(starts, row, side="right")) - 1
    by_width = np.full(len(widths), -np.inf)
    for turn in trial_turns(option, values):
        tried = trial_multipliers(option, values, turn)
        by_case = separable_costs(option, features, tried, values)
        keep_tightest(option, values, tried, by_case[:, :, full_bin])
        gain_us = per_channel_us(entries, tried.segment, values.multipliers)
        lines = np.repeat(by_case, np.diff(np.append(starts, len(widths))), axis=2)
        lines += gain_us[:, None] * channels_missing(widths, starts)
        np.maximum(by_width, lines.max(axis=1).min(axis=0), out=by_width)
    return np.where(by_width < BOUNDLESS_US, by_width, np.inf)


def projected_bound(option: SegmentOption, values: CostToGo) -> float:
    """Return the bound through an option of a `project` merge, from and to the original width, us.

    The same as `separable_bound` with fewer and smaller steps.
    """
    space, bounds, multipliers = option.space, option.bounds, values.multipliers
    costs = option.branch_totals(space.original_width(option.i)) or []
    us = np.minimum(np.stack([branch.us for branch in costs]), IMPOSSIBLE_US)[:, None]
    macs = np.stack([branch.macs for branch in costs])[:, None]
    merge_us = option.merge_us_per_channel * sum(option.shares)
    needs_main = len(costs) * bounds.main_macs > bounds.macs * (1 + 1e-9)
    bound_us = -np.inf
    for turn in trial_turns(option, values):
        tried = trial_multipliers(option, values, turn)
        per_mac = multipliers.per_mac + tried.segment.per_mac
        weighted = tried.shares.T[:, :, None] * us - per_mac[:, None] * macs
        if multipliers.per_param:
            weighted -= multipliers.per_param * np.stack([b.params for b in costs])[:, None]
        least = weighted.min(axis=2)  # [branch, row]
        total = least.sum(axis=0) + merge_us + offsets_us(option, tried.segment, values)
        if needs_main:
            main = np.where(macs >= bounds.main_macs, weighted, IMPOSSIBLE_US).min(axis=2)
            total = total + (main - least)
        keep_tightest(option, values, tried, total)
        bound_us = max(bound_us, float(total.max(axis=1).min()))
    return bound_us if bound_us < BOUNDLESS_US else np.inf


def trial_turns(option: SegmentOption, values: CostToGo) -> range:
    """Return numbers of trials of multipliers, which turn from one segment to the next."""
    first = option.j - option.i - 1
    is_known = (option.j, option.processors, option.merge) in values.separable
    return range(first, first + (1 if is_known else FIRST_ROUNDS))


def keep_tightest(
    option: SegmentOption, values: CostToGo, tried: SeparableMultipliers, by_case: Array
) -> None:
    """Keep the multipliers whose bounds `[case, row of tried]` are highest for later segments."""
    key = option.j, option.processors, option.merge
    values.separable[key] = tightest_at(by_case, tried)


def tightest_at(by_case: Array, tried: SeparableMultipliers) -> SeparableMultipliers:
    """Return the multipliers that bound one bin best, the loosest case's first.

    `by_case` has the bound of every row of `tried`: `[case, row]`.
    """
    loosest_first = np.argsort(by_case.max(axis=1), kind="stable")
    rows = by_case.argmax(axis=1)[loosest_first]
    return tried.take(np.array(list(dict.fromkeys(rows.tolist()))))


def trial_multipliers(option: SegmentOption, values: CostToGo, turn: int) -> SeparableMultipliers:
    """Return the best multipliers of segments with this end so far, and some around them."""
    us, macs = option.tables.original(option.i, option.j)
    rates = np.array([macs / (us[p] * option.slowdown) for p in option.processors])
    usual_us = USUAL_MAC_SHARE / float(rates.sum())
    best = values.separable.get((option.j, option.processors, option.merge))
    if best is None:
        per_mac = max(0.0, usual_us - values.multipliers.per_mac)
        segment = SegmentMultipliers(np.array([per_mac]), np.zeros(1))
        best = SeparableMultipliers(rates[None] / rates.sum(), segment)
    factors, steps = trial_steps(len(rates), turn % len(SHARE_STEPS))
    slopes = np.zeros(0)
    if option.merge == "concat" and not option.is_last:
        slopes = values.minorants[option.j].slopes[TRIED_SLOPES]
    rows = np.zeros(len(steps) + len(slopes), dtype=np.int64)  # all around the first
    around = best.take(rows)
    shares = np.clip(around.shares[: len(steps)] * factors, LEAST_SHARE, 1.0)
    around.shares[: len(steps)] = shares / shares.sum(axis=1, keepdims=True)
    around.segment.per_mac[: len(steps)] += steps * usual_us
    np.maximum(around.segment.per_mac, 0.0, out=around.segment.per_mac)
    around.segment.per_channel[len(steps) :] = slopes
    return best.join(around)


@cache
def trial_steps(branches: int, turn: int) -> tuple[Array, Array]:
    """Return factors of the shares of branches, and shares of what a MAC usually costs to add.

    One is tried at a time, up and down: `[trial, branch]`, `[trial]`.
    """
    count = branches - 1  # the last has what the others leave
    factors, steps = np.ones((2 * count + 2, branches)), np.zeros(2 * count + 2)
    for b in range(count):
        factors[2 * b : 2 * b + 2, b] = np.exp(-SHARE_STEPS[turn]), np.exp(SHARE_STEPS[turn])
    steps[-2:] = -MAC_STEPS[turn], MAC_STEPS[turn]
    return factors, steps


def separable_costs(
    option: SegmentOption,
    features: Sequence[EntryFeatures],
    tried: SeparableMultipliers,
    values: CostToGo,
) -> Array:
    """Return bounds with what follows the segment: `[case, row of multipliers, width bin]`, us.

    Where some branch must have the MACs of a main branch, each that may be it is a case, too.
    """
    multipliers, bounds = values.multipliers, option.bounds
    weights = cost_weights(
        multipliers.per_mac + tried.segment.per_mac,
        tried.segment.per_channel + option.merge_us_per_channel,
        multipliers.per_param,
    )
    needs_main = len(features) * bounds.main_macs > bounds.macs * (1 + 1e-9)
    total = np.zeros((len(tried), features[0].costs.shape[1]))
    more = list[Array]()
    for b, (table, entry) in enumerate(zip(option.branch_tables, features, strict=True)):
        weights[:, 0] = tried.shares[:, b]
        least, least_main = branch_costs(option, table, entry, weights, needs_main)
        total += least
        if least_main is not None:
            more.append(least_main - least)
    offsets = offsets_us(option, tried.segment, values)[:, :, None]
    if not more:
        return np.asarray(total + offsets)
    return np.concatenate([total + more_us + offsets for more_us in more])


def least_deadline(
    option: SegmentOption,
    features: Sequence[EntryFeatures],
    tried: SeparableMultipliers,
    values: CostToGo,
) -> Array:
    """Return how long branches with the MACs of a segment take at least: `[row, width bin]`, us."""
    # Demanded MACs have no negative multiplier, also where an upper limit makes MACs dear.
    per_mac = np.maximum(0.0, values.multipliers.per_mac + tried.segment.per_mac)
    weights = cost_weights(per_mac, np.zeros(len(tried)))
    total = (per_mac * option.bounds.macs)[:, None]
    for b, (table, entry) in enumerate(zip(option.branch_tables, features, strict=True)):
        weights[:, 0] = tried.shares[:, b]
        total = total + branch_costs(option, table, entry, weights, False)[0]
    return np.asarray(total)
