"""A schedule as lines of text, one for each processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnstretch.report.format_numbers import graph_time

IDLE = "·"
BAR = "━"
MOST_PROCESSORS = 32
LEAST_COLUMNS = 20


def text_gantt(
    rows: Sequence[dict[str, Any]], processors: Sequence[str], makespan: float, width: int
) -> list[str]:
    """Return lines of `width` letters: each task begins with its name, idle time is dotted."""
    shown = processors[:MOST_PROCESSORS]
    margin = min(max(map(len, shown)), 16)
    columns = max(width - margin - 3, LEAST_COLUMNS)
    lines: list[str] = []
    for processor in shown:
        cells = [IDLE] * columns
        for row in rows:
            if row["processor"] == processor and row["end"] > row["start"]:
                _draw(cells, row["task"], row["start"] / makespan, row["end"] / makespan)
        lines.append(f"{processor[-margin:]:>{margin}} |{''.join(cells)}|")
    end = graph_time(makespan)
    lines.append(f"{'':>{margin}} 0{end:>{columns}}")
    if len(shown) < len(processors):
        lines.append(f"and {len(processors) - len(shown)} more processors")
    return lines


def _draw(cells: list[str], name: str, start: float, end: float) -> None:
    """Write a task from one share of the line to another, at least a letter wide."""
    columns = len(cells)
    first = min(round(start * columns), columns - 1)
    last = min(max(round(end * columns), first + 1), columns)
    text = name if name.isprintable() else BAR
    cells[first:last] = text[: last - first].ljust(last - first, BAR)
