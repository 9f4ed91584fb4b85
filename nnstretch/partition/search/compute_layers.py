"""Compute layers: the units that an automatic split moves around."""

from __future__ import annotations

from nnstretch.graph import Graph
from nnstretch.structure.cuts import depends_on_input, find_cuts
from nnstretch.structure.macs import PRODUCTS, WEIGHTED

INTENSIVE = WEIGHTED | PRODUCTS | {"addmm"}
"""Operators that open a compute layer."""


def compute_layers(graph: Graph) -> tuple[int, ...]:
    """Return the compute layer of every node.

    A layer is a compute-intensive operator with the cheap ones that follow, divided further at
    cuts. What comes before the first intensive operator is in its layer; where nothing is
    intensive, every operator is a layer. Picks from a tuple, batch sizes and functions of weights
    open none.
    """
    carriers = depends_on_input(graph) | set(graph.outputs)
    nodes = list(enumerate(graph.nodes))
    at = [i for i, node in nodes if node.name in carriers and node.op != "getitem"]
    intensive = [i for i in at if graph.nodes[i].kind in INTENSIVE]
    opening = set(intensive[1:] if intensive else at[1:])
    may_open = set(at[1:])
    divided = {cut.position + 1 for cut in find_cuts(graph)}
    layer = 0
    layers = []
    after_cut = False
    for i, _ in nodes:
        after_cut = after_cut or i in divided
        if i in may_open and (i in opening or after_cut):
            layer += 1
            after_cut = False
        layers.append(layer)
    return tuple(layers)
