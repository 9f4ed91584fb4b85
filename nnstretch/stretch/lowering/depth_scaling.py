"""Depth scaling: drop repeats of a section, or repeat its last one again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Argument, Graph, Node, Weight, rename_refs
from nnstretch.structure.blocks import BlockStage, Repeat
from nnstretch.structure.cuts import Cut, section


def local_stages(all_stages: Sequence[BlockStage], start: Cut, end: Cut) -> tuple[BlockStage, ...]:
    """Return stages as a section sees them.

    Where it begins inside a stage, the first repeat it holds stays.
    """
    stages: list[BlockStage] = []
    for stage in all_stages:
        inside = tuple(
            r
            for r in stage.repeats
            if start.position <= r.start.position and r.end.position <= end.position
        )
        if start.position < stage.first_end.position <= end.position:
            stages.append(BlockStage(stage.first_end, inside))
        elif inside:
            stages.append(BlockStage(inside[0].end, inside[1:]))
    return tuple(stages)


def plan_depth(all_stages: Sequence[BlockStage], start: Cut, end: Cut) -> int:
    """Return blocks in a row that a plan counts: one for the first of each stage plus its repeats.

    1 where nothing repeats.
    """
    return sum(stage.depth for stage in local_stages(all_stages, start, end)) or 1


def distribute_repeats(depth: int, stages: Sequence[BlockStage]) -> list[int]:
    """Return how many repeats each stage keeps when the section keeps `depth` blocks.

    In proportion, largest remainder first.
    """
    spare = depth - len(stages)
    total = sum(len(stage.repeats) for stage in stages)
    if total == 0:
        return [0] * len(stages)
    exact = [spare * len(stage.repeats) / total for stage in stages]
    kept = [int(share) for share in exact]
    order = sorted(range(len(stages)), key=lambda i: (kept[i] - exact[i], i))
    for i in order[: spare - sum(kept)]:
        kept[i] += 1
    return kept


def with_depth(
    graph: Graph, all_stages: Sequence[BlockStage], start: Cut, end: Cut, depth: int | None
) -> Graph:
    """Return the section from `start` to `end` with `depth` blocks; None keeps them all.

    Raises BadPlan for a depth below the number of first blocks, or above the original where nothing
    repeats.
    """
    whole = section(graph, start, end)
    stages = local_stages(all_stages, start, end)
    full = sum(stage.depth for stage in stages) or 1
    if depth is None or depth == full:
        return whole
    lowest = max(1, len(stages))
    if depth < lowest or (depth > full and not any(stage.repeats for stage in stages)):
        reach = f"{lowest} to {full}" if lowest < full else str(full)
        raise BadPlan(
            f"depth {depth} is impossible, segment {start.name} -> {end.name}, it has {full} blocks"
            f" and may keep {reach}"
        )
    for stage, keep in zip(stages, distribute_repeats(depth, stages), strict=True):
        for repeat in reversed(stage.repeats[keep:]):
            whole = drop_repeat(whole, repeat)
        for copy in range(keep - len(stage.repeats)):
            whole = duplicate_repeat(whole, stage.repeats[-1], copy + 1)
    return whole


def drop_repeat(graph: Graph, repeat: Repeat) -> Graph:
    """Return the graph without a repeat: its readers read what it read.

    Raises BadPlan when its input is gone.
    """
    gone = {
        node.name
        for unit in repeat.units
        for node in unit.nodes
        if node.name in {n.name for n in graph.nodes}
    }
    names = {repeat.end.value: repeat.start.value}
    previous = {node.name: node for node in graph.nodes}
    start = repeat.start.value
    if start not in previous and start not in {v.name for v in graph.inputs}:
        raise BadPlan(f"cannot drop {repeat.end.name}, its input {start} is gone")
    nodes = tuple(rename_inputs(node, names) for node in graph.nodes if node.name not in gone)
    outputs = tuple(names.get(o, o) for o in graph.outputs)
    return prune_weights(graph, nodes, outputs, graph.weights)


def duplicate_repeat(graph: Graph, repeat: Repeat, copy: int) -> Graph:
    """Return the graph with one more copy of a repeat behind it, with weights of its own."""
    known = {weight.name: weight for weight in graph.weights}
    inner = {node.name for unit in repeat.units for node in unit.nodes}
    body = [node for node in graph.nodes if node.name in inner]
    tail = body_end(graph, repeat, copy)
    names = {repeat.start.value: tail} | {name: f"{name}_copy{copy}" for name in inner}
    names |= {w: copy_name(w, copy) for node in body for w in node.inputs if w in known}
    copies = tuple(replace(rename_inputs(node, names), name=names[node.name]) for node in body)
    at = max(i for i, node in enumerate(graph.nodes) if node.name == tail) + 1
    after = {tail: names[repeat.end.value]}
    nodes = (
        graph.nodes[:at] + copies + tuple(rename_inputs(node, after) for node in graph.nodes[at:])
    )
    fresh = tuple(replace(known[w], name=new) for w, new in names.items() if w in known)
    outputs = tuple(after.get(o, o) for o in graph.outputs)
    return prune_weights(graph, nodes, outputs, graph.weights + fresh)


def body_end(graph: Graph, repeat: Repeat, copy: int) -> str:
    """Return the name of the value at the end of a block's copy."""
    return repeat.end.value if copy == 1 else f"{repeat.end.value}_copy{copy - 1}"


def copy_name(weight: str, copy: int) -> str:
    """Return `layer1.2.conv1.weight` -> `layer1.2_copy1`-like name.

    The copy counts on the module, not on the tensor.
    """
    module, _, leaf = weight.rpartition(".")
    return f"{module}_copy{copy}.{leaf}" if module else f"{leaf}_copy{copy}"


def original_weight(name: str) -> str:
    """Return which weight of the captured network a copy starts from."""
    module, _, leaf = name.rpartition(".")
    module = module.rpartition("_copy")[0] if "_copy" in module else module
    return (
        f"{module}.{leaf}" if module else leaf.rpartition("_copy")[0] if "_copy" in leaf else leaf
    )


def rename_inputs(node: Node, names: Mapping[str, str]) -> Node:
    """Return a node with its inputs renamed."""
    if not any(name in names for name in node.inputs):
        return node
    table = dict(names)
    args = rename_refs(node.args, table)
    assert isinstance(args, tuple)
    kwargs: tuple[tuple[str, Argument], ...] = tuple(
        (key, rename_refs(value, table)) for key, value in node.kwargs
    )
    return replace(node, args=args, kwargs=kwargs)


def prune_weights(
    graph: Graph, nodes: tuple[Node, ...], outputs: tuple[str, ...], weights: tuple[Weight, ...]
) -> Graph:
    """Return the graph with only those weights that its nodes read."""
    read = {name for node in nodes for name in node.inputs}
    return replace(
        graph, nodes=nodes, outputs=outputs, weights=tuple(w for w in weights if w.name in read)
    )
