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
SOURCE = Path(__file__).with_name("kernels.c")
POINTER = ctypes.c_void_p
SIZE = ctypes.c_int64


@cache
def load_kernels() -> ctypes.CDLL | None:
    """Return the library; None where there is none, or one for another machine or source."""
    try:
        library, version = ctypes.CDLL(str(LIBRARY)), zlib.crc32(SOURCE.read_bytes())
        library.kernels_version.restype = ctypes.c_uint32
        if library.kernels_version() != version:
            return None
    except (OSError, AttributeError):
        return None
    library.segment_bound.argtypes = [POINTER, POINTER, POINTER, POINTER]
    library.deadline_costs.argtypes = [POINTER, SIZE, POINTER, POINTER]
    library.deadline_costs.restype = SIZE
    library.tightest_rows.argtypes = [POINTER, POINTER, SIZE, ctypes.c_double, POINTER, POINTER]
    library.candidate_pairs.argtypes = [POINTER, ctypes.c_double, SIZE, POINTER, POINTER]
    library.candidate_pairs.restype = SIZE
    library.pairs_below.argtypes = [SIZE, SIZE, SIZE, POINTER, POINTER, ctypes.c_double, POINTER]
    library.pairs_below.restype = SIZE
    library.pareto_rows.argtypes = [SIZE, SIZE, POINTER, POINTER, POINTER, POINTER]
    library.pareto_rows.restype = None
    return library


class BranchTableStruct(ctypes.Structure):
    """`BranchTable` of kernels.c."""

    _fields_ = (
        ("options", SIZE),
        *((name, POINTER) for name in ("adapted_us", "plain_us", "macs", "params")),
        *((name, POINTER) for name in ("channels_out", "first")),
    )


class EntryBinsStruct(ctypes.Structure):
    """`EntryBins` of kernels.c: every table of both kinds."""

    _fields_ = (
        ("columns", SIZE),
        *((name, POINTER * 2) for name in ("us", "macs", "params")),
        ("spans", POINTER),
        ("tilt_us", ctypes.c_double),
    )


class SegmentBoundsStruct(ctypes.Structure):
    """`SegmentBounds` of kernels.c."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("branch_us", "main_macs", "macs"))


class RelaxationsStruct(ctypes.Structure):
    """`Relaxations` of kernels.c."""

    _fields_ = (
        *((name, SIZE) for name in ("rows", "cases")),
        *((name, POINTER) for name in ("per_mac", "per_channel")),
        ("per_param", ctypes.c_double),
        ("offsets_us", POINTER),
    )


class SegmentStruct(ctypes.Structure):
    """`Segment` of kernels.c."""

    _fields_ = (
        *((name, SIZE) for name in ("branches", "bins")),
        *((name, POINTER) for name in ("tables", "entries", "bounds", "relaxations", "numbers")),
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


def pointer_pair(arrays: Sequence[Array]) -> Any:
    """Return pointers to one array or two; the second is null where there is none."""
    return (POINTER * 2)(*(array.ctypes.data for array in arrays))


def addresses(packed: Sequence[Packed]) -> Any:
    """Return an array of pointers to structures."""
    return (POINTER * len(packed))(*(pack.address for pack in packed))


def pack_table(table: BranchTable) -> Packed:
    """Return a branch's options for the library."""
    columns = [doubles(us) for us in (table.adapted_us, table.plain_us, table.macs, table.params)]
    columns += [integers(table.channels_out), integers(table.first)]
    pointers = [column.ctypes.data for column in columns]
    return Packed(BranchTableStruct(len(table.us), *pointers), tuple(columns))
