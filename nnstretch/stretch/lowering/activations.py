"""Another activation for a branch; gates keep theirs."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node

ATEN_NAMES: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("relu", ()),
    "relu6": ("hardtanh", (0.0, 6.0)),
    "silu": ("silu", ()),
    "swish": ("silu", ()),
    "gelu": ("gelu", ()),
    "hardswish": ("hardswish", ()),
}
MAIN = frozenset(
    {"relu", "relu6", "hardtanh", "silu", "gelu", "hardswish", "leaky_relu", "elu", "mish"}
)


def with_activation(graph: Graph, name: str) -> Graph:
    """Replace every activation over pixels; those on pooled features belong to a gate and stay.

    Raises BadPlan for an activation that has no spelling here.
    """
    if name not in ATEN_NAMES:
        raise BadPlan(
            f"unknown activation {name!r}, segment {graph.name}, it is one of"
            f" {', '.join(ATEN_NAMES)}"
        )
    op, extra = ATEN_NAMES[name]

    def swapped(node: Node) -> Node:
        pixels = len(node.output.shape) != 4 or max(node.output.shape[2:]) > 1
        if node.kind not in MAIN or not pixels:
            return node
        return replace(node, op=op, args=(node.args[0], *extra), kwargs=())

    return replace(graph, nodes=tuple(swapped(node) for node in graph.nodes))
