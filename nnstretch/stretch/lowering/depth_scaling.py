"""Depth scaling: drop repeats of a section, or repeat its last one again."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, Weight, rename_refs
from nnstretch.structure.blocks import BlockStage, Repeat
from nnstretch.structure.cuts import Cut, prune_unread, section

COPY_NUMBER = re.compile(r"_copy\d+$")
"""What `copy_name` adds to a module's name."""


def local_stages(all_stages: Sequence[BlockStage], start: Cut, end: Cut) -> tuple[BlockStage, ...]:
    """Return the stages inside a section; where it begins inside one, its first repeat stays."""
    stages: list[BlockStage] = []
    for stage in all_stages:
        repeats = repeats_between(stage, start, end)
        if start.position < stage.first_end.position <= end.position:
            stages.append(BlockStage(stage.first_end, repeats))
        elif repeats:
            stages.append(BlockStage(repeats[0].end, repeats[1:]))
    return tuple(stages)


def repeats_between(stage: BlockStage, start: Cut, end: Cut) -> tuple[Repeat, ...]:
    """Return the repeats of a stage that lie between two cuts; they follow each other."""
    first = bisect_left(stage.repeats, start.position, key=lambda repeat: repeat.start.position)
    behind = bisect_right(stage.repeats, end.position, key=lambda repeat: repeat.end.position)
    return stage.repeats[first:behind]


def plan_depth(all_stages: Sequence[BlockStage], start: Cut, end: Cut) -> int:
    """Return the depth of a section in blocks: first blocks of stages and repeats, at least 1."""
    return sum(stage.depth for stage in local_stages(all_stages, start, end)) or 1


def distribute_repeats(depths: Sequence[int], stages: Sequence[BlockStage]) -> np.ndarray:
    """Return how often stages repeat, in proportion, largest remainder first: `[depth, stage]`."""
    lengths = np.array([len(stage.repeats) for stage in stages], dtype=np.int64)
    spare = np.array(depths)[:, None] - len(stages)
    exact = spare * lengths / max(1, lengths.sum())
    counts = exact.astype(np.int64)
    by_remainder = np.argsort(counts - exact, axis=1, kind="stable")
    ranks = np.argsort(by_remainder, axis=1, kind="stable")
    counts += (ranks < spare - counts.sum(axis=1, keepdims=True)) & (lengths.sum() > 0)
    return np.asarray(counts)


def with_depth(
    graph: Graph, all_stages: Sequence[BlockStage], start: Cut, end: Cut, depth: int | None
) -> Graph:
    """Return the section between two cuts with `depth` blocks; None keeps them all.

    Raises BadPlan below one block a stage, and above the original depth where nothing repeats.
    """
    graph = section(graph, start, end)
    stages = local_stages(all_stages, start, end)
    full = sum(stage.depth for stage in stages) or 1
    if depth is None or depth == full:
        return graph
    lowest = max(1, len(stages))
    if depth < lowest or (depth > full and not any(stage.repeats for stage in stages)):
        possible = f"{lowest} to {full}" if lowest < full else str(full)
        raise BadPlan(
            f"depth {depth} is impossible, segment {start.name} -> {end.name}, it has {full} blocks"
            f" and may keep {possible}"
        )
    counts = distribute_repeats([depth], stages)[0].tolist()
    for stage, count in zip(stages, counts, strict=True):
        for repeat in reversed(stage.repeats[count:]):
            graph = drop_repeat(graph, repeat)
        for copy in range(count - len(stage.repeats)):
            graph = duplicate_repeat(graph, stage.repeats[-1], copy + 1)
    return graph


def repeat_nodes(repeat: Repeat) -> set[str]:
    """Return the names of a repeat's nodes."""
    names: set[str] = set()
    for unit in repeat.units:
        names.update(node.name for node in unit.nodes)
    return names


