"""What needs no input: numbers that shapes give, and tensors that follow from weights alone."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.graph import Argument, Graph, Node, TensorSpec, ValueRef
from nnstretch.structure.constants import is_constant

SCALAR_OPERATORS = {
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
}
SIZE_READERS = frozenset({"sym_size", "size"})


@dataclass(frozen=True)
class Constants:
    """What no input changes, by name."""

    tensors: Mapping[str, torch.Tensor]
    """Weights among them."""
    numbers: Mapping[str, int | float]
    """What shapes give."""
    names: frozenset[str]
    """Of both, and of nodes with several tensors, which others pick from."""


def fold_constants(graph: Graph, weights: Mapping[str, torch.Tensor]) -> Constants:
    """Compute the tensors and numbers that no input changes."""
    values: dict[str, Any] = {name: tensor.detach() for name, tensor in weights.items()}
    numbers: dict[str, int | float] = {}
    specs = graph.specs()
    with torch.no_grad():
        for node in graph.nodes:
            number = scalar_value(node, specs, numbers)
            if number is not None:
                numbers[node.name] = values[node.name] = number
            elif is_constant(node, values):
                args = [concrete(item, values) for item in node.args]
                kwargs = {key: concrete(item, values) for key, item in node.kwargs}
                values[node.name] = resolve_operator(node)(*args, **kwargs)
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    return Constants(tensors, numbers, frozenset(values))


def scalar_value(
    node: Node, specs: Mapping[str, TensorSpec], numbers: Mapping[str, int | float]
) -> int | float | None:
    """Return the number that a node computes from shapes, None for a node of tensors."""
    if node.kind in SIZE_READERS and isinstance(node.args[0], ValueRef):
        axis = node.args[1] if len(node.args) > 1 else None
        return specs[node.args[0].name].shape[axis] if isinstance(axis, int) else None
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


def concrete(item: Argument, values: Mapping[str, Any]) -> Any:
    """Return an argument with names replaced by what they stand for."""
    if isinstance(item, ValueRef):
        return values[item.name]
    if isinstance(item, tuple):
        return [concrete(part, values) for part in item]
    if isinstance(item, str) and item.startswith("torch."):
        return getattr(torch, item.removeprefix("torch."))
    return item
