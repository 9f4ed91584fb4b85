"""Operators that draw random numbers: with one, every inference computes something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from nnstretch.capture.checks.operator_arguments import named_arguments
from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph, Node

MODE_SWITCHES = ("train", "training", "dropout_p")
"""Arguments that ask for drawing in training; `dropout_p` is to be 0 in evaluation."""
SWITCHES = ("p", "dropout", *MODE_SWITCHES)
"""Arguments of which one that is 0 or False means that nothing is drawn."""


def is_random(target: Any) -> bool:
    """Return whether the operator can draw random numbers."""
    seeded = torch.Tag.nondeterministic_seeded
    return isinstance(target, torch._ops.OpOverload) and seeded in target.tags


def is_drawing(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: dropout in evaluation does not."""
    return is_random(target) and all(switches_of(target, args, kwargs).values())


def is_active_dropout(fx_node: Any) -> bool:
    """Return whether a node drops numbers by chance, though the network is in evaluation mode."""
    target = fx_node.target
    if not is_drawing(target, fx_node.args, fx_node.kwargs):
        return False
    return any(name in MODE_SWITCHES for name in switches_of(target, (), {}))


def switches_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that switch drawing on or off, by name."""
    values = named_arguments(target, args, kwargs)
    return {name: value for name, value in values.items() if name in SWITCHES}


def random_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that draw random numbers."""
    for node in graph.nodes:
        try:
            target = resolve_operator(node)
        except UnsupportedOp:
            continue  # Whoever builds it says so.
        if is_drawing(target, node.args, dict(node.kwargs)):
            yield node


def check_repeatable(graph: Graph, name: str) -> None:
    """Check that a graph computes the same at every inference.

    Raises UnsupportedOp with the first operator that draws random numbers.
    """
    for node in random_nodes(graph):
        raise UnsupportedOp(
            f"cannot export {name}, {node.kind} ({node.name}) in {node.module or 'forward'} draws"
            " random numbers, so that every inference computes something else; draw them outside"
            " and make them an input, or draw in training only"
        )
