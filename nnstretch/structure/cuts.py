"""Cuts: tensors that alone separate what is before them from what is after them.

Every path from input to output passes through each cut, so a network may be taken apart, and
branches may meet, exactly there (DESIGN: the problem, exactly). A tensor between an operator
and the epilogue it is always deployed with (convolution -> batch norm -> activation,
add -> activation) is no cut: nobody can meet inside one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, Value, ValueRef
from nnstretch.structure.macs import CONVOLUTIONS

INPUT, OUTPUT = "input", "output"
WRITERS = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear"})
ACTIVATIONS = frozenset(
    [
        "relu",
        "relu6",
        "hardtanh",
        "silu",
        "gelu",
        "hardswish",
        "leaky_relu",
        "elu",
        "selu",
        "mish",
        "tanh",
        "sigmoid",
        "hardsigmoid",
        "prelu",
        "softplus",
    ]
)
PADS = frozenset({"pad", "constant_pad_nd"})
PASSING = frozenset({"dropout", "feature_dropout", "clone", "contiguous", "alias", "detach"})
"""They change no value in evaluation mode."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A possible meeting point."""

    name: str
    """Outermost module whose output it is, or the operator where no module ends there.

    `output` is the last.
    """
    value: str
    """The tensor's name in the graph."""
    position: int
    """Index of the node that writes it; -1 for the network's input."""


def find_cuts(graph: Graph) -> tuple[Cut, ...]:
    """Return every cut in execution order, the network's input left out, its output last."""
    readers = graph.consumers()
    cuts = (Cut(name, graph.nodes[i].name, i) for i, name in separating_positions(graph))
    return tuple(
        cut
        for cut in cuts
        if cut.name == OUTPUT or not inside_kernel(graph, cut, readers.get(cut.value, ()))
    )


def separating_positions(graph: Graph) -> Iterator[tuple[int, str]]:
    """Yield positions after which exactly one tensor is alive, with the cut's name.

    Nobody meets where a batch is folded into pixels.
    """
    if len(graph.outputs) != 1 or len(graph.inputs) != 1:
        return
    carriers = depends_on_input(graph)
    last_read = {
        name: i for i, node in enumerate(graph.nodes) for name in node.inputs if name in carriers
    }
    ends = module_ends(graph)
    end = next((i for i, node in enumerate(graph.nodes) if node.name == graph.outputs[0]), -1)
    if end < 0:
        return
    horizon = last_read.get(graph.inputs[0].name, 0)
    batch = graph.inputs[0].spec.shape[:1]
    for i, node in enumerate(graph.nodes[: end + 1]):
        if node.name not in carriers:
            continue
        if i == end:
            yield i, OUTPUT
        elif (
            i >= horizon
            and len(node.outputs) == 1
            and node.name in last_read
            and node.output.shape[:1] == batch
        ):
            yield i, ends.get(i, node.name)
        horizon = max(horizon, last_read.get(node.name, i))


def depends_on_input(graph: Graph) -> set[str]:
    """Return names of tensors that carry the input; batch sizes and pure functions of weights do
    not.
    """
    carriers = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if not is_size(node) and any(name in carriers for name in node.inputs):
            carriers.add(node.name)
    return carriers


def is_size(node: Node) -> bool:
    """Return whether a node computes a size, not a tensor."""
    return node.kind == "sym_size" or node.op.startswith("py.")


def module_ends(graph: Graph) -> dict[int, str]:
    """Return outermost module that ends with each node: no later node belongs to it."""
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        if not is_size(node):
            for prefix in prefixes(node.module):
                last[prefix] = i
    names: dict[int, str] = {}
    for prefix, i in last.items():
        if i not in names or prefix.count(".") < names[i].count("."):
            names[i] = prefix
    return names


def prefixes(path: str) -> Iterator[str]:
    """Yield a dotted path and its parents, outermost first."""
    parts = path.split(".") if path else []
    for n in range(1, len(parts) + 1):
        yield ".".join(parts[:n])


