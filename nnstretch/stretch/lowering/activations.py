"""Another activation for a branch; gates keep theirs."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node
from nnstretch.stretch.lowering.gates import gate_nodes, on_pooled_maps

ATEN_NAMES: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("relu", ()),
    "relu6": ("hardtanh", (0.0, 6.0)),
    "silu": ("silu", ()),
    "swish": ("silu", ()),
    "gelu": ("gelu", ()),
    "hardswish": ("hardswish", ()),
}
"""Name in a plan -> ATen operator and its arguments."""
REPLACEABLE = frozenset(
    ["relu", "relu6", "hardtanh", "silu", "gelu", "hardswish", "leaky_relu", "elu", "mish"]
)


def with_activation(graph: Graph, name: str) -> Graph:
    """Replace every activation outside gates. Raises BadPlan for an unknown activation."""
    if name not in ATEN_NAMES:
        known = ", ".join(ATEN_NAMES)
        raise BadPlan(f"unknown activation {name!r}, segment {graph.name}, it is one of {known}")
    op, extra_args = ATEN_NAMES[name]
    gates = gate_nodes(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.kind in REPLACEABLE and node.name not in gates and not on_pooled_maps(node):
            node = replace(node, op=op, args=(node.args[0], *extra_args), kwargs=())
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
