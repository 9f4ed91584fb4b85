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
        if not file.startswith((*LIBRARIES, "<")):
            place = f"{Path(file).name}:{line}"
    return place
