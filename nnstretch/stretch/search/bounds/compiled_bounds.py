"""Bounds through segment options by compiled loops, where the package has them.

Each function computes what the one that calls it would compute by arrays.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import EntryBins
from nnstretch.stretch.search.bounds.multipliers import Multipliers, SegmentMultipliers
from nnstretch.stretch.search.compiled.library import (
    Packed,
    RelaxationsStruct,
    SegmentStruct,
    addresses,
    doubles,
    integers,
    pack_table,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption

LANES = 4
"""Rows of multipliers are padded to a multiple, as kernels.c reads them."""


def pack_relaxations(
    option: SegmentOption, relaxations: SegmentMultipliers, multipliers: Multipliers, offsets: Array
) -> Packed:
    """Return multipliers of a segment and of the network together; `offsets` are `[case, row]`."""
    both = np.zeros((2, -(-len(relaxations) // LANES) * LANES))
    both[0, : len(relaxations)] = multipliers.per_mac + relaxations.per_mac
    both[1, : len(relaxations)] = relaxations.per_channel + option.merge_us_per_channel
    offsets = doubles(offsets)
    shape = len(relaxations), len(offsets)
    rows = both[0].ctypes.data, both[1].ctypes.data
    struct = RelaxationsStruct(*shape, *rows, multipliers.per_param, offsets.ctypes.data)
    return Packed(struct, (both, offsets))


def pack_segment(
    option: SegmentOption,
    tables: Sequence[Packed],
    entries: Sequence[EntryBins],
    relaxations: Packed,
    bins: Array,
) -> Packed:
    """Return what is needed to look at an option's branches over chosen bins."""
    entry_structs = [entry.packed for entry in entries]
    pointers = addresses(tables), addresses(entry_structs)
    struct = SegmentStruct(
        len(entries),
        len(bins),
        *map(ctypes.addressof, pointers),
        option.packed_bounds.address,
        relaxations.address,
        bins.ctypes.data,
    )
    return Packed(struct, (tables, entry_structs, pointers, relaxations, bins))


def compiled_segment_bound(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: Packed,
    losses: Array,
    bins: Array,
) -> tuple[Array, Array]:
    """Return `segment_bound` of chosen bins; `losses` are `[relaxation, bin]`, of all bins."""
    offsets, numbers, losses = relaxations.arrays[-1], integers(bins), doubles(losses[:, bins].T)
    together, widest = np.empty(len(bins)), np.empty((*offsets.shape, len(bins)))
    segment = pack_segment(option, option.packed_tables, entries, relaxations, numbers)
    pointers = [array.ctypes.data for array in (losses, together, widest)]
    if kernels.segment_bound(segment.address, *pointers):
        raise MemoryError
    return together, widest


def compiled_tightest_rows(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: Packed,
    losses: Array,
    bins: Array,
    most_chosen: int,
    loosest_us: float,
) -> tuple[Array, Array]:
    """Return `tightest_rows` of sampled branches in chosen bins, as a mask, and levels of all rows.

    The level of a row is the sum over bins of its least bound; `losses` are `[relaxation, bin]`.
    """
    numbers, losses = integers(bins), doubles(losses[:, bins].T)
    samples = [pack_table(table) for table in option.branch_samples()]
    segment = pack_segment(option, samples, entries, relaxations, numbers)
    is_chosen, levels = np.zeros(losses.shape[1], dtype=np.uint8), np.empty(losses.shape[1])
    pointers = losses.ctypes.data, most_chosen, loosest_us, is_chosen.ctypes.data
    if kernels.tightest_rows(segment.address, *pointers, levels.ctypes.data):
        raise MemoryError
    return is_chosen.astype(bool), levels


def compiled_deadline_costs(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: Packed,
) -> tuple[Array, Array]:
    """Return deadlines and rewards by branch of `deadline_costs`, those that meet all demands.

    Bins with fewer of them have infinite ones behind these.
    """
    pairs = zip(option.branch_tables, entries, strict=True)
    most = sum(len(table.us) * (1 if entry.plain is None else 2) for table, entry in pairs)
    bins, rows = len(entries[0].us), relaxations.arrays[-1].shape[1]
    deadlines, rewards = np.empty((bins, most)), np.empty((len(entries), rows, bins, most))
    numbers = integers(np.arange(bins))
    segment = pack_segment(option, option.packed_tables, entries, relaxations, numbers)
    pointers = deadlines.ctypes.data, rewards.ctypes.data
    columns = kernels.deadline_costs(segment.address, most, *pointers)
    if columns < 0:
        raise MemoryError
    return deadlines[:, :columns], rewards[..., :columns]


def compiled_candidate_pairs(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    relaxations: Packed,
    slack_us: float,
    most: int,
) -> tuple[tuple[Array, ...] | None, float]:
    """Return `candidate_combinations` of two branches of which no options dominate others."""
    most = min(most, math.prod(len(table.us) for table in option.branch_tables))
    options, left_out_us = np.empty((2, most), dtype=np.int64), ctypes.c_double(np.inf)
    segment = pack_segment(
        option, option.packed_tables, entries, relaxations, integers(np.zeros(1))
    )
    outputs = options.ctypes.data, ctypes.byref(left_out_us)
    count = kernels.candidate_pairs(segment.address, slack_us, most, *outputs)
    if count < 0:
        raise MemoryError
    return (options[0, :count], options[1, :count]) if count else None, left_out_us.value
