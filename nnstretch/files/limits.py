"""Limits of a decoded value, as annotations of its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from reprlib import Repr
from types import MappingProxyType
from typing import Annotated, Any, Protocol
from unicodedata import category

from nnstretch.errors import one_line

REQUIRED = MappingProxyType({"required": True})
"""Metadata of a field that a file must hold although the class has a default for it."""


def file_key(key: str) -> Mapping[str, str]:
    """Return the metadata of a field that files know under a key which is no name in Python."""
    return MappingProxyType({"key": key})


class Blank:
    """Value of a key that a YAML file leaves blank; no type admits it, not even None's."""

    def __repr__(self) -> str:
        return "blank"


BLANK = Blank()


class Limit(Protocol):
    """What an annotation demands of a value."""

    def defect(self, value: Any, name: str) -> str | None:
        """Return why the value of the field `name` is refused, or None."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` to `most`, more than `above` and less than `below`."""

    least: float = -inf
    most: float = inf
    below: float = inf
    above: float = -inf

    def defect(self, value: Any, name: str) -> str | None:
        """Return why a number is out of range, or None."""
        inside = self.least <= value <= self.most
        if inside and (value < self.below or self.below == inf) and value > self.above:
            return None
        return f"{shorten(value)} is out of range, needed is {self}"

    def __str__(self) -> str:
        """Return the limits in words."""
        limits = (
            ("more than", self.above),
            ("at least", self.least),
            ("at most", self.most),
            ("less than", self.below),
        )
        return " and ".join(f"{word} {limit:.12g}" for word, limit in limits if isfinite(limit))


@dataclass(frozen=True, slots=True)
class Length:
    """Lists, tables or texts with `least` to `most` items; checked before the items are."""

    least: int = 0
    most: int = 1000

    def defect(self, value: Any, name: str) -> str | None:
        """Return why a list is too short or too long, or None."""
        if self.least <= len(value) <= self.most:
            return None
        what = "characters" if isinstance(value, str) else "items"
        return f"{len(value)} {what}, needed are {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def defect(self, value: Any, name: str) -> str | None:
        """Return why a word is none of them, or None."""
        if value in self.words:
            return None
        return f"unknown {name} {shorten(value)}, it is one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Only:
    """Values for which `holds` is true; it sees them decoded."""

    holds: Callable[[Any], object]
    needed: str
    """The rule in words."""

    def defect(self, value: Any, name: str) -> str | None:
        """Return why a value breaks the rule, or None."""
        return None if self.holds(value) else f"{shorten(value)}, needed is {self.needed}"


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters; spaces of every width are none."""
    return all(letter.isprintable() or category(letter) == "Zs" for letter in text)


Printable = Annotated[str, Only(is_printable, "text without control characters")]
"""A name that may be empty, and that a terminal shows as it is."""


class ShortRepr(Repr):
    """Representation of a value that is short however large or deep it is."""

    def repr_int(self, value: int, level: int) -> str:
        """Return an integer; Python refuses to print one of thousands of digits."""
        if abs(value) >= 1 << 64:
            return f"an integer of {value.bit_length()} bits"
        return repr(value)


def shorten(value: Any) -> str:
    """Return enough of a value to find it in the file, on one line."""
    short = ShortRepr()
    short.maxlevel = 2
    short.maxstring = 60
    short.maxother = 60
    return one_line(short.repr(value))[:200]
