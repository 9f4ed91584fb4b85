"""Split a graph into one sub-graph per stage, at any set of tensors.

A value that crosses stages is one output of its producer and one input of each stage that reads it,
however many of the stage's operators do. Weights go with their readers; batch sizes and functions
of weights are computed again where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from nnstretch.errors import BadInput
from nnstretch.graph import Graph, Node, Value, ValueRef, names_read
from nnstretch.structure.cuts import depends_on_input, is_size


@dataclass(frozen=True)
class StagedGraph:
    """A graph with the stage of every value that depends on an input."""

    graph: Graph
    carriers: set[str]
    """Inputs, outputs, and all values that depend on an input."""
    stage_of: dict[str, int]


def split_graph(graph: Graph, stage_of: Sequence[int]) -> tuple[Graph, ...]:
    """Return the sub-graph of every stage; `stage_of` gives the stage of every node.

    Outputs are in order of their first use downstream, those of the network last. Raises BadInput
    with the operator that is in the way.
    """
    carriers = depends_on_input(graph) | set(graph.outputs)
    staged = StagedGraph(graph, carriers, stage_of_value(graph, stage_of, carriers))
    count = max(staged.stage_of.values(), default=-1) + 1
    bodies = [body_of(staged, stage) for stage in range(count)]
    for stage, body in enumerate(bodies):
        if not any(node.name in staged.stage_of for node in body):
            raise BadInput(
                f"stage {stage} of {count} has no operator, network {graph.name}, every stage"
                " needs one"
            )
    reads = [reads_of(staged, body) for body in bodies]
    return tuple(stage_graph(staged, stage, body, reads) for stage, body in enumerate(bodies))


def stage_of_value(graph: Graph, stage_of: Sequence[int], carriers: set[str]) -> dict[str, int]:
    """Return the stage of every value that depends on an input.

    What picks from a tuple goes where the tuple is. Raises BadInput when a value would run
    backward, or a whole tuple would cross.
    """
    stages: dict[str, int] = {}
    tuples = {node.name for node in graph.nodes if len(node.outputs) > 1}
    for node, stage in zip(graph.nodes, stage_of, strict=True):
        if node.name not in carriers:
            continue
        source = node.inputs[0] if node.op == "getitem" else None
        stages[node.name] = stages.get(source, stage) if source is not None else stage
        for name in node.inputs:
            if stages.get(name, 0) > stages[node.name] and not is_size(node):
                raise BadInput(
                    f"{node.name} in stage {stages[node.name]} reads {name} of stage"
                    f" {stages[name]}, network {graph.name}, values run forward only"
                )
            if name in tuples and node.op != "getitem" and stages[name] != stages[node.name]:
                raise BadInput(
                    f"{node.name} reads the whole tuple {name}, network {graph.name}, they cannot"
                    " be in different stages"
                )
    return stages


def crossing_values(graph: Graph, unit_of: Sequence[int]) -> tuple[str, ...]:
    """Return the values that another unit reads than the one that writes them, inputs apart."""
    carriers = depends_on_input(graph) | set(graph.outputs)
    unit = stage_of_value(graph, unit_of, carriers)
    sizes = {node.name for node in graph.nodes if is_size(node)}
    crossing: dict[str, None] = {}
    for node in graph.nodes:
        if node.name not in unit or is_size(node):
            continue
        for name in node.inputs:
            if name in unit and name not in sizes and unit[name] != unit[node.name]:
                crossing[name] = None
    return tuple(crossing)


def body_of(staged: StagedGraph, stage: int) -> tuple[Node, ...]:
    """Return the nodes of a stage, with those that it computes again."""
    nodes = staged.graph.nodes
    recomputed = {node.name: node for node in nodes if node.name not in staged.carriers}
    names = {node.name for node in nodes if staged.stage_of.get(node.name) == stage}
    unvisited = names_read(node for node in nodes if node.name in names)
    while unvisited:
        name = unvisited.pop()
        if name in recomputed and name not in names:
            names.add(name)
            unvisited += recomputed[name].inputs
    body = [node for node in nodes if node.name in names]
    return tuple(read_size(staged, node, stage, body) for node in body)


def read_size(staged: StagedGraph, node: Node, stage: int, body: Sequence[Node]) -> Node:
    """Return a batch size's node so that it reads a tensor of the stage; other nodes as they are.

    Raises BadInput when no tensor that enters the stage has the batch's size.
    """
    if node.kind != "sym_size":
        return node
    source = node.inputs[0]
    reads = names_read(member for member in body if not is_size(member))
    entering = [
        name for name in reads if name in staged.carriers and staged.stage_of.get(name) != stage
    ]
    in_stage = staged.stage_of.get(source) == stage
    if source in entering or in_stage or source not in staged.carriers:
        return node
    specs = staged.graph.specs()
    axis = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], int) else 0
    size = specs[source].shape[axis]
    for name in entering:
        if specs[name].shape[:1] == (size,):
            return replace(node, args=(ValueRef(name), 0))
    raise BadInput(
        f"stage {stage} needs the batch size of {source}, network {staged.graph.name}, nothing that"
        " enters it has it"
    )


def reads_of(staged: StagedGraph, body: Sequence[Node]) -> tuple[str, ...]:
    """Return the values that enter a stage, in order of first use, each once."""
    written = {node.name for node in body}
    entering = [n for n in names_read(body) if n in staged.carriers and n not in written]
    return tuple(dict.fromkeys(entering))


def stage_graph(
    staged: StagedGraph, stage: int, body: tuple[Node, ...], reads: Sequence[tuple[str, ...]]
) -> Graph:
    """Return one stage as a graph; `reads` are the values that enter each stage."""
    graph = staged.graph
    specs = graph.specs()
    used = set(names_read(body))
    outputs = dict.fromkeys(chain(*reads, graph.outputs))
    return Graph(
        name=f"{graph.name}/{stage}",
        inputs=tuple(Value(name, specs[name]) for name in reads[stage]),
        weights=tuple(weight for weight in graph.weights if weight.name in used),
        nodes=body,
        outputs=tuple(name for name in outputs if staged.stage_of.get(name) == stage),
    )
