"""JSON of strangers decoded strictly as frozen dataclasses.

A type says all that a file may hold: fields and their kinds by the dataclass, ranges and choices by
annotations (`Annotated[int, Range(1, 4096)]`, `Annotated[str, OneOf(ROLES)]`). Nothing is converted
but whole numbers where a float is needed; NaN, infinities and booleans as numbers are refused.
Depth is bounded by the type, size by the caller before anything is parsed.

Functions here raise ValueError with `PATH OF THE FAULT, WHY`; callers name the file before it.
"""

from __future__ import annotations

import json
import re
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import inf, isfinite
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from nnstretch.errors import closest


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` to `most`, and less than `below`."""

    least: float = -inf
    most: float = inf
    below: float = inf

    def check(self, value: Any, where: str) -> None:
        """Raise ValueError for a number out of range."""
        if not (self.least <= value <= self.most and (value < self.below or self.below == inf)):
            raise ValueError(f"{where}, {_shorten(value)} is out of range, needed is {self}")

    def __str__(self) -> str:
        """Return the limits in words."""
        limits = (("at least", self.least), ("at most", self.most), ("less than", self.below))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if isfinite(limit))


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, value: Any, where: str) -> None:
        """Raise ValueError for a word that is none of them."""
        if value not in self.words:
            raise ValueError(
                f"{where}, unknown {where.rpartition('.')[2]} {_shorten(value)}, it is one of"
                f" {', '.join(self.words)}"
            )


def parse_json(text: bytes) -> Any:
    """Parse JSON without duplicate keys, NaN or depth bombs.

    Raises ValueError when the text is no such JSON.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode(kind: Any, value: Any, where: str) -> Any:
    """Decode JSON `value` as the type `kind`.

    A dataclass, tuple[X, ...], dict[K, X], X | None, X | int, int, float, str or bool, each of them
    with limits where it is Annotated.

    Raises ValueError when the value is not of that type or beyond its limits, with its place.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        decoded = decode(arguments[0], value, where)
        for limit in arguments[1:]:
            limit.check(decoded, where)
        return decoded
    if is_dataclass(kind):
        return _decode_record(kind, value, where)
    if origin is tuple:
        items = _expect(list, value, where)
        return tuple(decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        key_kind, item_kind = arguments
        table = _expect(dict, value, where)
        return {
            _decode_key(key_kind, key, where): decode(item_kind, item, f"{where}.{key[:40]}")
            for key, item in table.items()
        }
    if origin in (types.UnionType, Union):
        whole, plain_kind = arguments
        return value if type(value) is plain_kind else decode(whole, value, where)
    return _decode_scalar(kind, value, where)


def _decode_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 53 else value
    if kind is float and isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{where}, {value} is not finite")
    return _expect(kind, value, where)


def _expect(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:
        raise ValueError(
            f"{where}, {str(value)[:40]!r} is {type(value).__name__}, expected {kind.__name__}"
        )
    return value


def _decode_key(kind: type, key: str, where: str) -> int | str:
    if kind is not int:
        return key
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
        raise ValueError(f"{where}, key {key[:40]!r} is not a count")
    return int(key)


@cache
def _field_kinds(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    table = _expect(dict, value, where)
    kinds, known = _field_kinds(kind), {field.name: field for field in fields(kind)}
    if unknown := sorted(table.keys() - known.keys()):
        raise ValueError(
            f"{where}, unknown key {unknown[0][:40]!r}, {kind.__name__} has {', '.join(known)}"
            f"{closest(unknown[0][:40], list(known))}"
        )
    required = {
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING
    }
    if missing := sorted(required - table.keys()):
        raise ValueError(f"{where}, key {missing[0]!r} is missing")
    return kind(
        **{name: decode(kinds[name], item, f"{where}.{name}") for name, item in table.items()}
    )


def _shorten(value: Any) -> str:
    """Return enough of a value to find it in the file; integers may have thousands of digits."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:60]


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key twice among {sorted(name for name, _ in pairs)}")
    return result


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
