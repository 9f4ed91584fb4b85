"""Which values of a graph no input changes: numbers of shapes, and what weights alone give."""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping
from dataclasses import replace

from nnstretch.graph import Argument, Node, TensorSpec, ValueRef

_RANDOM = """
    rand randn rand_like randn_like randint randint_like randperm normal bernoulli multinomial
"""
RANDOM = frozenset(_RANDOM.split())
"""Operators that compute something else at every run."""
SCALAR_OPERATORS = {
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "truediv": operator.truediv,
}
SIZE_READERS = frozenset({"sym_size", "size"})
COUNT_READERS = frozenset({"sym_numel", "numel"})
Numbers = Mapping[str, int | float]


def is_constant(node: Node, known: Container[str]) -> bool:
    """Return whether a node reads what is known only, and so always computes the same."""
    if node.kind in RANDOM or node.op.startswith(("py.", "sym_")):
        return False
    return all(name in known for name in node.inputs)


def scalar_value(
    node: Node, specs: Mapping[str, TensorSpec], numbers: Numbers
) -> int | float | None:
    """Return the number that a node computes from shapes, None for a node of tensors."""
    source = node.args[0] if node.args else None
    if isinstance(source, ValueRef) and node.kind in SIZE_READERS:
        axis = node.args[1] if len(node.args) > 1 else None
        return specs[source.name].shape[axis] if isinstance(axis, int) else None
    if isinstance(source, ValueRef) and node.kind in COUNT_READERS:
        return specs[source.name].elements
    if not node.op.startswith("py."):
        return None
    function = SCALAR_OPERATORS.get(node.op.removeprefix("py."))
    operands = [
        numbers.get(item.name) if isinstance(item, ValueRef) else item for item in node.args
    ]
    if function is None or any(not isinstance(item, int | float) for item in operands):
        return None
    result: int | float = function(*operands)
    return result


def with_numbers(node: Node, numbers: Numbers) -> Node:
    """Return a node whose arguments hold the numbers that shapes gave."""
    if not any(name in numbers for name in node.inputs):
        return node

    def concrete(item: Argument) -> Argument:
        if isinstance(item, ValueRef):
            return numbers.get(item.name, item)
        return tuple(concrete(part) for part in item) if isinstance(item, tuple) else item

    args = tuple(concrete(item) for item in node.args)
    kwargs = tuple((key, concrete(item)) for key, item in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)
