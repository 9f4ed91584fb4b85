"""Markdown tables: the one writer behind every page of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_row(cells: Iterable[object]) -> str:
    """Return one line of a table; a bar inside a cell would end it and becomes a slash."""
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a table: heads, rule, rows."""
    return [markdown_row(heads), f"|{'---|' * len(heads)}", *map(markdown_row, rows)]
