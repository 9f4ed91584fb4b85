"""Ctrl-C at every place of a call where Python looks for it, one place after another."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupter:
    """Raises KeyboardInterrupt at the n-th line of the project that a call comes to."""

    def __init__(self, at: int) -> None:
        self.lines_left = at
        self.entered: set[tuple[int, int]] = set()

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        file = frame.f_code.co_filename
        if "nnstretch" not in file or "/tests/" in file:
            return None
        if event == "line" and self.is_place(frame):
            self.lines_left -= 1
            if self.lines_left == 0:
                raise KeyboardInterrupt
        return self

    def is_place(self, frame: FrameType) -> bool:
        """Return whether Python looks for signals here: not at `try:`, which does nothing, and not
        where a `with` is left before that is done.
        """
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if line.startswith("with "):
            where = (id(frame), frame.f_lineno)
            self.entered ^= {where}
            return where in self.entered
        return line != "try:"


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Return whether a call was interrupted at its `at`-th line; False where it has fewer."""
    before = sys.gettrace()
    sys.settrace(Interrupter(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
