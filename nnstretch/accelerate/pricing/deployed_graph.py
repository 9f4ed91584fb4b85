"""Batch norms folded into the convolutions before them, as a deployed network has them."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.graph import (
    Argument,
    Graph,
    Node,
    TensorSpec,
    ValueRef,
    Weight,
    names_read,
    rename_refs,
)
from nnstretch.structure.macs import CONVOLUTIONS


def deployed_graph(graph: Graph) -> Graph:
    """Return the graph in which a convolution's bias stands for the batch norm behind it.

    Weights are named, not computed: the graph is there to be scheduled.
    """
    readers = graph.consumers()
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    biases: list[Weight] = []
    for node in graph.nodes:
        source = nodes.get(names.get(node.inputs[0], node.inputs[0])) if node.inputs else None
        alone = source is not None and len(readers[source.name]) == 1
        leaves = source is not None and source.name in graph.outputs
        if node.kind != "batch_norm" or source is None or not alone or leaves:
            nodes[node.name] = renamed(node, names)
            continue
        if source.kind not in CONVOLUTIONS:
            nodes[node.name] = renamed(node, names)
            continue
        names[node.name] = source.name
        if len(source.args) < 3 or source.args[2] is None:
            bias = Weight(f"{source.name}.folded_bias", TensorSpec(source.output.shape[1:2]))
            biases.append(bias)
            nodes[source.name] = with_bias(source, bias.name)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    read = set(names_read(nodes.values()))
    weights = tuple(weight for weight in (*graph.weights, *biases) if weight.name in read)
    return Graph(graph.name, graph.inputs, weights, tuple(nodes.values()), outputs)


def renamed(node: Node, names: dict[str, str]) -> Node:
    """Return a node that reads convolutions where it read their norms."""
    if not any(name in names for name in node.inputs):
        return node
    args = tuple(rename_refs(item, names) for item in node.args)
    kwargs = tuple((key, rename_refs(item, names)) for key, item in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)


def with_bias(node: Node, bias: str) -> Node:
    """Return a convolution that reads a bias."""
    args: tuple[Argument, ...] = (*node.args[:2], ValueRef(bias), *node.args[3:])
    return replace(node, args=args, macs=node.macs + node.output.elements)
