"""Which values of a graph no input changes."""

from __future__ import annotations

from collections.abc import Container

from nnstretch.graph import Node

_RANDOM = """
    rand randn rand_like randn_like randint randint_like randperm normal bernoulli multinomial
"""
RANDOM = frozenset(_RANDOM.split())
"""Operators that compute something else at every run."""


def is_constant(node: Node, known: Container[str]) -> bool:
    """Return whether a node reads what is known only, and so always computes the same."""
    if node.kind in RANDOM or node.op.startswith(("py.", "sym_")):
        return False
    return all(name in known for name in node.inputs)
