"""Branches of a segment option joined by compiled loops, where the package has them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.compiled.library import (
    JoinableStruct,
    JoinRulesStruct,
    Packed,
    integers,
    row_addresses,
)
from nnstretch.stretch.search.label_setting.branch_options import BranchOptions


@dataclass(frozen=True)
class Joinable:
    """Options of one branch or of several together, and what is left from their latency on."""

    options: BranchOptions
    remaining_us: Array

    def packed(self) -> tuple[Packed, Array]:
        """Return them for compiled loops, those that earn most first; and their rows."""
        options = self.options
        rows = np.argsort(-options.reward, kind="stable")
        work = options.macs, options.largest_macs, options.params, options.copies_us
        columns = np.array((options.us, self.remaining_us, options.reward, *work)).take(rows, 1)
        by_latency = columns[0].argsort(kind="stable")
        whole = integers(np.array((options.channels_out[rows], by_latency)))
        struct = JoinableStruct(len(rows), *row_addresses(columns), *row_addresses(whole))
        return Packed(struct, (columns, whole)), rows


def join_compiled(
    kernels: ctypes.CDLL, rules: JoinRulesStruct, first: Joinable, second: Joinable, most: int
) -> tuple[Array, Array, float]:
    """Return rows of both sides of the pairs within the slack, and the least bound left out.

    Of more than `most` pairs, those of the least bounds.
    """
    most = min(most, len(first.options) * len(second.options))
    rows, discarded_us = np.empty((2, most), dtype=np.int64), ctypes.c_double(np.inf)
    (packed_first, rows_first), (packed_second, rows_second) = first.packed(), second.packed()
    count = kernels.join_branches(
        ctypes.addressof(rules),
        packed_first.address,
        packed_second.address,
        most,
        rows.ctypes.data,
        ctypes.byref(discarded_us),
    )
    if count < 0:
        raise MemoryError
    return rows_first[rows[0, :count]], rows_second[rows[1, :count]], discarded_us.value
