"""Cuts: tensors that alone separate what is before them from what is after them.

Every path from input to output passes through each cut, so a network may be taken apart, and
branches may meet, exactly at cuts (DESIGN: the problem, exactly). A tensor between an operator
and the epilogue it is always deployed with (convolution -> batch norm -> activation,
add -> activation, scale and shift by constants) is no cut: branches cannot meet inside one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, Value, ValueRef
from nnstretch.structure.kernel_fusion import positions_inside_kernels
from nnstretch.structure.kernel_operators import MOVING
from nnstretch.structure.macs import CONVOLUTIONS, TRANSPOSED
from nnstretch.structure.padding import PADS

INPUT, OUTPUT = "input", "output"
WRITERS = CONVOLUTIONS | TRANSPOSED | {"linear"}
_ACTIVATION_NAMES = """
    relu relu6 hardtanh silu gelu hardswish leaky_relu elu selu mish tanh sigmoid hardsigmoid prelu
    softplus
"""
ACTIVATIONS = frozenset(_ACTIVATION_NAMES.split())
PASSING = frozenset({"dropout", "feature_dropout", "clone", "contiguous", "alias", "detach"})
"""They change no value in evaluation mode."""
FUSED = {
    "batch_norm": WRITERS,
    "activation": WRITERS | {"batch_norm", "add", "group_norm", "instance_norm"},
}
"""Epilogue -> the operators it is deployed with."""
LISTED_CUTS = 40
"""Cuts that an error message lists."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A possible meeting point."""

    name: str
    """Outermost module that ends in it, else its operator; the network's end is `output`."""
    value: str
    """The tensor's name in the graph."""
    position: int
    """Index of the node that writes it; -1 for the network's input."""


def find_cuts(graph: Graph) -> tuple[Cut, ...]:
    """Return every cut in execution order, the network's input left out, its output last."""
    readers, fused = graph.consumers(), positions_inside_kernels(graph)
    cuts: list[Cut] = []
    for position, name in separating_positions(graph):
        cut = Cut(name, graph.nodes[position].name, position)
        epilogue_follows = inside_kernel(graph, cut, readers.get(cut.value, ()))
        if name == OUTPUT or not (epilogue_follows or position in fused):
            cuts.append(cut)
    return tuple(cuts)


def separating_positions(graph: Graph) -> Iterator[tuple[int, str]]:
    """Yield positions after which only one tensor, of the input's batch, is alive; and its name."""
    if len(graph.outputs) != 1 or len(graph.inputs) != 1:
        return
    end = next((i for i, node in enumerate(graph.nodes) if node.name == graph.outputs[0]), -1)
    if end < 0:
        return
    carriers = depends_on_input(graph)
    last_read = last_readers(graph, carriers)
    ends = module_ends(graph)
    source = graph.inputs[0]
    horizon = last_read.get(source.name, 0)
    for i, node in enumerate(graph.nodes[:end]):
        if node.name not in carriers:
            continue
        alone = i >= horizon and len(node.outputs) == 1 and node.name in last_read
        if alone and node.output.shape[:1] == source.spec.shape[:1]:
            yield i, ends.get(i, node.name)
        horizon = max(horizon, last_read.get(node.name, i))
    if graph.outputs[0] in carriers:
        yield end, OUTPUT


def no_cut_reason(inputs: int, outputs: int) -> str:
    """Return why a network of so many inputs and outputs has no cut."""
    if inputs == outputs == 1:
        return "nothing separates its input from its output"
    return f"cuts separate one input from one output, it has {inputs} and {outputs}"


def last_readers(graph: Graph, names: set[str]) -> dict[str, int]:
    """Return the position of the last node that reads each of these names."""
    positions: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            if name in names:
                positions[name] = i
    return positions


def depends_on_input(graph: Graph) -> set[str]:
    """Return names of tensors that carry the input: no batch sizes, no functions of weights."""
    carriers = set(graph.input_names)
    for node in graph.nodes:
        if not is_size(node) and not carriers.isdisjoint(node.inputs):
            carriers.add(node.name)
    return carriers


def is_size(node: Node) -> bool:
    """Return whether a node computes a size, not a tensor."""
    return node.kind == "sym_size" or node.op.startswith("py.")


def module_ends(graph: Graph) -> dict[int, str]:
    """Return the outermost module that ends with each node: no later node belongs to it."""
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        if not is_size(node):
            last.update(dict.fromkeys(prefixes(node.module), i))
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

    Inside a sub-graph runtimes pad while they convolve; a padded map that is handed over is first
    copied pixel by pixel, so nothing is gained by meeting at it.
    """
    if graph.nodes[cut.position].kind not in PADS:
        return False
    readers = graph.consumers().get(cut.value, ())
    return len(readers) == 1 and readers[0].kind in CONVOLUTIONS


def cut_named(graph: Graph, name: str) -> Cut:
    """Return the cut of that name, or at the end of the module of that path.

    Raises BadPlan, which lists the cuts, where there is none.
    """
    if name == INPUT:
        return Cut(INPUT, graph.inputs[0].name, -1)
    cuts = find_cuts(graph)
    for cut in cuts:
        if cut.name == name:
            return cut
    end = end_of_module(graph, name)
    for cut in cuts:
        if cut.position == end:
            return cut
    known = ", ".join(cut.name for cut in cuts[:LISTED_CUTS]) or "none"
    more = ", ..." if len(cuts) > LISTED_CUTS else ""
    raise BadPlan(f"unknown cut {name!r}, network {graph.name}, its cuts are {known}{more}")


def end_of_module(graph: Graph, path: str) -> int | None:
    """Return the position of a module's last node; None where the graph has no such module."""
    end: int | None = None
    for i, node in enumerate(graph.nodes):
        if not is_size(node) and path in prefixes(node.module):
            end = i
    return end


def section(graph: Graph, start: Cut, end: Cut) -> Graph:
    """Return the sub-network that reads one cut and writes another, as a graph of its own.

    Batch sizes and functions of weights that are computed before the start are computed again.
    """
    nodes = prune_unread(graph.nodes[start.position + 1 : end.position + 1], (end.value,))
    body = recomputed_nodes(graph, start, nodes) + nodes
    read: set[str] = set()
    for node in body:
        read.update(node.inputs)
    return Graph(
        f"{start.name}..{end.name}",
        (Value(start.value, graph.specs()[start.value]),),
        tuple(weight for weight in graph.weights if weight.name in read),
        body,
        (end.value,),
    )


def recomputed_nodes(graph: Graph, start: Cut, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes before a section that it must compute again, in execution order."""
    before = {node.name: node for node in graph.nodes[: start.position + 1]}
    before.pop(start.value, None)
    needed: dict[str, Node] = {}
    for node in nodes:
        for name in node.inputs:
            gather_recomputed(name, before, start.value, needed)
    return tuple(needed[node.name] for node in graph.nodes if node.name in needed)


def gather_recomputed(
    name: str, before: dict[str, Node], start: str, needed: dict[str, Node]
) -> None:
    """Collect a node and all it needs; a batch size is read off the section's own input."""
    if name in needed or name not in before:
        return
    node = before[name]
    if node.kind == "sym_size":
        node = replace(node, args=(ValueRef(start), 0))
    for needed_name in node.inputs:
        gather_recomputed(needed_name, before, start, needed)
    needed[name] = node


def prune_unread(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[Node, ...]:
    """Drop nodes that no output needs."""
    needed = set(outputs)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return tuple(node for node in nodes if node.name in needed)