MOVING = frozenset({"view", "reshape", "_unsafe_view", "permute", "transpose"})
"""They move numbers or only rename dimensions, so the tensor behind them serves as well."""
FUSED = {
    "batch_norm": WRITERS,
    "activation": WRITERS | {"batch_norm", "add", "group_norm", "instance_norm"},
}


def inside_kernel(graph: Graph, cut: Cut, readers: tuple[Node, ...]) -> bool:
    """Return whether the tensor only feeds the epilogue of the operator that writes it."""
    node = graph.nodes[cut.position]
    if len(readers) != 1:
        return False
    reader = readers[0]
    if reader.kind in PASSING or (reader.kind in MOVING and cut.name == node.name):
        return True
    key = "activation" if reader.kind in ACTIVATIONS else reader.kind
    return node.kind in FUSED.get(key, ())


def before_window(graph: Graph, cut: Cut) -> bool:
    """Return whether the tensor is a map padded for the one convolution that reads it.

    Nothing is gained by meeting there.

    Inside a sub-graph runtimes pad while they convolve; a padded map that is handed over is copied
    pixel by pixel first.
    """
    if graph.nodes[cut.position].kind not in PADS:
        return False
    readers = graph.consumers().get(cut.value, ())
    return len(readers) == 1 and readers[0].kind in CONVOLUTIONS


def cut_named(graph: Graph, name: str) -> Cut:
    """Return the cut of that name, or at the end of the module of that path.

    Raise BadPlan that lists the cuts where there is none.
    """
    if name == INPUT:
        return Cut(INPUT, graph.inputs[0].name, -1)
    cuts = find_cuts(graph)
    for cut in cuts:
        if cut.name == name:
            return cut
    last = max(
        (
            i
            for i, node in enumerate(graph.nodes)
            if name in prefixes(node.module) and not is_size(node)
        ),
        default=None,
    )
    for cut in cuts:
        if cut.position == last:
            return cut
    known = ", ".join(cut.name for cut in cuts[:40]) + (", ..." if len(cuts) > 40 else "")
    raise BadPlan(f"unknown cut {name!r}, network {graph.name}, its cuts are {known or 'none'}")


def section(graph: Graph, start: Cut, end: Cut) -> Graph:
    """Return the sub-network between two cuts, as a graph of its own that reads the first and
    writes the second.

    Batch sizes and functions of weights that were computed before the start are computed again
    inside.
    """
    nodes = list(graph.nodes[start.position + 1 : end.position + 1])
    inside = {node.name for node in nodes}
    outside = {
        node.name: node for node in graph.nodes[: start.position + 1] if node.name != start.value
    }
    needed: dict[str, Node] = {}
    for node in nodes:
        for name in node.inputs:
            if name in outside and name not in inside:
                gather_recomputed(name, outside, start.value, needed)
    order = [needed[node.name] for node in graph.nodes if node.name in needed]
    spec = graph.specs()[start.value]
    body = tuple(order + nodes)
    read = {name for node in body for name in node.inputs}
    weights = tuple(weight for weight in graph.weights if weight.name in read)
    return Graph(
        f"{start.name}..{end.name}",
        (Value(start.value, spec),),
        weights,
        prune_unread(body, end.value),
        (end.value,),
    )


def gather_recomputed(
    name: str, outside: dict[str, Node], start: str, needed: dict[str, Node]
) -> None:
    """Collect what a section must compute again.

    A batch size is read off the section's own input.
    """
    if name in needed or name not in outside:
        return
    node = outside[name]
    if node.kind == "sym_size":
        node = replace(node, args=(ValueRef(start), 0))
    for needed_name in node.inputs:
        gather_recomputed(needed_name, outside, start, needed)
    needed[name] = node


def prune_unread(nodes: tuple[Node, ...], output: str) -> tuple[Node, ...]:
    """Drop nodes that the output does not need."""
    needed = {output}
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return tuple(node for node in nodes if node.name in needed)
