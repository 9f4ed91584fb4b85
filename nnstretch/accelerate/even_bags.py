"""Bags of equally many rows of a table -> look-ups and a sum, mean or maximum of each bag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nnstretch.graph import Graph, Node, TensorSpec, ValueRef, refs
from nnstretch.structure.arguments import argument

if TYPE_CHECKING:
    import torch

REDUCTIONS = ("sum.dim_IntList", "mean.dim", "amax")
"""What becomes of a bag, by its mode."""


def open_even_bags(graph: Graph, weights: Mapping[str, torch.Tensor]) -> Graph:
    """Return a graph whose even bags are operators that an accelerator knows.

    Bags are even where their starts are constants and equally far apart; others stay.
    """
    from nnstretch.capture.weight_folding import fold_constants

    if all(node.kind != "embedding_bag" for node in graph.nodes):
        return graph
    constants = fold_constants(graph, weights).tensors
    bags = {node.name: node for node in graph.nodes if is_even_bag(graph, node, constants)}
    nodes: list[Node] = []
    for node in graph.nodes:
        bag = bags.get(next(iter(refs(node.args)), "")) if node.op == "getitem" else None
        if bag is not None and node.args[1] == 0:
            nodes += opened(node, bag, graph.specs())
        elif node.name not in bags:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def is_even_bag(graph: Graph, node: Node, constants: Mapping[str, torch.Tensor]) -> bool:
    """Return whether all bags of a node have as many rows."""
    if node.kind != "embedding_bag":
        return False
    _, index, starts = list(refs(node.args))[:3]
    # Weights of rows, a last start and rows that count as none make bags uneven.
    special = [argument(node, place, None) for place in (6, 7, 8)]
    if any(item is not None and item is not False for item in special):
        return False
    alone = [n for n in graph.nodes if node.name in n.inputs]
    if any(n.op != "getitem" or n.args[1] != 0 for n in alone):
        return False
    bags, elements = node.outputs[0].shape[0], graph.specs()[index].elements
    step = elements // bags
    if starts in constants:
        return bool(
            elements == bags * step and constants[starts].tolist() == [*range(0, elements, step)]
        )
    counted = next((n for n in graph.nodes if n.name == starts), None)
    if counted is None or counted.op != "arange.start_step":
        return False
    return counted.args[0] == 0 and counted.args[2] == step and elements == bags * step


def opened(node: Node, bag: Node, specs: Mapping[str, TensorSpec]) -> list[Node]:
    """Return the operators that stand for the first output of even bags."""
    table, index = list(refs(bag.args))[:2]
    count, width = node.output.shape
    shape = (count, specs[index].elements // count)
    rows = TensorSpec(shape, specs[index].dtype)
    looked_up = TensorSpec((*shape, width), node.output.dtype)
    mode = int(argument(bag, 4, 0))
    in_bags, in_rows = f"{node.name}_rows", f"{node.name}_looked_up"
    return [
        Node(in_bags, "view", (ValueRef(index), shape), (rows,), bag.module),
        Node(in_rows, "embedding", (ValueRef(table), ValueRef(in_bags)), (looked_up,), bag.module),
        Node(node.name, REDUCTIONS[mode], (ValueRef(in_rows), (1,)), node.outputs, bag.module),
    ]
