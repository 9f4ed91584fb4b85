"""The weights of a program as one file: names, shapes, offsets and data that C++ maps.

The layout stands in cpp/include/nnstretch/weights.hpp.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MAGIC = b"NNSTRWTS"
VERSION = 1
HEADER_BYTES = 96
ALIGNMENT_BYTES = 64


def write_weights(path: Path, weights: Mapping[str, np.ndarray], fingerprint: bytes) -> None:
    """Write float32 tensors; equal tensors are written once.

    `fingerprint`: 32 bytes of the network that they belong to.
    """
    arrays = {name: np.asarray(array, np.float32, order="C") for name, array in weights.items()}
    table_bytes = sum(entry_bytes(name, array) for name, array in arrays.items())
    offsets, file_bytes = place_tensors(arrays, HEADER_BYTES + table_bytes)
    data = bytearray(file_bytes)
    table = b"".join(entry(name, array, offsets[name]) for name, array in arrays.items())
    data[HEADER_BYTES : HEADER_BYTES + table_bytes] = table
    for name, array in arrays.items():
        data[offsets[name] : offsets[name] + array.nbytes] = array.astype("<f4").tobytes()
    digest = hashlib.sha256(memoryview(data)[HEADER_BYTES:]).digest()
    data[:HEADER_BYTES] = (
        MAGIC
        + struct.pack("<IIQQ", VERSION, len(arrays), table_bytes, file_bytes)
        + fingerprint
        + digest
    )
    path.write_bytes(data)


def place_tensors(arrays: Mapping[str, np.ndarray], start: int) -> tuple[dict[str, int], int]:
    """Return the offset of every tensor in bytes, and the bytes of the file."""
    offsets: dict[str, int] = {}
    known: dict[tuple[tuple[int, ...], bytes], int] = {}
    end = start
    for name, array in arrays.items():
        key = (array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in known:
            known[key] = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            end = known[key] + array.nbytes
        offsets[name] = known[key]
    return offsets, end


def entry_bytes(name: str, array: np.ndarray) -> int:
    """Return the bytes of a tensor's row in the table."""
    return 4 + len(name.encode()) + 4 + 8 * array.ndim + 8


def entry(name: str, array: np.ndarray, offset: int) -> bytes:
    """Return a tensor's row in the table."""
    encoded = name.encode()
    sizes = struct.pack(f"<I{array.ndim}Q", array.ndim, *array.shape)
    return struct.pack("<I", len(encoded)) + encoded + sizes + struct.pack("<Q", offset)
