"""Which dimension of a tensor holds channels where no channel group says so.

Three dimensions are a 1-D map (batch, channels, length) or tokens (batch, tokens, channels), which
the shape does not tell: the nearest layer that reads the tensor does, else the one that wrote it.
"""

from __future__ import annotations

from nnstretch.graph import Graph, Node
from nnstretch.structure.kernel_operators import CHANNELS_FIRST, MOVING
from nnstretch.structure.macs import ATTENTION, CONVOLUTIONS, PRODUCTS, RECURRENT, TRANSPOSED

FIRST = CONVOLUTIONS | TRANSPOSED | CHANNELS_FIRST
LAST = RECURRENT | {"linear", "layer_norm", "embedding", "rms_norm"}
MIXING = MOVING | PRODUCTS | {ATTENTION, "squeeze", "unsqueeze", "flatten", "unflatten", "expand"}
"""Operators behind which a dimension may be another one."""


def channel_axes(graph: Graph) -> dict[str, int]:
    """Return the channel dimension of every tensor that a layer reads or writes as channels.

    Operators that keep the number of dimensions pass it on, in both directions.
    """
    ranks = {name: len(spec.shape) for name, spec in graph.specs().items()}
    axes: dict[str, int] = {}
    for node in reversed(graph.nodes):
        axis = layer_axis(node, ranks)
        if axis is None and passes_axes(node, ranks):
            axis = axes.get(node.name)
        if axis is not None:
            for name in node.inputs[:1] if layer_axis(node, ranks) is not None else node.inputs:
                if ranks[name] == ranks[node.name]:
                    axes.setdefault(name, axis)
    for node in graph.nodes:
        axis = layer_axis(node, ranks)
        if axis is None and passes_axes(node, ranks):
            axis = axes.get(node.inputs[0])
        if axis is not None:
            axes.setdefault(node.name, axis)
    return axes


def layer_axis(node: Node, ranks: dict[str, int]) -> int | None:
    """Return the dimension along which a layer's channels lie; None for other operators."""
    if node.kind in FIRST:
        return 1
    return ranks[node.name] - 1 if node.kind in LAST else None


def passes_axes(node: Node, ranks: dict[str, int]) -> bool:
    """Return whether dimensions of an operator's first input are those of its output."""
    if not node.inputs or node.kind in MIXING:
        return False
    return ranks[node.inputs[0]] == ranks[node.name]
