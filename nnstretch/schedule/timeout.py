"""How long a caller is willing to wait, over several waits together; numbers that callers give."""

from __future__ import annotations

import threading
from contextlib import suppress
from math import isnan
from numbers import Integral, Real
from time import perf_counter

from nnstretch.errors import BadInput
from nnstretch.files.limits import shorten


def real_number(name: str, value: object, needed: str) -> float:
    """Return an argument as a float. `needed`: what it should be, for the message.

    Raises BadInput for text, a truth value, NaN, and an integer beyond every float.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
            if not isnan(number):
                return number
    raise BadInput(f"{name} is {shorten(value)}, {needed}")


def whole_number(name: str, value: object, least: int, most: int, needed: str) -> int:
    """Return an argument that is a count from `least` to `most`. Raises BadInput."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        count = int(value)
        if least <= count <= most:
            return count
    raise BadInput(f"{name} is {shorten(value)}, {needed}")


class Timeout:
    """A timeout of one call, which begins with the object; its text is the number passed."""

    def __init__(self, timeout_s: float | None, name: str = "timeout_s") -> None:
        """Start the time; None, or more than the system can count, never ends.

        `name`: the caller's argument. Raises BadInput for what is no number.
        """
        self._timeout_s: float | None = None
        if timeout_s is not None:
            seconds = real_number(name, timeout_s, "a call that waits, give seconds or None")
            self._timeout_s = None if seconds >= threading.TIMEOUT_MAX else seconds
        self._until_s = None if self._timeout_s is None else perf_counter() + self._timeout_s

    @property
    def left_s(self) -> float | None:
        """Return the time left, s, None for any time; below 0 when it is over."""
        return None if self._until_s is None else self._until_s - perf_counter()

    def __str__(self) -> str:
        return "any time" if self._timeout_s is None else f"{self._timeout_s:g} s"
