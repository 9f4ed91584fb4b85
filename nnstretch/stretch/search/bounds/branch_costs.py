"""Least weighted costs of one branch of a segment, over bins of the merged widths it reads.

The weights are multipliers: of latency, MACs, parameters, and channels at its end. The units behind
the first do not depend on the merged width, so the least over depths is taken before it is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, BranchTable
from nnstretch.stretch.search.bounds.entry_bins import EntryBins
from nnstretch.stretch.search.options.segment_option import SegmentOption

IMPOSSIBLE_US = 1e18
"""What stands for an infinite latency in products."""


@dataclass(frozen=True)
class EntryFeatures:
    """First units of one branch over bins of merged widths, for products with multipliers.

    Each cell has the one kind of entry that exists there, or the one with an adapter; where both
    exist, the other kind is among `plain`.
    """

    costs: Array
    """Latency, MACs and parameters: `[feature, bin, output width]`."""
    plain_cells: tuple[Array, Array]
    """Bins and output widths of the cells where a unit may also do without an adapter."""
    plain: Array
    """`[feature, cell]`."""
    least_us: Array
    """Of any bin: `[output width]`."""
    most_macs: Array
    """Of any bin: `[output width]`."""


def entry_features(entry: EntryBins) -> EntryFeatures:
    """Lay out the first units of one branch."""
    costs = np.stack([entry.us, entry.macs, entry.params])
    least_us = entry.us - entry.tilt.us * entry.spans[:, None]
    most_macs = entry.macs.max(axis=0)
    cells = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    plain = np.zeros((3, 0))
    if entry.plain is not None:
        without = np.stack([entry.plain.us, entry.plain.macs, entry.plain.params])
        exists, is_only = np.isfinite(without[0]), ~np.isfinite(costs[0])
        costs = np.where(is_only, without, costs)
        rows, columns = np.nonzero(exists & ~is_only)
        cells, plain = (rows, columns), without[:, rows, columns]
        without_us = entry.plain.us - entry.tilt.us * entry.spans[:, None]
        least_us = np.minimum(least_us, without_us)
        most_macs = np.maximum(most_macs, entry.plain.macs.max(axis=0))
    costs[0] = np.minimum(costs[0], IMPOSSIBLE_US)
    return EntryFeatures(costs, cells, plain, least_us.min(axis=0), most_macs)


def cost_weights(per_mac: Array, per_channel: Array, per_param: float = 0.0) -> Array:
    """Return weights of latency, none yet, MACs, parameters where they count, and channels."""
    columns = [np.zeros(len(per_mac)), -per_mac]
    if per_param:
        columns.append(np.full(len(per_mac), -per_param))
    return np.stack([*columns, per_channel], axis=1)


def branch_costs(
    option: SegmentOption,
    table: BranchTable,
    entry: EntryFeatures,
    weights: Array,
    needs_main: bool,
) -> tuple[Array, Array | None]:
    """Return the least weighted cost of one branch, and of one with the MACs of a main branch.

    `[row of weights, width bin]`; the latter None where every segment has a main branch anyway.
    """
    count, width_count = len(weights), len(option.tail.widths)
    first = table.first[:width_count]
    shape = (len(table.us) // width_count, width_count)
    least_us = entry.least_us[first] + table.us.reshape(shape)
    us = np.where(option.bounds.keeps_pace(least_us), table.us.reshape(shape), IMPOSSIBLE_US)
    work = np.concatenate([us.ravel(), table.macs, table.params][: weights.shape[1] - 1])
    costs = (weights[:, :-1] @ work.reshape(-1, us.size)).reshape(count, *shape)
    costs_in = entry_costs(entry, first, weights[:, :-1])
    merge_us = weights[:, -1:] * table.channels_out[:width_count]
    least = ((costs.min(axis=1) + merge_us)[:, None] + costs_in).min(axis=2)
    if not needs_main:
        return least, None
    is_main = table.macs.reshape(shape) + entry.most_macs[first] >= option.bounds.main_macs
    main = np.where(is_main, costs, IMPOSSIBLE_US).min(axis=1) + merge_us
    return least, (main[:, None] + costs_in).min(axis=2)


def entry_costs(entry: EntryFeatures, first: Array, weights: Array) -> Array:
    """Return weighted costs of first units: `[row of weights, width bin, option width]`."""
    features, low, high = weights.shape[1], int(first[0]), int(first[-1])
    is_range = high - low == len(first) - 1 and bool((first[1:] - first[:-1] == 1).all())
    costs = entry.costs[:features, :, slice(low, high + 1) if is_range else first]
    shape = (len(weights), *costs.shape[1:])
    total = (weights @ costs.reshape(features, -1)).reshape(shape)
    bins, columns = entry.plain_cells
    if len(bins):
        places = np.searchsorted(first, columns)
        places[places == len(first)] = 0
        known = np.flatnonzero(first[places] == columns)
        cells = slice(None), bins[known], places[known]
        total[cells] = np.minimum(total[cells], weights @ entry.plain[:features, known])
    return np.asarray(total)
