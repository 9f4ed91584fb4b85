"""What an automatic split moves around: compute layers."""

from __future__ import annotations

from nnstretch.graph import Graph
from nnstretch.structure.cuts import depends_on_input, find_cuts
from nnstretch.structure.macs import WEIGHTED

INTENSIVE = WEIGHTED | {"matmul", "bmm", "mm", "addmm", "einsum", "scaled_dot_product_attention"}
"""Operators that open a compute layer."""


def compute_layers(graph: Graph) -> tuple[int, ...]:
    """Return the compute layer of every node.

    A compute-intensive operator with the cheap ones that follow, divided further at cuts.

    What comes before the first intensive operator is in its layer; where nothing is intensive,
    every operator is a layer. What picks from a tuple, batch sizes and functions of weights open
    none.
    """
    carriers = depends_on_input(graph) | set(graph.outputs)
    at = [i for i, node in enumerate(graph.nodes) if node.name in carriers and node.op != "getitem"]
    intensive = [i for i in at if graph.nodes[i].kind in INTENSIVE]
    divided = {cut.position + 1 for cut in find_cuts(graph)}
    opening, behind = set(intensive[1:] if intensive else at[1:]), set(at[1:])
    layer, group, due = 0, [], False
    for i in range(len(graph.nodes)):
        due = due or i in divided
        if i in behind and (i in opening or due):
            layer += 1
            due = False
        group.append(layer)
    return tuple(group)
