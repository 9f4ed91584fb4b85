"""Arguments of an operator by position: PyTorch leaves defaults out, and writes 3 for (3, 3)."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from nnstretch.graph import Argument, Graph, Node

TYPE_ONLY = frozenset({"type_as", "to"})
"""Operators that read of a second tensor nothing but its type."""
SHAPE_AND_TYPE_ONLY = TYPE_ONLY | {"reshape_as", "view_as", "expand_as"}
"""Operators that read of a second tensor nothing but its shape or its type."""


def argument(node: Node, position: int, default: Any = None) -> Any:
    """Return an argument, or its default where the call leaves it out."""
    return node.args[position] if position < len(node.args) else default


def slice_start(start: int | None, size: int) -> int:
    """Return where a slice of an axis of this size begins, counted from its front.

    A negative start counts from the end; one before the front or behind the end is at it.
    """
    start = start or 0
    return min(max(start + size if start < 0 else start, 0), size)


def conv_groups(node: Node) -> int:
    """Return the groups of a convolution."""
    groups = argument(node, 6)
    return groups if isinstance(groups, int) else 1


def sides(value: Argument) -> list[int]:
    """Return the numbers of a window, stride or padding that may be one number, a pair or None."""
    items = value if isinstance(value, tuple) else (value,)
    return [side for side in items if isinstance(side, int)]


def largest_side(value: Argument, default: int) -> int:
    """Return the largest number of a window, stride or padding; the default for 0 or none."""
    return max(sides(value), default=default) or default


def values_read(node: Node) -> tuple[str, ...]:
    """Return what a node reads the numbers of, less what it takes a shape or a type from."""
    return node.inputs[:1] if node.kind in SHAPE_AND_TYPE_ONLY else node.inputs


def shared_weights(graph: Graph) -> tuple[str, ...]:
    """Return the trainable weights whose numbers more than one node reads."""
    readers = Counter(chain.from_iterable(map(values_read, graph.nodes)))
    return tuple(w.name for w in graph.weights if w.trainable and readers[w.name] > 1)
