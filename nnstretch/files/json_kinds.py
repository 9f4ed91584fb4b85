"""Decoders of each kind of JSON value; `files/decode.py` chooses among them by type."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any, get_args, get_origin

from nnstretch.errors import one_line
from nnstretch.files.limits import BLANK, Length, Limit, shorten

Decoder = Callable[[Any], Any]
LARGEST_WHOLE = (1 << 64) - 1
"""Whole numbers beyond it are no counts, sizes or seeds of anything."""


class Fault(ValueError):
    """Value that its type does not admit, with its path below the root."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path}, {why}")
        self.path = path
        self.why = why

    def below(self, step: str) -> Fault:
        """Return the same fault as seen from the container."""
        return Fault(self.why, step + self.path)


def unchanged(value: Any) -> Any:
    """Return any JSON as it is."""
    return value


def exactly(*kinds: type) -> Decoder:
    """Return the decoder of values of exactly these types."""

    def decode_value(value: Any) -> Any:
        if type(value) not in kinds:
            raise wrong_type(value, *kinds)
        return value

    return decode_value


def decode_whole(value: Any) -> int:
    """Decode a whole number of at most 64 bits. Raises Fault."""
    if type(value) is not int:
        raise wrong_type(value, int)
    if abs(value) > LARGEST_WHOLE:
        raise Fault(f"{shorten(value)} is out of range, needed are at most 64 bits")
    return value


def decode_float(value: Any) -> float:
    """Decode a finite number; whole numbers become floats. Raises Fault."""
    if type(value) is int and abs(value) <= 1 << 53:
        return float(value)
    if type(value) is not float:
        raise wrong_type(value, float)
    if not isfinite(value):
        raise Fault(f"{value} is not finite")
    return value


def limited(inner: Decoder, limits: tuple[Limit, ...], name: str) -> Decoder:
    """Return the decoder of values with limits; lengths are checked before anything inside."""
    sizes = [limit for limit in limits if isinstance(limit, Length)]
    others = [limit for limit in limits if not isinstance(limit, Length)]

    def decode_limited(value: Any) -> Any:
        for size in sizes:
            if type(value) in (list, dict, str) and (why := size.defect(value, name)):
                raise Fault(why)
        decoded = inner(value)
        for limit in others:
            if why := limit.defect(decoded, name):
                raise Fault(why)
        return decoded

    return decode_limited


def sequence_of(inner: Decoder) -> Decoder:
    """Return the decoder of a list of any length."""

    def decode_items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong_type(value, list)
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item))
        except Fault as fault:
            raise fault.below(f"[{len(items)}]") from None
        return tuple(items)

    return decode_items


def fixed_sequence_of(inner: tuple[Decoder, ...]) -> Decoder:
    """Return the decoder of a list with one kind at each place."""

    def decode_items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong_type(value, list)
        if len(value) != len(inner):
            raise Fault(f"{len(value)} items, needed are {len(inner)}")
        items: list[Any] = []
        try:
            for decode_item, item in zip(inner, value, strict=True):
                items.append(decode_item(item))
        except Fault as fault:
            raise fault.below(f"[{len(items)}]") from None
        return tuple(items)

    return decode_items


def table_of(key_kind: Any, inner: Decoder) -> Decoder:
    """Return the decoder of a table whose keys are texts or counts."""
    annotated = get_origin(key_kind) is Annotated
    limits: tuple[Limit, ...] = get_args(key_kind)[1:] if annotated else ()
    key_kind = get_args(key_kind)[0] if annotated else key_kind

    def decode_table(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise wrong_type(value, dict)
        table: dict[Any, Any] = {}
        for key, item in value.items():
            decoded_key = _decode_key(key_kind, key)
            for limit in limits:
                if why := limit.defect(decoded_key, "key"):
                    raise Fault(why)
            try:
                table[decoded_key] = inner(item)
            except Fault as fault:
                raise fault.below(f".{one_line(key)[:40]}") from None
        return table

    return decode_table


def _decode_key(kind: type, key: Any) -> int | str:
    if type(key) is not str:
        raise Fault(f"key {shorten(key)} is no text")
    if kind is not int:
        return key
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
        raise Fault(f"key {key[:40]!r} is not a count")
    return int(key)


def union_of(arms: dict[type, Decoder]) -> Decoder:
    """Return the decoder that takes the arm of the value's own type."""
    expected = tuple(arms)
    if float in arms:
        arms.setdefault(int, arms[float])

    def decode_arm(value: Any) -> Any:
        if (arm := arms.get(type(value))) is None:
            raise wrong_type(value, *expected)
        return arm(value)

    return decode_arm


def wrong_type(value: Any, *kinds: type) -> Fault:
    """Return the fault of a value of another type."""
    expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    if value is BLANK:
        return Fault(f"the key is left blank, expected {expected.removesuffix(' or None')}")
    shown = value[:40] if isinstance(value, str) else shorten(value)
    return Fault(f"{shown!r} is {type(value).__name__}, expected {expected}")
