"""The console of results, the one place where brackets are told from markup and tables are fitted.

Brackets of a file's or a network's name or of a plan are no markup, those of the verbs' own colours
are; verbs write text as it is, without escapes.
"""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

FOREIGN = re.compile(r"(\\*)\[(?!/?(?:bold|red|yellow)\])")
"""A bracket that starts none of the tags that verbs write.

Backslashes before it would be taken for an escape.
"""


MOST_COLUMNS = 10_000


class Terminal(Console):
    """Console that prints text from files as it is, without reading markup from it."""

    def __init__(self, **how: Any) -> None:
        """Open the console; COLUMNS of 0, or of more than any terminal has, is not taken."""
        super().__init__(**how)
        if self._width is not None:
            self._width = min(self._width, MOST_COLUMNS) or None

    def render_str(self, text: str, *, markup: bool | None = None, **how: Any) -> Text:
        """Render text without reading markup from it."""
        if markup or (markup is None and self._markup):
            text = FOREIGN.sub(r"\1\1\\[", text)
        return super().render_str(text, markup=markup, **(how | {"emoji": False}))

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; what is too wide for its column of a table goes on in the next line, uncut."""
        for table in objects:
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
        super().print(*objects, **how)

    def on_broken_pipe(self) -> None:
        """Raise what rich would end the process for without a word. Raises BrokenPipeError."""
        raise
