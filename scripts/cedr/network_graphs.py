"""Networks as task graphs for the described chip: every layer in groups of output channels.

As in CEDR's translation a convolution is many independent calls, each followed by the addition of
its planes (ZIP), and the code between two layers (activation, pooling, normalisation) waits for all
of them. CEDR makes a call for every pair of channels; here `GROUPS` groups of output channels are a
task each, so that one policy decision stands for many. An operation is a multiply-accumulate, an
addition of a ZIP, or an element that other code writes; on a CPU each takes the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from published import ZIP_US
from signal_apps import GraphTable

from nnstretch.graph import Graph, Node

GROUPS = 24
ZIP_FACTOR = ZIP_US["cpu"] / ZIP_US["zip"]


@dataclass(frozen=True, slots=True)
class ChipScale:
    """What one operation takes on the described chip, us."""

    cpu_us: float
    conv2d_us: float
    """Of a multiply-accumulate in the conv2d unit."""


def network_graph(graph: Graph, scale: ChipScale) -> GraphTable:
    """Return a captured chain of layers as a task graph."""
    table, before, code = GraphTable(), list[str](), 0
    for number, node in enumerate(graph.nodes):
        if not node.macs:
            code += node.output.elements
            continue
        start = table.add(f"code{number}", before, {"cpu": max(code, 1) * scale.cpu_us})
        before, code = layer_tasks(table, graph, node, number, start, scale), 0
    table.add("code_end", before, {"cpu": max(code, 1) * scale.cpu_us})
    return table


def layer_tasks(
    table: GraphTable, graph: Graph, node: Node, number: int, start: str, scale: ChipScale
) -> list[str]:
    """Add a layer's calls and return those that nothing of the layer follows."""
    share_us = node.macs / GROUPS * scale.cpu_us
    if node.op == "linear":
        return [table.add(f"gemm{number}", [start], {"cpu": node.macs * scale.cpu_us})]
    if node.op != "conv2d":
        return [table.add(f"conv1d{number}_{g}", [start], {"cpu": share_us}) for g in range(GROUPS)]
    ends: list[str] = []
    conv_us = {"cpu": share_us, "conv2d": node.macs / GROUPS * scale.conv2d_us}
    additions = node.output.elements * (channels_in(graph, node) + 1) / GROUPS
    zip_us = {"cpu": additions * scale.cpu_us, "zip": additions * scale.cpu_us / ZIP_FACTOR}
    for group in range(GROUPS):
        call = table.add(f"conv{number}_{group}", [start], conv_us)
        ends.append(table.add(f"zip{number}_{group}", [call], zip_us))
    return ends


def channels_in(graph: Graph, node: Node) -> int:
    """Return the input channels of a convolution."""
    shapes = {weight.name: weight.spec.shape for weight in graph.weights}
    return next(shapes[name][1] for name in node.inputs if name in shapes)
