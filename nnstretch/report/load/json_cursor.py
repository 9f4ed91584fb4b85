"""Reading JSON that others wrote.

Every value is checked where it is read, and a refusal names file and place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NoReturn

from nnstretch.errors import BrokenFile


@dataclass(frozen=True, slots=True)
class JsonCursor:
    """A value and where it stands: `search.json, plans[0].segments[2]`."""

    file: str
    path: str
    value: object

    def broken(self, wanted: str) -> NoReturn:
        """Raise BrokenFile with the file, the path within it and what was expected."""
        shown = json.dumps(self.value, ensure_ascii=True, default=str)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise BrokenFile(
            f"cannot report {self.file}, {self.path or 'top level'} is {shown}, expected {wanted}"
        )

    @property
    def missing(self) -> bool:
        """Return whether nothing stands here."""
        return self.value is None

    def at(self, key: str) -> JsonCursor:
        """Return the value under `key`; an absent key reads like null."""
        if not isinstance(self.value, dict):
            self.broken("an object")
        step = key if key.isidentifier() else json.dumps(key)[:40]
        return JsonCursor(
            self.file, f"{self.path}.{step}" if self.path else step, self.value.get(key)
        )

    def items(self) -> Iterator[JsonCursor]:
        """Yield the elements of a list; an absent list is empty."""
        if self.missing:
            return
        if not isinstance(self.value, list):
            self.broken("a list")
        for number, element in enumerate(self.value):
            yield JsonCursor(self.file, f"{self.path}[{number}]", element)

    def entries(self) -> Iterator[tuple[str, JsonCursor]]:
        """Yield keys and values of an object; an absent object is empty."""
        if self.missing:
            return
        if not isinstance(self.value, dict):
            self.broken("an object")
        for key in self.value:
            yield key, self.at(key)

    def number(self) -> float:
        """Return the finite number here. Raises BrokenFile when it is none."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.broken("a number")
        if not _is_finite(self.value):
            self.broken("a finite number")
        return float(self.value)

    def size(self) -> float:
        """Return a number that cannot be below zero: a time, a count, a share."""
        if (number := self.number()) < 0:
            self.broken("a number of at least 0")
        return number

    def maybe_number(self) -> float | None:
        """Return the number here, None where it is missing. Raises BrokenFile when it is none."""
        return None if self.missing else self.number()

    def maybe_size(self) -> float | None:
        """Return the number of at least 0 here, None where it is missing.

        Raises BrokenFile when it is none.
        """
        return None if self.missing else self.size()

    def maybe_whole(self) -> int | None:
        """Return the whole number here, None where it is missing.

        Raises BrokenFile when it is none.
        """
        if self.missing:
            return None
        if (number := self.size()) != int(number):
            self.broken("a whole number")
        return int(number)

    def text(self) -> str:
        """Return the text here. Raises BrokenFile when it is none."""
        if not isinstance(self.value, str):
            self.broken("text")
        return self.value

    def maybe_text(self) -> str | None:
        """Return the text here, None where it is missing. Raises BrokenFile when it is none."""
        return None if self.missing else self.text()

    def maybe_flag(self) -> bool | None:
        """Return true or false here, None where it is missing.

        Raises BrokenFile when it is neither.
        """
        if not (self.missing or isinstance(self.value, bool)):
            self.broken("true or false")
        return None if self.missing else bool(self.value)

    def texts(self) -> tuple[str, ...]:
        """Return one text, or a list of them; absent is none."""
        return (
            (self.text(),)
            if isinstance(self.value, str)
            else tuple(item.text() for item in self.items())
        )


def _is_finite(number: int | float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:
        return False


def read_text(path: Path) -> str:
    """Read a text file. Raises BrokenFile when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise BrokenFile(f"cannot read {path}, {problem.strerror or 'read failed'}") from problem
    except UnicodeDecodeError as problem:
        raise BrokenFile(f"cannot read {path}, byte {problem.start} is not UTF-8") from problem


def read_json(path: Path) -> JsonCursor:
    """Read a JSON file. Raises BrokenFile when it is not JSON."""
    text = read_text(path)
    try:
        return JsonCursor(str(path), "", json.loads(text))
    except json.JSONDecodeError as problem:
        raise BrokenFile(
            f"cannot read {path}, line {problem.lineno} column {problem.colno}, {problem.msg}, not"
            " JSON"
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise BrokenFile(
            f"cannot read {path}, {problem}, not JSON of a reasonable depth and size"
        ) from problem
