"""How long a caller is willing to wait, over several waits together."""

from __future__ import annotations

import threading
from math import isnan
from time import perf_counter

from nnstretch.errors import BadInput


class Timeout:
    """The time that begins with the object, for one call; prints as what the caller asked for."""

    def __init__(self, timeout_s: float | None) -> None:
        """Start the time; None, or more than the system can count, never ends. Raises BadInput."""
        if timeout_s is not None and (not isinstance(timeout_s, int | float) or isnan(timeout_s)):
            raise BadInput(f"timeout_s is {timeout_s!r}, a call that waits, give seconds or None")
        self._timeout_s = (
            None if timeout_s is None or timeout_s >= threading.TIMEOUT_MAX else timeout_s
        )
        self._until_s = None if self._timeout_s is None else perf_counter() + self._timeout_s

    @property
    def left_s(self) -> float | None:
        """Return the time left, s, None for any time; below 0 when it is over."""
        return None if self._until_s is None else self._until_s - perf_counter()

    @property
    def for_lock_s(self) -> float:
        """Return the time left as a lock's `acquire` wants it: -1 for any time."""
        left_s = self.left_s
        return -1 if left_s is None else max(0.0, left_s)

    def __str__(self) -> str:
        return "any time" if self._timeout_s is None else f"{self._timeout_s:g} s"
