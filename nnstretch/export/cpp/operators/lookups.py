"""Rows of a table by their ids: of tokens, and where a constant mask says which of two stays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import TensorBuffer, TensorView, whole_view
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef

Rule = Callable[[Translation, Node], Views]
MOST_ROWS = 1 << 24
"""Ids travel as float32, which holds every whole number up to here."""


def embedding(t: Translation, node: Node) -> Views:
    """Translate embedding: ids are checked against the table's rows whenever it runs."""
    table, ids = t.view_of(node.args[0]), t.view_of(node.args[1])
    check_rows(table.shape[0])
    return t.call(node, "Gather", (ids, table), node.output.shape)


def check_rows(rows: int) -> None:
    """Check that ids can name every row. Raises UnsupportedArguments."""
    if rows > MOST_ROWS:
        raise UnsupportedArguments(f"a table of {rows} rows, above 2^24")


def masked(t: Translation, node: Node) -> Views:
    """Translate where and masked_fill by a constant mask: it says where each number lies.

    No arithmetic, in which what is masked would still count where it is infinite or no number.
    """
    mask, chosen, otherwise = node.args[:3]
    if node.kind == "masked_fill":
        otherwise, mask, chosen = node.args[:3]
    if not isinstance(mask, ValueRef) or mask.name not in t.constants:
        raise UnsupportedArguments("a mask that is computed")
    sources = (chosen, otherwise)
    shapes = [t.view_of(item).shape if isinstance(item, ValueRef) else () for item in sources]
    counts = [math.prod(shape) for shape in shapes]
    check_rows(sum(counts))
    table = whole_view(TensorBuffer(f"{node.name}_table", "arena", (sum(counts), 1)))
    positions: list[np.ndarray] = []
    for number, (item, shape, count) in enumerate(zip(sources, shapes, counts, strict=True)):
        start = counts[0] * number
        place_source(t, node, item, view_algebra.narrow(table, 0, start, count), f"_{number}")
        rows = np.arange(start, start + count, dtype=np.float32).reshape(shape)
        positions.append(np.broadcast_to(rows, node.output.shape))
    ids = np.where(t.constants[mask.name].astype(bool), *positions)
    reads = (t.constant(f"{node.name}.rows", ids.reshape(-1)), table)
    return t.reshape(t.call(node, "Gather", reads, (ids.size, 1)), node.output.shape, node)


def place_source(t: Translation, node: Node, item: Argument, rows: TensorView, suffix: str) -> None:
    """Write a tensor or a number into rows of a table."""
    if not isinstance(item, ValueRef):
        t.call(node, "Fill", (), rows.shape, {"number": float(item)}, None, rows, suffix)  # type: ignore[arg-type]
        return
    source = t.view_of(item)
    place = view_algebra.reshape(rows, source.shape)
    t.call(node, "Copy", (source,), source.shape, write=place, suffix=suffix)


RULES: dict[str, Rule] = {"embedding": embedding, "masked_fill": masked, "where": masked}
