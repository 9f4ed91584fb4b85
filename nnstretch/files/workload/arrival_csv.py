"""Arrival times from CSV: a time in milliseconds in the first column of each line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nnstretch.errors import BrokenFile, one_line
from nnstretch.files.read import as_path, read_text

MOST_BYTES = 256 << 20
MOST_MS = 1e12
"""As of times in a workload."""

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?(nan|inf|infinity)", re.I)
"""In plain decimals; Python alone would take 1_0 for 10."""
NUMBER_BEGINS = re.compile(r"[\"']?\s*[-+\u2212]?\.?\d")
"""Text of which a number may have been meant: it is no heading."""


def read_arrivals(path: str | Path) -> tuple[float, ...]:
    """Return the times of a file, ms; a heading, empty lines and lines with # are skipped.

    A heading is the first of the other lines where it begins with no number.

    Raises UnknownName for no file, BrokenFile for no number, or a time that goes back.
    """
    path = as_path(path, "arrivals")
    times_ms: list[float] = []
    cells = first_cells(read_text(path, "arrivals", MOST_BYTES))
    for place, (number, text) in enumerate(cells):
        if not NUMBER.fullmatch(text):
            if place == 0 and not NUMBER_BEGINS.match(text):
                continue
            raise BrokenFile(f"{one_line(text)[:60]!r}, {path} line {number}, no time")
        time_ms = float(text)
        if not 0 <= time_ms <= MOST_MS:
            raise BrokenFile(
                f"{text[:60]}, {path} line {number}, a time is from 0 to {MOST_MS:g} ms"
            )
        if times_ms and time_ms < times_ms[-1]:
            raise BrokenFile(f"{time_ms:g} ms, {path} line {number}, {times_ms[-1]:g} is before it")
        times_ms.append(time_ms)
    if not times_ms:
        raise BrokenFile(f"no times, {path}, needed is a time in ms in each line")
    return tuple(times_ms)


def first_cells(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the first cell of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        cell = line.split(",")[0].strip()
        if cell and not cell.startswith("#"):
            yield number, cell