def drop_repeat(graph: Graph, repeat: Repeat) -> Graph:
    """Let the readers of a repeat read its input. Raises BadPlan when that is gone.

    What it computes of weights alone stays where others read it: its last unit may hold the cast
    weights of the next.
    """
    start = repeat.start.value
    if start not in graph.specs():
        raise BadPlan(f"cannot drop {repeat.end.name}, its input {start} is gone")
    dropped = descendants(graph, start) & repeat_nodes(repeat)
    names = {repeat.end.value: start}
    nodes = [rename_inputs(node, names) for node in graph.nodes if node.name not in dropped]
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    return prune(replace(graph, nodes=tuple(nodes), outputs=outputs))


def descendants(graph: Graph, start: str) -> set[str]:
    """Return the names of the nodes that need a value."""
    carriers = {start}
    for node in graph.nodes:
        if not carriers.isdisjoint(node.inputs):
            carriers.add(node.name)
    return carriers - {start}


def duplicate_repeat(graph: Graph, repeat: Repeat, copy: int) -> Graph:
    """Return the graph with copy number `copy` of a repeat behind it, with weights of its own."""
    weights = {weight.name: weight for weight in graph.weights}
    inner = repeat_nodes(repeat)
    originals = [node for node in graph.nodes if node.name in inner]
    end = copy_end(repeat, copy - 1)
    names = {repeat.start.value: end} | {name: f"{name}_copy{copy}" for name in inner}
    new_weights: dict[str, Weight] = {}
    for node in originals:
        for name in node.inputs:
            if name in weights:
                names[name] = copy_name(name, copy)
                new_weights[name] = replace(weights[name], name=names[name])
    copies = [replace(rename_inputs(node, names), name=names[node.name]) for node in originals]
    at = 1 + next(i for i, node in enumerate(graph.nodes) if node.name == end)
    following = [rename_inputs(node, {end: copy_end(repeat, copy)}) for node in graph.nodes[at:]]
    outputs = tuple(copy_end(repeat, copy) if name == end else name for name in graph.outputs)
    return prune(
        replace(
            graph,
            nodes=(*graph.nodes[:at], *copies, *following),
            weights=(*graph.weights, *new_weights.values()),
            outputs=outputs,
        )
    )


def copy_end(repeat: Repeat, copy: int) -> str:
    """Return the value at the end of a repeat's copy; copy 0 is the repeat itself."""
    return f"{repeat.end.value}_copy{copy}" if copy else repeat.end.value


def copy_name(weight: str, copy: int) -> str:
    """Return the name of a copied weight: `a.2.conv.weight` becomes `a.2.conv_copy1.weight`."""
    module, _, leaf = weight.rpartition(".")
    return f"{module}_copy{copy}.{leaf}" if module else f"{leaf}_copy{copy}"


def original_weight(name: str, weights: Container[str]) -> str:
    """Return the weight of the captured network that a weight starts from, a copy's its block's.

    `weights` are those of the captured network, whose own names may look like a copy's.
    """
    if name in weights:
        return name
    module, _, leaf = name.rpartition(".")
    if module:
        return f"{COPY_NUMBER.sub('', module)}.{leaf}"
    return COPY_NUMBER.sub("", leaf)


def rename_inputs(node: Node, names: Mapping[str, str]) -> Node:
    """Return a node with its inputs renamed."""
    if not any(name in names for name in node.inputs):
        return node
    table = dict(names)
    args = rename_refs(node.args, table)
    assert isinstance(args, tuple)
    kwargs = tuple((key, rename_refs(value, table)) for key, value in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)


def prune(graph: Graph) -> Graph:
    """Drop nodes that no output needs, and the weights that no node reads."""
    nodes = prune_unread(graph.nodes, graph.outputs)
    read: set[str] = set()
    for node in nodes:
        read.update(node.inputs)
    weights = tuple(weight for weight in graph.weights if weight.name in read)
    return replace(graph, nodes=nodes, weights=weights)
