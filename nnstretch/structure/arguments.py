"""Arguments of an operator by position: PyTorch leaves defaults out, and writes 3 for (3, 3)."""

from __future__ import annotations

from typing import Any

from nnstretch.graph import Argument, Node


def argument(node: Node, position: int, default: Any = None) -> Any:
    """Return an argument, or its default where the call leaves it out."""
    return node.args[position] if position < len(node.args) else default


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
