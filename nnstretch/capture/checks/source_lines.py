"""Which line of a network's own Python an operator or an error comes from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

FRAME = re.compile(r'File "([^"]+)", line (\d+)')
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
"""Folders of PyTorch and of this package: their lines are nobody's mistake."""
STANDARD_LIBRARY = str(Path(traceback.__file__).parent)
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Folders of installed packages, which may lie inside the standard library's."""


def refusal_reason(error: Exception) -> str:
    """Return why torch.export refuses a network, and at which of its lines where that is known."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = (lines or [type(error).__name__])[0][:300]
    place = line_of_error(error)
    return f"{reason}; at {place}" if place else reason


def line_of_error(error: BaseException) -> str:
    """Return the innermost line of the network in an error's traceback, as `net.py:12`.

    Empty where the error comes from no line of a network.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return innermost((frame.filename, frame.lineno or 0) for frame in frames)


def line_of_trace(stack_trace: str | None) -> str:
    """Return the innermost line of the network in a stack trace, as `net.py:12`; else nothing."""
    return innermost(FRAME.findall(stack_trace or ""))


def innermost(frames: Iterable[tuple[str, int | str]]) -> str:
    """Return the last of some lines, file and number, that is the network's own."""
    place = ""
    for file, line in frames:
        if not file.startswith((*LIBRARIES, "<")) and not is_standard(file):
            place = f"{Path(file).name}:{line}"
    return place


def is_standard(file: str) -> bool:
    """Return whether a file is of Python's standard library."""
    return file.startswith(STANDARD_LIBRARY) and not any(name in file for name in PACKAGE_FOLDERS)
