"""The shared library of the search's inner loops, and its structures."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, BranchTable

LIBRARY = Path(__file__).with_name("kernels.so")
SOURCES = Path(__file__).parent
POINTER = ctypes.c_void_p
SIZE = ctypes.c_int64
REAL = ctypes.c_double
RELAXED = (POINTER, POINTER, POINTER, POINTER, SIZE, POINTER)
"""An option, entries, minorants, prices, and numbers of relaxations."""


@cache
def load_kernels() -> ctypes.CDLL | None:
    """Return the library; None where there is none, or one for another machine or source."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        text = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]")))
        library.kernels_version.restype = ctypes.c_uint32
        if library.kernels_version() != zlib.crc32(text):
            return None
    except (OSError, AttributeError):
        return None
    library.option_bound.argtypes = [*(POINTER,) * 7, SIZE, POINTER, POINTER]
    library.option_bound.restype = SIZE
    library.best_relaxations.argtypes = [*(POINTER,) * 5, SIZE, POINTER, POINTER]
    library.best_relaxations.restype = SIZE
    library.deadline_costs.argtypes = [*RELAXED, SIZE, SIZE, POINTER, POINTER]
    library.deadline_costs.restype = SIZE
    library.admissible_combinations.argtypes = [
        *(POINTER, POINTER, POINTER, SIZE, POINTER, POINTER, POINTER, SIZE, SIZE, SIZE),
        *(POINTER, POINTER),
    ]
    library.admissible_combinations.restype = SIZE
    library.join_branches.argtypes = [*(POINTER,) * 3, SIZE, POINTER, POINTER]
    library.join_branches.restype = SIZE
    library.pairs_below.argtypes = [SIZE, SIZE, SIZE, POINTER, POINTER, REAL, POINTER, POINTER]
    library.pairs_below.restype = SIZE
    library.pareto_rows.argtypes = [SIZE, SIZE, POINTER, POINTER, POINTER, POINTER]
    library.pareto_rows.restype = None
    return library


def pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    """Return fields of a structure."""
    return tuple((name, POINTER) for name in names)


def numbers(*names: str) -> tuple[tuple[str, Any], ...]:
    """Return fields of a structure."""
    return tuple((name, REAL) for name in names)


def counts(*names: str) -> tuple[tuple[str, Any], ...]:
    """Return fields of a structure."""
    return tuple((name, SIZE) for name in names)


class BranchTableStruct(ctypes.Structure):
    """`BranchTable` of kernels.h."""

    _fields_ = (
        *counts("options"),
        *pointers("adapted_us", "plain_us", "copy_out_us"),
        *pointers("macs", "params", "channels_out", "first"),
    )


class EntryBinsStruct(ctypes.Structure):
    """`EntryBins` of kernels.h: every table of both kinds."""

    _fields_ = (
        *counts("columns"),
        *((name, POINTER * 2) for name in ("us", "macs", "params")),
        *pointers("spans"),
        *numbers("tilt_us", "tilt_macs", "tilt_params"),
    )


class SegmentOptionStruct(ctypes.Structure):
    """`SegmentOption` of kernels.h, with its bounds."""

    _fields_ = (
        *counts("branches"),
        *pointers("tables", "copy_in_us", "copy_in_us_per_kib"),
        *numbers("communication_us", "branch_us", "main_macs", "macs"),
        *numbers("channel_bytes_in", "sync_us", "merge_us", "merge_us_per_channel"),
        *numbers("macs_per_us", "original_width", "meetings"),
        *counts("is_projected", "is_last"),
    )


class MinorantsStruct(ctypes.Structure):
    """`Minorants` of kernels.h."""

    _fields_ = (*counts("lines"), *pointers("slopes", "bases"), *numbers("at_full"))


class PricesStruct(ctypes.Structure):
    """`Prices` of kernels.h."""

    _fields_ = (
        *numbers("per_mac", "per_param", "per_meeting"),
        *counts("mac_shares", "width_shares"),
        *pointers("mac_share", "width_share"),
    )


class ChoiceStruct(ctypes.Structure):
    """`Choice` of kernels.h."""

    _fields_ = (*counts("most_sampled", "most_together"), *numbers("loosest_us"))


class NetworkLimitsStruct(ctypes.Structure):
    """`NetworkLimits` of kernels.h."""

    _fields_ = (
        *numbers("min_macs", "max_macs", "min_params"),
        *counts("holders"),
        *pointers("max_held"),
    )


class CompletionsStruct(ctypes.Structure):
    """`Completions` of kernels.h."""

    _fields_ = (
        *counts("prices"),
        *pointers("per_mac", "per_param", "per_meeting"),
        *counts("widths"),
        *pointers("merged_widths", "left_us"),
    )


class CombinationsStruct(ctypes.Structure):
    """`Combinations` of admissible.c."""

    _fields_ = (
        *counts("most", "branches", "holders", "prices"),
        *pointers("latency_us", "macs", "params", "width", "held", "after_us", "options"),
    )


class JoinableStruct(ctypes.Structure):
    """`Joinable` of branch_join.c."""

    _fields_ = (
        *counts("count"),
        *pointers("us", "remaining_us", "reward_us", "macs", "largest_macs", "params"),
        *pointers("copies_us", "channels_out", "by_latency"),
    )


class JoinRulesStruct(ctypes.Structure):
    """`JoinRules` of branch_join.c."""

    _fields_ = (
        *numbers("slack_us", "rounding_us", "communication_us", "main_macs", "macs"),
        *numbers("sync_us", "merge_us", "merge_us_per_channel"),
        *counts("least_width_behind", "most_width_behind", "is_last", "drops_dominated"),
        *counts("needs_macs", "limits_macs", "needs_params"),
    )


class CutStruct(ctypes.Structure):
    """`Cut` of kernels.h."""

    _fields_ = (
        *counts("widths", "bins", "full_width", "full_bin"),
        *pointers("starts", "missing"),
    )


@dataclass(frozen=True)
class Packed:
    """A structure, and the arrays that it points to."""

    struct: ctypes.Structure
    arrays: tuple[Any, ...]

    @property
    def address(self) -> int:
        """Return the address of the structure."""
        return ctypes.addressof(self.struct)


def doubles(values: Array) -> Array:
    """Return values as the library reads them."""
    return np.ascontiguousarray(values, dtype=np.float64)


def integers(values: Array) -> Array:
    """Return whole numbers as the library reads them."""
    return np.ascontiguousarray(values, dtype=np.int64)


def row_addresses(table: Array) -> range:
    """Return where each row of a contiguous table begins, faster than row by row."""
    at, row_bytes = table.ctypes.data, max(1, table.strides[0])
    return range(at, at + row_bytes * len(table), row_bytes)


def pointer_pair(arrays: Sequence[Array]) -> Any:
    """Return pointers to one array or two; the second is null where there is none."""
    return (POINTER * 2)(*(array.ctypes.data for array in arrays))


def addresses(packed: Sequence[Packed]) -> Any:
    """Return an array of pointers to structures."""
    return (POINTER * len(packed))(*(pack.address for pack in packed))


def pack_table(table: BranchTable) -> Packed:
    """Return a branch's options for the library."""
    times_us = table.adapted_us, table.plain_us, table.copy_out_us
    columns = [doubles(column) for column in (*times_us, table.macs, table.params)]
    columns += [integers(table.channels_out), integers(table.first)]
    addresses_of = [column.ctypes.data for column in columns]
    return Packed(BranchTableStruct(len(table.us), *addresses_of), tuple(columns))
