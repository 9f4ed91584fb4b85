"""JSON and YAML of strangers, decoded strictly as frozen dataclasses.

A type says all that a file may hold: fields and their kinds by the dataclass, limits by annotations
(`Annotated[int, Range(1, 4096)]`, `Annotated[tuple[float, ...], Length(1, 100)]`); a key that is no
name in Python is a field's metadata (`file_key`). Nothing is converted but whole numbers where a
float is needed; NaN, infinities, whole numbers of more than 64 bits, booleans as numbers and keys
that YAML leaves blank are refused. Depth is bounded by the type, size by the reader before anything
is parsed (files/read.py).

It is our own because msgspec 0.22 ignores unknown keys of dataclasses, lets NaN of YAML and equal
keys through, and names neither the value nor a table's key, and cattrs 26.2 converts silently.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nnstretch.errors import NnstretchError, closest, one_line
from nnstretch.files.limits import BLANK, REQUIRED, Length, Limit, OneOf, shorten

Decoder = Callable[[Any], Any]
TOLERANT = "__tolerant__"
LARGEST_WHOLE = (1 << 64) - 1
"""Whole numbers beyond it are no counts, sizes or seeds of anything."""
Kind = TypeVar("Kind")


class Fault(ValueError):
    """Value that its type does not admit, with its path below the root."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path}, {why}")
        self.path = path
        self.why = why

    def below(self, step: str) -> Fault:
        """Return the same fault as seen from the container."""
        return Fault(self.why, step + self.path)


def tolerant(kind: type[Kind]) -> type[Kind]:
    """Mark a dataclass as a view: keys that it lacks are ignored, null reads like an absent key."""
    setattr(kind, TOLERANT, True)
    return kind


def require_format(value: Any, formats: tuple[int, ...]) -> int:
    """Return the `format` of a file. Raises ValueError for one that is not among `formats`.

    Comes before all else: a file of a later version has other keys.
    """
    readable = " and ".join(map(str, formats))
    if type(value) is not dict:
        raise ValueError(f"{shorten(value)} is {type(value).__name__}, expected dict")
    if "format" not in value:
        raise ValueError(f"key 'format' is missing, this version reads format {readable}")
    version = value["format"]
    if type(version) is not int or version not in formats:
        raise ValueError(f"unknown format {shorten(version)}, this version reads format {readable}")
    return int(version)


def decode(kind: Any, value: Any, where: str) -> Any:
    """Decode JSON `value` as the type `kind`.

    A dataclass, tuple[X, ...], tuple[X, Y], dict[K, X], a union of kinds that JSON can tell apart,
    int, float, str, bool or Literal texts, each of them with limits where it is Annotated; `object`
    is any JSON.

    Raises ValueError `PATH OF THE FAULT, WHY`, whose path begins with `where`.
    """
    try:
        # The entry of a long list has a name of its own, which a record does not use.
        if _is_record(kind):
            return _record(kind)(value)
        return _decoder(kind, where.rpartition(".")[2])(value)
    except Fault as fault:
        raise ValueError(f"{where}{fault.path}, {fault.why}") from None


def check_fields(settings: Any, where: str) -> None:
    """Check the fields of a dataclass as if a file had held them, but those of dataclasses.

    Raises ValueError `PATH OF THE FAULT, WHY`, whose path begins with `where`.
    """
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        if not is_dataclass(hint):
            decode(hint, getattr(settings, name), f"{where}{name}")


