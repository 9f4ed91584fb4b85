"""A graph falls into stages, at any set of tensors.

A value that crosses becomes one output of the stage that writes it and one input of each stage that
reads it, however often it is used there. Weights go with their readers; batch sizes and functions
of weights are computed again where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.errors import BadInput
from nnstretch.graph import Graph, Node, Value, ValueRef
from nnstretch.structure.cuts import depends_on_input, is_size


def split_graph(graph: Graph, stage_of: Sequence[int]) -> tuple[Graph, ...]:
    """Return the sub-graph of every stage, stages counted from 0.

    `stage_of` holds one number per node, and no value runs backwards.

    Outputs are in order of their first use downstream, those of the network last. Raises BadInput
    with the operator that is in the way.
    """
    carriers = depends_on_input(graph) | set(graph.outputs)
    home = stage_of_value(graph, stage_of, carriers)
    count = max(home.values(), default=-1) + 1
    bodies = [body_of(graph, home, stage, carriers) for stage in range(count)]
    if empty := [
        str(stage)
        for stage, body in enumerate(bodies)
        if not any(node.name in home for node in body)
    ]:
        raise BadInput(
            f"stage {empty[0]} of {count} has no operator, network {graph.name}, every stage"
            " needs one"
        )
    reads = [reads_of(body, carriers) for body in bodies]
    return tuple(stage_graph(graph, home, stage, bodies[stage], reads) for stage in range(count))


def stage_of_value(graph: Graph, stage_of: Sequence[int], carriers: set[str]) -> dict[str, int]:
    """Return stage of every value that depends on an input.

    What picks from a tuple goes where the tuple is.

    Raises BadInput when a value would run backward.
    """
    home: dict[str, int] = {}
    tuples = {node.name for node in graph.nodes if len(node.outputs) > 1}
    for node, stage in zip(graph.nodes, stage_of, strict=True):
        if node.name not in carriers:
            continue
        source = node.inputs[0] if node.op == "getitem" else None
        home[node.name] = home.get(source, stage) if source is not None else stage
        for name in node.inputs:
            if home.get(name, 0) > home[node.name] and not is_size(node):
                raise BadInput(
                    f"{node.name} in stage {home[node.name]} reads {name} of stage {home[name]},"
                    f" network {graph.name}, values run forward only"
                )
            if name in tuples and node.op != "getitem" and home[name] != home[node.name]:
                raise BadInput(
                    f"{node.name} reads the whole tuple {name}, network {graph.name}, they cannot"
                    " be in different stages"
                )
    return home


def body_of(graph: Graph, home: dict[str, int], stage: int, carriers: set[str]) -> tuple[Node, ...]:
    """Return nodes of a stage, and before them what it computes again."""
    again = {node.name: node for node in graph.nodes if node.name not in carriers}
    wanted: set[str] = set()
    open_names = [
        name for node in graph.nodes if home.get(node.name) == stage for name in node.inputs
    ]
    while open_names:
        name = open_names.pop()
        if name in again and name not in wanted:
            wanted.add(name)
            open_names += again[name].inputs
    body = tuple(
        node for node in graph.nodes if home.get(node.name) == stage or node.name in wanted
    )
    return tuple(
        resize_batch(graph, node, home, stage, body, carriers) if node.kind == "sym_size" else node
        for node in body
    )


def resize_batch(
    graph: Graph,
    node: Node,
    home: dict[str, int],
    stage: int,
    body: tuple[Node, ...],
    carriers: set[str],
) -> Node:
    """Resize computed batch sizes: they are read off what the stage has anyway.

    Raises BadInput when nothing in the stage has the batch's size.
    """
    source, own_names = (
        node.inputs[0],
        [
            name
            for member in body
            if not is_size(member)
            for name in member.inputs
            if name in carriers
        ],
    )
    specs, entering = graph.specs(), [name for name in own_names if home.get(name) != stage]
    if source in entering or home.get(source) == stage or source not in carriers:
        return node
    axis = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], int) else 0
    size = specs[source].shape[axis]
    for name in entering:
        if specs[name].shape[:1] == (size,):
            return replace(node, args=(ValueRef(name), 0))
    raise BadInput(
        f"stage {stage} needs the batch size of {source}, network {graph.name}, nothing that enters"
        " it has it"
    )


def reads_of(body: tuple[Node, ...], carriers: set[str]) -> tuple[str, ...]:
    """Return values that depend on an input, in order of first use, each once."""
    own_names = {node.name for node in body}
    return tuple(
        dict.fromkeys(
            name
            for node in body
            for name in node.inputs
            if name in carriers and name not in own_names
        )
    )


def stage_graph(
    graph: Graph,
    home: dict[str, int],
    stage: int,
    body: tuple[Node, ...],
    reads: Sequence[tuple[str, ...]],
) -> Graph:
    """Return one stage as a graph of its own."""
    specs, mine = graph.specs(), {name for name, at in home.items() if at == stage}
    used = {name for node in body for name in node.inputs}
    downstream = [name for later in reads for name in later if name in mine]
    outputs = tuple(dict.fromkeys([*downstream, *(name for name in graph.outputs if name in mine)]))
    return Graph(
        name=f"{graph.name}/{stage}",
        inputs=tuple(Value(name, specs[name]) for name in reads[stage]),
        weights=tuple(weight for weight in graph.weights if weight.name in used),
        nodes=body,
        outputs=outputs,
    )
