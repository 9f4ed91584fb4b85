"""Fields of protobuf messages, read by a schema and without a library.

Stricter than protobuf: a field that the schema lacks, or a single one that comes twice, is refused,
so that no later reader can see another message than this one did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from nnstretch.errors import one_line

MAX_INTEGERS = 1 << 20
"""Of one field that is read number by number; weights are counted and not read."""


class Kind(Enum):
    """What a field holds, and whether it may come again."""

    INTEGER = "integer"
    INTEGERS = "integers"
    FIXED = "fixed"
    """Floats, which are skipped."""
    BYTES = "bytes"
    """Bytes, text or a message."""
    REPEATED_BYTES = "repeated bytes"
    PACKED = "packed"
    """Many numbers in one piece."""


Schema = Mapping[int, tuple[str, Kind]]
WIRES = {
    Kind.INTEGER: (0,),
    Kind.INTEGERS: (0, 2),
    Kind.FIXED: (2, 5),
    Kind.BYTES: (2,),
    Kind.REPEATED_BYTES: (2,),
    Kind.PACKED: (2,),
}
"""Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes."""
FIXED_BYTES = {1: 8, 5: 4}
SINGLE = (Kind.INTEGER, Kind.BYTES, Kind.PACKED)


@dataclass(slots=True)
class ProtoMessage:
    """A message's fields by name; what it does not hold is absent."""

    what: str
    integers: dict[str, list[int]] = field(default_factory=dict)
    """As signed 64-bit numbers."""
    pieces: dict[str, list[memoryview]] = field(default_factory=dict)

    def integer(self, name: str, default: int = 0) -> int:
        """Return a single number."""
        return self.integers.get(name, [default])[0]

    def piece(self, name: str) -> memoryview:
        """Return a single field's bytes, empty where it is absent."""
        return self.pieces.get(name, [memoryview(b"")])[0]

    def text(self, name: str) -> str:
        """Return a single field as text. Raises ValueError when it is no UTF-8."""
        return as_text(self.piece(name), f"{name} of {self.what}")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a repeated field as texts. Raises ValueError when one is no UTF-8."""
        where = f"{name} of {self.what}"
        return tuple(as_text(piece, where) for piece in self.pieces.get(name, ()))

    def holds(self, name: str) -> bool:
        """Return whether a field is present."""
        return name in self.integers or name in self.pieces


def as_text(data: memoryview, what: str) -> str:
    """Decode UTF-8. Raises ValueError naming `what` otherwise."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}, it is no text ({error.reason})") from None


def read_message(data: memoryview, schema: Schema, what: str) -> ProtoMessage:
    """Read a message's fields. Raises ValueError for anything the schema does not allow."""
    message = ProtoMessage(what)
    for number, wire, value in read_fields(data, what):
        if number not in schema:
            raise ValueError(f"{what}, unknown field {number}")
        name, kind = schema[number]
        if wire not in WIRES[kind]:
            raise ValueError(f"{what}, {name} has wire type {wire}")
        if kind in SINGLE and message.holds(name):
            raise ValueError(f"{what}, {name} is there twice")
        if isinstance(value, int):
            message.integers.setdefault(name, []).append(value)
        elif kind is Kind.INTEGERS:
            message.integers.setdefault(name, []).extend(read_integers(value, what))
        else:
            message.pieces.setdefault(name, []).append(value)
        if len(message.integers.get(name, ())) > MAX_INTEGERS:
            raise ValueError(f"{what}, {name} of more than {MAX_INTEGERS} numbers")
    return message


def read_fields(data: memoryview, what: str) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield number, wire type and value of each field. Raises ValueError where bytes end early."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at, what)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = read_varint(data, at, what)
            yield number, wire, signed(value)
            continue
        if wire == 2:
            size, at = read_varint(data, at, what)
        elif wire in FIXED_BYTES:
            size = FIXED_BYTES[wire]
        else:
            raise ValueError(f"{what}, no protobuf, wire type {wire} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"{what}, {size} bytes at byte {at} of {len(data)}, it is cut off")
        yield number, wire, data[at : at + size]
        at += size


def read_varint(data: memoryview, at: int, what: str) -> tuple[int, int]:
    """Return a number of up to ten bytes and where the next begins. Raises ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"{what}, it ends within a number at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise ValueError(f"{what}, a number of more than ten bytes at byte {at}")


def read_integers(data: memoryview, what: str) -> Iterator[int]:
    """Yield packed numbers. Raises ValueError where one is cut off, or for too many bytes."""
    if len(data) > 10 * MAX_INTEGERS:
        raise ValueError(f"{what}, {len(data)} bytes of numbers")
    at = 0
    while at < len(data):
        value, at = read_varint(data, at, what)
        yield signed(value)


def signed(value: int) -> int:
    """Return 64 bits as a signed number."""
    return value - (1 << 64) if value >> 63 else value


def shorten_name(name: str) -> str:
    """Return a name of a file for a message: quoted, on one line, at most 80 characters."""
    return repr(one_line(name[:80]))
