"""Bounds through segment options by compiled loops, where the package has them.

Each function computes what the one that calls it would compute by arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnstretch.soc import Link
from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, channels_missing
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.compiled.library import (
    ChoiceStruct,
    CutStruct,
    Packed,
    SegmentOptionStruct,
    addresses,
    doubles,
    integers,
    pack_table,
)
from nnstretch.stretch.search.options.segment_option import SAMPLE, SegmentOption
from nnstretch.stretch.search.space.search_space import SearchSpace

MOST_TOGETHER = 2
"""Relaxations that bound one width bin together."""
LOOSEST_US = 1e12
"""What stands for an infinite bound in sums."""


def pack_cut(space: SearchSpace, i: int, starts: Array) -> Packed:
    """Return bins of merged widths at a cut."""
    widths, full = space.merged_widths(i), space.merged_row(i, space.original_width(i))
    full_bin = int(np.searchsorted(starts, full))
    ends = integers(np.append(starts, len(widths)))
    missing = doubles(channels_missing(widths, starts))
    shape = len(widths), len(starts), full, full_bin
    return Packed(CutStruct(*shape, ends.ctypes.data, missing.ctypes.data), (ends, missing))


def pack_choice() -> Packed:
    """Return how relaxations are chosen."""
    return Packed(ChoiceStruct(SAMPLE, MOST_TOGETHER, LOOSEST_US), ())


def pack_option(option: SegmentOption) -> Packed:
    """Return a segment option, the same whenever it is asked for."""
    return option.tables.once(("packed option", option.key), lambda: option_struct(option))


def option_struct(option: SegmentOption) -> Packed:
    """Return a segment option."""
    tables = [pack_branch(option, b) for b in range(len(option.processors))]
    pointers, bounds = addresses(tables), option.bounds
    key = "packed copies", option.processors
    copies, copies_at = option.tables.once(key, lambda: pack_copies(option.copies_in))
    struct = SegmentOptionStruct(
        len(tables),
        ctypes.addressof(pointers),
        *copies_at,
        *(bounds.communication_us, bounds.branch_us, bounds.main_macs, bounds.macs),
        *(option.bytes_in, option.sync_us, option.merge_us, option.merge_us_per_channel),
        *(option.macs_per_us, option.space.original_width(option.j), option.meetings),
        *(option.merge == "project", option.is_last),
    )
    return Packed(struct, (tables, pointers, copies))


def pack_copies(links: Sequence[Link]) -> tuple[Array, list[int]]:
    """Return what copies cost, fixed and by size, and where both are."""
    rows = doubles(np.array([(link.fixed_us, link.us_per_kib) for link in links]).T)
    return rows, [row.ctypes.data for row in rows]


def pack_branch(option: SegmentOption, b: int) -> Packed:
    """Return the table of branch b, one for all options that have such a branch."""
    key = "packed table", option.table_key(b)
    return option.tables.once(key, lambda: pack_table(option.branch_tables[b]))


def pack_entries(entries: Sequence[EntryBins]) -> Any:
    """Return pointers to the entries of every branch."""
    structs = [entry.packed for entry in entries]
    return addresses(structs)


def behind_address(option: SegmentOption, values: CostToGo) -> int | None:
    """Return where the minorants behind an option are; None behind the last."""
    return None if option.is_last else values.minorants[option.j].packed.address


def most_rows(option: SegmentOption, values: CostToGo) -> int:
    """Return how many rows a choice of relaxations may have at most."""
    lines = 1 if option.merge == "project" else len(values.minorants[option.j].slopes)
    prices = values.packed_prices.struct
    return lines * (prices.mac_shares + prices.width_shares) + 1


def compiled_option_bound(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    values: CostToGo,
    cut: Packed,
    is_usable: Array,
    rows: Sequence[int],
) -> tuple[Array, list[int]]:
    """Return `bound_option`, and rows of the best relaxations where none are given."""
    by_width = np.empty(len(is_usable))
    chosen = (ctypes.c_int64 * most_rows(option, values))(*rows)
    pointers, choice = pack_entries(entries), pack_choice()
    count = kernels.option_bound(
        pack_option(option).address,
        ctypes.addressof(pointers),
        cut.address,
        behind_address(option, values),
        values.packed_prices.address,
        choice.address,
        is_usable.ctypes.data,
        len(rows),
        ctypes.addressof(chosen),
        by_width.ctypes.data,
    )
    if count < 0:
        raise MemoryError
    return by_width, chosen[:count]


def compiled_best_relaxations(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    values: CostToGo,
    near: Array,
) -> list[int]:
    """Return `best_relaxations`."""
    chosen, bins = (ctypes.c_int64 * most_rows(option, values))(), integers(near)
    pointers, choice = pack_entries(entries), pack_choice()
    count = kernels.best_relaxations(
        pack_option(option).address,
        ctypes.addressof(pointers),
        behind_address(option, values),
        values.packed_prices.address,
        choice.address,
        len(bins),
        bins.ctypes.data,
        ctypes.addressof(chosen),
    )
    if count < 0:
        raise MemoryError
    return chosen[:count]


def relaxed(
    option: SegmentOption, entries: Sequence[EntryBins], values: CostToGo, rows: Sequence[int]
) -> tuple[tuple[Any, ...], Any]:
    """Return what loops need to relax an option in chosen ways, and what it points to."""
    pointers, numbers = pack_entries(entries), (ctypes.c_int64 * len(rows))(*rows)
    asked = (
        pack_option(option).address,
        ctypes.addressof(pointers),
        behind_address(option, values),
        values.packed_prices.address,
        len(rows),
        ctypes.addressof(numbers),
    )
    return asked, (pointers, numbers)


def compiled_deadline_costs(
    kernels: ctypes.CDLL,
    option: SegmentOption,
    entries: Sequence[EntryBins],
    values: CostToGo,
    rows: Sequence[int],
) -> tuple[Array, Array]:
    """Return deadlines and rewards by branch of `deadline_costs`, those that meet all demands.

    Bins with fewer of them have infinite ones behind these.
    """
    pairs = zip(option.branch_tables, entries, strict=True)
    most = sum(len(table.us) * (1 if entry.plain is None else 2) for table, entry in pairs)
    bins = len(entries[0].us)
    deadlines, rewards = np.empty((bins, most)), np.empty((len(entries), len(rows), bins, most))
    asked, _arrays = relaxed(option, entries, values, rows)
    outputs = deadlines.ctypes.data, rewards.ctypes.data
    columns = kernels.deadline_costs(*asked, bins, most, *outputs)
    if columns < 0:
        raise MemoryError
    return deadlines[:, :columns], rewards[..., :columns]
