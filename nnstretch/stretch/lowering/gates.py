"""Gates and attention: channels whose count is not a block's bottleneck or expansion.

A gate scales a block's maps by its pooled features, as squeeze-and-excitation does.
"""

from __future__ import annotations

from collections.abc import Iterable

from nnstretch.graph import Graph, Node, refs
from nnstretch.structure.channel_groups import ChannelGroups
from nnstretch.structure.macs import PRODUCTS


def gate_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of nodes on one vector per sample that a product spreads over a map."""
    nodes = {node.name: node for node in graph.nodes}
    gates: set[str] = set()
    for node in graph.nodes:
        if node.kind == "mul" and not is_vector(node):
            collect_vectors(nodes, refs(node.args), gates)
    return frozenset(gates)


def collect_vectors(nodes: dict[str, Node], names: Iterable[str], gates: set[str]) -> None:
    """Add the nodes among `names`, and before them, that hold one vector per sample."""
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in gates and is_vector(nodes[name]):
            gates.add(name)
            waiting += refs(nodes[name].args)


def is_vector(node: Node) -> bool:
    """Return whether a node writes one vector per sample."""
    return sum(size > 1 for size in node.output.shape[1:]) <= 1


def on_pooled_maps(node: Node) -> bool:
    """Return whether a node works on maps of one pixel, as most gates and heads do."""
    shape = node.output.shape
    return len(shape) > 2 and max(shape[2:]) <= 1


def attention_groups(graph: Graph, channels: ChannelGroups) -> set[int]:
    """Return the groups of channels that products of two activations read."""
    groups: set[int] = set()
    for node in graph.nodes:
        if node.kind in PRODUCTS:
            for name in refs((*node.args, *(value for _, value in node.kwargs))):
                for shape in channels.shapes.get(name, ()):
                    groups.update(*(channels.roots(dim) for dim in shape))
    return groups
