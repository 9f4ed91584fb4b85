"""Fields of a predictor file, read strictly.

Every refusal names the field, the file and what was needed.

An unknown key is refused as loudly as a missing one: a misspelt setting that is ignored costs days.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile

LARGEST_BYTES = 64 * 2**20
"""No predictor comes near; a file beyond it is not read at all."""


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises BrokenFile where there is no file or no JSON in it."""
    try:
        if (size_bytes := path.stat().st_size) > LARGEST_BYTES:
            raise BrokenFile(f"{size_bytes} bytes, {path}, needed are at most {LARGEST_BYTES}")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenFile(f"file is missing, {path}, soc.json names this processor") from None
    except json.JSONDecodeError as error:
        raise BrokenFile(
            f"not JSON, {path} line {error.lineno} column {error.colno}, {error.msg}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenFile(f"cannot be read, {path}, {' '.join(str(error).split())}") from None


def require_format(data: Any, path: Path, formats: Sequence[int]) -> int:
    """Check the format of a file. Raises BrokenFile for another one."""
    format_ = data.get("format") if isinstance(data, dict) else None
    if isinstance(data, dict) and "format" not in data:
        raise BrokenFile(
            f"field 'format' is missing, {path}, this version reads format"
            f" {' and '.join(map(str, formats))}"
        )
    if isinstance(data, dict) and (isinstance(format_, bool) or format_ not in formats):
        raise BrokenFile(
            f"format {format_!r}, {path}, this version reads format"
            f" {' and '.join(map(str, formats))}"
        )
    return format_ if isinstance(format_, int) else formats[-1]


def require_keys(data: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """Return an object with exactly these keys. Raises BrokenFile when a key is missing or
    unknown.
    """
    if not isinstance(data, dict):
        raise BrokenFile(
            f"a {type(data).__name__}, {where}, needed is an object with {', '.join(names)}"
        )
    if missing := [name for name in names if name not in data]:
        raise BrokenFile(f"field {missing[0]!r} is missing, {where}, needed are {', '.join(names)}")
    if unknown := [name for name in data if name not in names]:
        raise BrokenFile(f"field {unknown[0]!r} is unknown, {where}, known are {', '.join(names)}")
    return data


def number(
    data: Mapping[str, Any], key: str, where: str, least: float = 0.0, most: float = math.inf
) -> float:
    """Return a finite number of an object. Raises BrokenFile when it is none, or out of range."""
    if is_number(value := data[key]) and least <= value <= most:
        return float(value)
    limit = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
    raise BrokenFile(f"field {key!r} is {shorten(value)}, {where}, needed is a number of {limit}")


def numbers(
    data: Mapping[str, Any], key: str, where: str, most: int, least: float = -1e300
) -> tuple[float, ...]:
    """Return a list of at most so many finite numbers.

    Raises BrokenFile when it is none, or an entry is out of range.
    """
    entries = items(data, key, where, most)
    if odd := [entry for entry in entries if not is_number(entry) or entry < least]:
        raise BrokenFile(
            f"field {key!r} holds {shorten(odd[0])}, {where}, needed are numbers of at least"
            f" {least:g}"
        )
    return tuple(map(float, entries))


def integer(data: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
    """Return a field that is a whole number. Raises BrokenFile."""
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**53:
        raise BrokenFile(
            f"field {key!r} is {shorten(value)}, {where}, needed is a whole number of at least"
            f" {least}"
        )
    return value


def integers(data: Mapping[str, Any], key: str, where: str, most: int) -> tuple[int, ...]:
    """Return a field that is a list of whole numbers. Raises BrokenFile."""
    entries = items(data, key, where, most)
    if odd := [
        entry
        for entry in entries
        if isinstance(entry, bool) or not isinstance(entry, int) or abs(entry) > 2**53
    ]:
        raise BrokenFile(
            f"field {key!r} holds {shorten(odd[0])}, {where}, needed are whole numbers"
        )
    return tuple(entries)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, neither infinite nor too large to compute with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= 1e300  # false for NaN, and no overflow for integers of any length


def string(data: Mapping[str, Any], key: str, where: str) -> str:
    """Return a field that is a string. Raises BrokenFile."""
    if not isinstance(data[key], str):
        raise BrokenFile(f"field {key!r} is {shorten(data[key])}, {where}, needed is text")
    return str(data[key])


def strings(data: Mapping[str, Any], key: str, where: str, most: int = 1000) -> tuple[str, ...]:
    """Return a field that is a list of strings. Raises BrokenFile."""
    entries = items(data, key, where, most)
    if odd := [entry for entry in entries if not isinstance(entry, str)]:
        raise BrokenFile(f"field {key!r} holds {shorten(odd[0])}, {where}, needed is text")
    return tuple(entries)


def choice(data: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    """Return a field that is one of a few strings. Raises BrokenFile."""
    if data[key] not in allowed:
        raise BrokenFile(
            f"field {key!r} is {shorten(data[key])}, {where}, needed is one of {', '.join(allowed)}"
        )
    return str(data[key])


def flag(data: Mapping[str, Any], key: str, where: str) -> bool:
    """Return a field that is true or false. Raises BrokenFile."""
    if not isinstance(data[key], bool):
        raise BrokenFile(f"field {key!r} is {shorten(data[key])}, {where}, needed is true or false")
    return bool(data[key])


def items(data: Mapping[str, Any], key: str, where: str, most: int = 1000) -> list[Any]:
    """Return a field that is a list. Raises BrokenFile."""
    entries = data[key]
    if not isinstance(entries, list):
        raise BrokenFile(f"field {key!r} is {shorten(entries)}, {where}, needed is a list")
    if len(entries) > most:
        raise BrokenFile(
            f"field {key!r} holds {len(entries)} items, {where}, needed are at most {most}"
        )
    return entries


def shorten(value: Any) -> str:
    """Return enough of a value to find the place in the file, on one line."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        shown = f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
