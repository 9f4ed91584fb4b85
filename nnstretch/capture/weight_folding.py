"""What needs no input: numbers that shapes give, and tensors that follow from weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.graph import Argument, Graph, ValueRef
from nnstretch.structure.constants import is_constant, scalar_value


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


def concrete(item: Argument, values: Mapping[str, Any]) -> Any:
    """Return an argument with names replaced by what they stand for."""
    if isinstance(item, ValueRef):
        return values[item.name]
    if isinstance(item, tuple):
        return [concrete(part, values) for part in item]
    if isinstance(item, str) and item.startswith("torch."):
        return getattr(torch, item.removeprefix("torch."))
    return item
