"""What needs no input: numbers that shapes give, and tensors that follow from weights alone."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
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


def fold_constants(
    graph: Graph, weights: Mapping[str, torch.Tensor]
) -> tuple[dict[str, np.ndarray], dict[str, int | float]]:
    """Return the values of constant tensors, weights among them, and of numbers, by name."""
    tensors, numbers = constant_tensors(graph, weights)
    return {name: tensor.numpy() for name, tensor in tensors.items()}, numbers


def constant_tensors(
    graph: Graph, weights: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, int | float]]:
    """Return constant tensors, weights among them, and numbers that shapes give, by name."""
    tensors = {name: tensor.detach() for name, tensor in weights.items()}
    numbers: dict[str, int | float] = {}
    known = set(tensors)
    specs = graph.specs()
    with torch.no_grad():
        for node in graph.nodes:
            number = scalar_value(node, specs, numbers)
            if number is not None:
                numbers[node.name] = number
                known.add(node.name)
            elif is_constant(node, known):
                args = [concrete(item, tensors, numbers) for item in node.args]
                kwargs = {key: concrete(item, tensors, numbers) for key, item in node.kwargs}
                result = resolve_operator(node)(*args, **kwargs)
                if isinstance(result, torch.Tensor):
                    tensors[node.name] = result
                    known.add(node.name)
    return tensors, numbers


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


def concrete(
    item: Argument, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, int | float]
) -> Any:
    """Return an argument with names replaced by what they stand for."""
    if isinstance(item, ValueRef):
        return tensors[item.name] if item.name in tensors else numbers[item.name]
    if isinstance(item, tuple):
        return [concrete(part, tensors, numbers) for part in item]
    if isinstance(item, str) and item.startswith("torch."):
        return getattr(torch, item.removeprefix("torch."))
    return item