@cache
def _decoder(kind: Any, name: str) -> Decoder:
    """Return the function that decodes a kind; `name` is the field's, for messages."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        return _limited(_decoder(arguments[0], name), arguments[1:], name)
    if _is_record(kind):
        return _record(kind)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _sequence(_decoder(arguments[0], name))
        return _fixed_sequence(tuple(_decoder(item, name) for item in arguments))
    if origin is dict:
        return _table(arguments[0], _decoder(arguments[1], name))
    if origin is Literal:
        return _limited(_exactly(str), (OneOf(arguments),), name)
    if origin in (types.UnionType, Union):
        return _union({_json_type(arm): _decoder(arm, name) for arm in arguments})
    if kind is object:
        return _unchanged
    if kind is int:
        return _whole
    return _float if kind is float else _exactly(kind)


def _unchanged(value: Any) -> Any:
    return value


def _exactly(*kinds: type) -> Decoder:
    def decode_value(value: Any) -> Any:
        if type(value) not in kinds:
            raise _wrong_type(value, *kinds)
        return value

    return decode_value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _wrong_type(value, int)
    if abs(value) > LARGEST_WHOLE:
        raise Fault(f"{shorten(value)} is out of range, needed are at most 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) is int and abs(value) <= 1 << 53:
        return float(value)
    if type(value) is not float:
        raise _wrong_type(value, float)
    if not isfinite(value):
        raise Fault(f"{value} is not finite")
    return value


def _limited(inner: Decoder, limits: tuple[Limit, ...], name: str) -> Decoder:
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


def _sequence(inner: Decoder) -> Decoder:
    def decode_items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, list)
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item))
        except Fault as fault:
            raise fault.below(f"[{len(items)}]") from None
        return tuple(items)

    return decode_items


def _fixed_sequence(inner: tuple[Decoder, ...]) -> Decoder:
    def decode_items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_type(value, list)
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


def _table(key_kind: Any, inner: Decoder) -> Decoder:
    annotated = get_origin(key_kind) is Annotated
    limits: tuple[Limit, ...] = get_args(key_kind)[1:] if annotated else ()
    key_kind = get_args(key_kind)[0] if annotated else key_kind

    def decode_table(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _wrong_type(value, dict)
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


def _union(arms: dict[type, Decoder]) -> Decoder:
    expected = tuple(arms)
    if float in arms:
        arms.setdefault(int, arms[float])

    def decode_arm(value: Any) -> Any:
        if (arm := arms.get(type(value))) is None:
            raise _wrong_type(value, *expected)
        return arm(value)

    return decode_arm


def _json_type(kind: Any) -> type:
    """Return the Python type by which JSON of this kind is told from others."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _json_type(get_args(kind)[0])
    if origin is Literal:
        return str
    if is_dataclass(kind) or origin is dict:
        return dict
    plain: type = list if origin is tuple else kind
    return plain


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind)


@cache
def _record(kind: Any) -> Decoder:
    """Return the decoder of a dataclass; what its constructor refuses is a fault as well."""
    hints = get_type_hints(kind, include_extras=True)
    known = [field for field in fields(kind) if field.init]
    keys = {field.metadata.get("key", field.name): field.name for field in known}
    inner = {key: _decoder(hints[name], key) for key, name in keys.items()}
    required = [key for key, field in zip(keys, known, strict=True) if _is_required(field)]

    def decode_record(value: Any) -> Any:
        if hasattr(kind, TOLERANT) and type(value) is dict:
            value = {key: value[key] for key in inner if value.get(key) is not None}
        _require_keys(kind.__name__, value, list(inner), required)
        values: dict[str, Any] = {}
        for key, item in value.items():
            try:
                values[keys[key]] = inner[key](item)
            except Fault as fault:
                raise fault.below(f".{key}") from None
        try:
            return kind(**values)
        except (ValueError, NnstretchError) as error:
            raise Fault(str(error)) from None

    return decode_record


def _is_required(field: Field[Any]) -> bool:
    return field.metadata == REQUIRED or field.default is field.default_factory is MISSING


def _require_keys(name: str, value: Any, known: list[str], required: list[str]) -> None:
    if type(value) is not dict:
        raise _wrong_type(value, dict)
    if unknown := [key for key in value if key not in known]:
        near = closest(unknown[0][:40], known) if isinstance(unknown[0], str) else ""
        raise Fault(f"unknown key {shorten(unknown[0])}, {name} has {', '.join(known)}{near}")
    if missing := [key for key in required if key not in value]:
        raise Fault(f"key {missing[0]!r} is missing")


def _wrong_type(value: Any, *kinds: type) -> Fault:
    expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    if value is BLANK:
        return Fault(f"the key is left blank, expected {expected.removesuffix(' or None')}")
    shown = value[:40] if isinstance(value, str) else shorten(value)
    return Fault(f"{shown!r} is {type(value).__name__}, expected {expected}")
