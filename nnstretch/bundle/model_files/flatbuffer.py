"""Tables and vectors of a flatbuffer, every offset of which is checked before it is followed.

Source: the internals page of FlatBuffers. All numbers are little-endian; a table begins with the
distance back to its vtable, which holds the place of each field in the table, 0 where it is absent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_ITEMS = 1 << 20
"""Of a vector that is read item by item."""
NUMBERS = {"b": 1, "B": 1, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
"""Formats of `struct` and their bytes."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector's place in the file."""

    data: memoryview
    start: int
    items: int


@dataclass(frozen=True, slots=True)
class Table:
    """A table's place in the file."""

    data: memoryview
    start: int
    fields: tuple[int, ...]
    """Where each field is, counted from the table's start; 0 where it is absent."""
    size_bytes: int
    what: str

    def number(self, slot: int, form: str, default: int = 0) -> int:
        """Return a number. Raises ValueError where it lies outside its table."""
        place = self._place(slot, NUMBERS[form])
        return default if place is None else read_number(self.data, place, form, self.what)

    def vector(self, slot: int, item_bytes: int) -> Vector:
        """Return a vector, empty where there is none. Raises ValueError outside the file."""
        place = self._place(slot, 4)
        if place is None:
            return Vector(self.data, 0, 0)
        start = follow(self.data, place, self.what)
        items = read_number(self.data, start, "I", self.what)
        if items * item_bytes > len(self.data) - start - 4:
            raise ValueError(
                f"{self.what}, {items} items at byte {start} of {len(self.data)}, cut off"
            )
        return Vector(self.data, start + 4, items)

    def numbers(self, slot: int, form: str) -> tuple[int, ...]:
        """Return a vector of integers. Raises ValueError outside the file, or for too many."""
        vector = self.vector(slot, NUMBERS[form])
        _check_count(vector, self.what)
        return struct.unpack_from(f"<{vector.items}{form}", self.data, vector.start)

    def text(self, slot: int, most: int = MAX_ITEMS) -> bytes:
        """Return a text's bytes, the first `most` of them. Raises ValueError outside the file."""
        vector = self.vector(slot, 1)
        return bytes(self.data[vector.start : vector.start + min(vector.items, most)])

    def table(self, slot: int, what: str) -> Table | None:
        """Return a table, or None where there is none. Raises ValueError outside the file."""
        place = self._place(slot, 4)
        if place is None:
            return None
        return table_at(self.data, follow(self.data, place, self.what), what)

    def tables(self, slot: int, what: str) -> tuple[Table, ...]:
        """Return a vector of tables. Raises ValueError outside the file, or for too many."""
        vector = self.vector(slot, 4)
        _check_count(vector, self.what)
        tables: list[Table] = []
        for index in range(vector.items):
            place = vector.start + 4 * index
            tables.append(table_at(self.data, follow(self.data, place, self.what), what))
        return tuple(tables)

    def _place(self, slot: int, size_bytes: int) -> int | None:
        offset = self.fields[slot] if slot < len(self.fields) else 0
        if offset == 0:
            return None
        if not 4 <= offset <= self.size_bytes - size_bytes:
            raise ValueError(f"{self.what}, field {slot} at byte {offset} of {self.size_bytes}")
        return self.start + offset


def root_table(data: memoryview, identifier: bytes, what: str) -> Table:
    """Return the root. Raises ValueError where the file is of another kind."""
    if len(data) < 8 or bytes(data[4:8]) != identifier:
        raise ValueError(f"{what}, no flatbuffer of kind {identifier.decode()}")
    return table_at(data, follow(data, 0, what), what)


def table_at(data: memoryview, start: int, what: str) -> Table:
    """Return the table at a byte of the file. Raises ValueError for a broken vtable."""
    vtable = start - read_number(data, start, "i", what)
    vtable_bytes = read_number(data, vtable, "H", what)
    table_bytes = read_number(data, vtable + 2, "H", what)
    ends = (vtable + vtable_bytes, start + table_bytes)
    if max(ends) > len(data) or vtable_bytes < 4 or vtable_bytes % 2 or table_bytes < 4:
        raise ValueError(f"{what}, its table at byte {start} is broken")
    fields = struct.unpack_from(f"<{vtable_bytes // 2 - 2}H", data, vtable + 4)
    return Table(data, start, fields, table_bytes, what)


def follow(data: memoryview, place: int, what: str) -> int:
    """Return where an offset leads. Raises ValueError outside the file; it never leads back."""
    target = place + read_number(data, place, "I", what)
    if not place < target <= len(data) - 4:
        raise ValueError(f"{what}, the offset at byte {place} leads to {target} of {len(data)}")
    return target


def read_number(data: memoryview, place: int, form: str, what: str) -> int:
    """Return a number at a byte. Raises ValueError outside the file."""
    if not 0 <= place <= len(data) - NUMBERS[form]:
        raise ValueError(f"{what}, byte {place} of {len(data)}, cut off")
    value: int = struct.unpack_from(f"<{form}", data, place)[0]
    return value


def _check_count(vector: Vector, what: str) -> None:
    if vector.items > MAX_ITEMS:
        raise ValueError(f"{what}, {vector.items} items, limit {MAX_ITEMS}")
