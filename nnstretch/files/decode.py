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

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nnstretch.errors import NnstretchError, closest
from nnstretch.files.json_kinds import (
    Decoder,
    Fault,
    decode_float,
    decode_whole,
    exactly,
    fixed_sequence_of,
    limited,
    sequence_of,
    table_of,
    unchanged,
    union_of,
    wrong_type,
)
from nnstretch.files.limits import REQUIRED, OneOf, shorten

TOLERANT = "__tolerant__"
Kind = TypeVar("Kind")


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
        return limited(_decoder(arguments[0], name), arguments[1:], name)
    if _is_record(kind):
        return _record(kind)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return sequence_of(_decoder(arguments[0], name))
        return fixed_sequence_of(tuple(_decoder(item, name) for item in arguments))
    if origin is dict:
        return table_of(arguments[0], _decoder(arguments[1], name))
    if origin is Literal:
        return limited(exactly(str), (OneOf(arguments),), name)
    if origin in (types.UnionType, Union):
        return union_of({_json_type(arm): _decoder(arm, name) for arm in arguments})
    if kind is object:
        return unchanged
    if kind is int:
        return decode_whole
    return decode_float if kind is float else exactly(kind)


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
    """Return whether a kind is a dataclass; of a plain bool, mypy infers nothing it cannot hash."""
    return is_dataclass(kind)


@cache
def _record(kind: Any) -> Decoder:
    """Return the decoder of a dataclass; what its constructor refuses is a fault as well."""
    hints = get_type_hints(kind, include_extras=True)
    known = [field for field in fields(kind) if field.init]
    keys = {field.metadata.get("key", field.name): field.name for field in known}
    inner = {key: _decoder(hints[name], key) for key, name in keys.items()}
    required = [key for key, field in zip(keys, known, strict=True) if _is_required(field)]
    least, most, is_tolerant = frozenset(required), inner.keys(), hasattr(kind, TOLERANT)

    def decode_record(value: Any) -> Any:
        if is_tolerant and type(value) is dict:
            value = {key: value[key] for key in inner if value.get(key) is not None}
        if type(value) is not dict or not least <= value.keys() <= most:
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
        raise wrong_type(value, dict)
    if unknown := [key for key in value if key not in known]:
        near = closest(unknown[0][:40], known) if isinstance(unknown[0], str) else ""
        raise Fault(f"unknown key {shorten(unknown[0])}, {name} has {', '.join(known)}{near}")
    if missing := [key for key in required if key not in value]:
        raise Fault(f"key {missing[0]!r} is missing")
