"""Rows of a table by their ids, as networks of tokens begin."""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Node

Rule = Callable[[Translation, Node], Views]
MOST_ROWS = 1 << 24
"""Ids travel as float32, which holds every whole number up to here."""


def embedding(t: Translation, node: Node) -> Views:
    """Translate embedding: ids are checked against the table's rows whenever it runs."""
    table, ids = t.view_of(node.args[0]), t.view_of(node.args[1])
    if table.shape[0] > MOST_ROWS:
        raise UnsupportedArguments(f"a table of {table.shape[0]} rows, above 2^24")
    return t.call(node, "Gather", (ids, table), node.output.shape)


RULES: dict[str, Rule] = {"embedding": embedding}
