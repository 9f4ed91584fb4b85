"""The console of results, the one place where brackets are told from markup and tables are fitted.

Brackets of a file's or a network's name or of a plan are no markup. A verb colours the begin of a
line that it prints, or all of it; cells and titles of tables have no markup. Verbs write text as it
is, without escapes, and a line at a time: control characters come from names only and are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nnstretch.errors import escape_control

COLOURED = re.compile(r"\[(bold|red|yellow)\](?:(.*)\[/\1\]|(.*?)\[/\1\](.*))", re.S)
"""A line of which a verb colours all, or the begin up to the first end of that colour."""


MOST_COLUMNS = 10_000
BORDERS = 3
"""Columns of the terminal around a cell, its share of the frame in them."""

SHORT = 8
"""Cells of so many letters are never folded."""


class Terminal(Console):
    """Console that prints text from files as it is, without reading markup from it."""

    def __init__(self, **how: Any) -> None:
        """Open the console; COLUMNS of 0, or of more than any terminal has, is not taken."""
        super().__init__(markup=False, emoji=False, **how)
        if self._width is not None:
            self._width = min(self._width, MOST_COLUMNS) or None

    def render_str(self, text: str, **how: Any) -> Text:
        """Render text without reading markup or control characters from it."""
        return super().render_str(printable(text), **how)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; what is too wide for its column of a table goes on in the next line, uncut."""
        shown: list[Any] = []
        for printed in objects:
            if isinstance(printed, Table):
                fit_table(printed, self)
            is_line = isinstance(printed, str) and how.get("markup") is not False
            shown.append(self._coloured(printed, how.get("highlight")) if is_line else printed)
        super().print(*shown, **how)

    def _coloured(self, line: str, highlight: bool | None) -> Text:
        """Return a line with the colour that its verb begins it with."""
        match = COLOURED.fullmatch(line)
        if match is None:
            return self.render_str(line, highlight=highlight)
        colour, whole, begin, after = match.groups("")
        begin = printable(whole or begin)
        text = self.render_str(begin + printable(after), highlight=highlight)
        text.stylize(colour, 0, len(begin))
        return text

    def on_broken_pipe(self) -> None:
        """Raise what rich would end the process for without a word. Raises BrokenPipeError."""
        raise


def printable(text: str) -> str:
    """Return text with its control characters escaped."""
    return text if text.isprintable() else "".join(map(escape_control, text))


def fit_table(table: Table, console: Console) -> None:
    """Set the widths of columns, and fold what does not fit.

    Where there is room for it, heads are folded between words only, short cells not at all, and
    what is left over goes to the other cells in equal parts.
    """
    for column in table.columns:
        column.overflow = "fold"
    cells = [widest(column.cells, console) for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    needed = [max(cell, len(head)) for cell, head in zip(cells, heads, strict=True)]
    least = [
        max(min(cell, SHORT), *map(len, head.split()), 1)
        for cell, head in zip(cells, heads, strict=True)
    ]
    spare = console.width - 1 - BORDERS * len(least) - sum(least)
    if spare < 0 or sum(needed) - sum(least) <= spare:
        return
    order = sorted(range(len(least)), key=lambda index: needed[index] - least[index])
    for position, index in enumerate(order):
        more = min(spare // (len(order) - position), needed[index] - least[index])
        table.columns[index].width = least[index] + more
        spare -= more


def widest(cells: Iterable[RenderableType], console: Console) -> int:
    """Return how wide a column is whose cells take a line each."""
    return max(
        (Measurement.get(console, console.options, cell).maximum for cell in cells), default=0
    )


def branches_text(segment: Mapping[str, Any]) -> str:
    """Return the branches of a segment in a line: processor, depth and width, `=` for the same."""
    texts: list[str] = []
    for branch in segment["branches"]:
        depth, width = branch.get("depth", "="), branch.get("width", "=")
        texts.append(f"{branch['processor']} {depth} x {width}")
    return " | ".join(texts)
