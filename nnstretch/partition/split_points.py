"""Split points by hand: operators, cuts, sets of tensors, or ranges of the graph's printed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain

from nnstretch.errors import BadInput, UnknownName, closest, name_first
from nnstretch.files.checked import checked
from nnstretch.graph import Graph
from nnstretch.partition.split_graph import split_graph
from nnstretch.structure.cuts import OUTPUT, find_cuts, is_size, prefixes

Point = str | tuple[str, int] | Collection[str]
"""`layer1`: after that cut, module or node; `("add", 1)` or `add:1`: after the second `add`.

Several names: after everything that these tensors need.
"""
RANGE = ".."


@checked
def split_at(graph: Graph, points: Sequence[Point]) -> tuple[Graph, ...]:
    """Split a graph at points; return sub-graphs in order, one more than points.

    Raises UnknownName for an unknown point, BadInput for what is no point or splits nothing.
    """
    return split_graph(graph, stages_at(graph, points))


def stages_of_text(graph: Graph, text: str) -> tuple[int, ...]:
    """Parse split points; return the stage of every node.

    `layer1,layer2`, `conv2d:3`, `add_1+relu_2` (a set of tensors), or `START..END,START..END`.
    Raises BadInput when the text names no points, or mixes points and ranges.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise BadInput(
            f"no split point in {text!r}, network {graph.name}, name a cut, OP:N or START..END"
        )
    if all(RANGE in word for word in words):
        ranges = [word.partition(RANGE) for word in words]
        return stages_of_ranges(graph, [(start, end) for start, _, end in ranges])
    if mixed := [word for word in words if RANGE in word]:
        raise BadInput(
            f"range {mixed[0]} among split points, network {graph.name}, give ranges only or points"
            " only"
        )
    return stages_at(graph, [frozenset(word.split("+")) if "+" in word else word for word in words])


def stages_at(graph: Graph, points: Sequence[Point]) -> tuple[int, ...]:
    """Return the stage of every node: how many points it lies behind; points in any order.

    Raises BadInput when a point splits nothing.
    """
    before = [(point_text(point), nodes_before(graph, point)) for point in points]
    before.sort(key=lambda named: len(named[1]))
    everything = {node.name for node in graph.nodes if not is_size(node)}
    covered: set[str] = set()
    stage_of = Counter[str]()
    for name, nodes in before:
        why = None
        if everything <= covered | nodes:
            why = "everything is before it"
        elif nodes <= covered:
            why = "nothing is between it and the point before it"
        if why is not None:
            raise BadInput(f"split point {name} splits nothing, network {graph.name}, {why}")
        covered |= nodes
        stage_of.update(node.name for node in graph.nodes if node.name not in covered)
    return tuple(stage_of[node.name] for node in graph.nodes)


def point_text(point: Point) -> str:
    """Return a split point as text."""
    if isinstance(point, str):
        return point
    if isinstance(point, tuple) and len(point) == 2 and isinstance(point[1], int):
        return f"{point[0]}:{point[1]}"
    return "+".join(sorted(map(str, point)))


def nodes_before(graph: Graph, point: Point) -> set[str]:
    """Return names of the nodes up to a point."""
    if isinstance(point, tuple) and len(point) == 2 and isinstance(point[1], int):
        return nodes_up_to(graph, nth_call(graph, point[0], point[1]))
    if not isinstance(point, str):
        return ancestors(graph, {str(name) for name in point})
    op, colon, number = point.rpartition(":")
    if colon and number.isdecimal():
        return nodes_up_to(graph, nth_call(graph, op, int(number)))
    return nodes_up_to(graph, node_position(graph, point))


def nodes_up_to(graph: Graph, position: int) -> set[str]:
    """Return the names of all nodes up to a position."""
    return {node.name for node in graph.nodes[: position + 1]}


def ancestors(graph: Graph, names: set[str]) -> set[str]:
    """Return everything that tensors need, themselves included. Raises UnknownName."""
    known = {node.name for node in graph.nodes}
    if unknown := sorted(names - known):
        raise UnknownName(
            f"unknown tensor {unknown[0]!r}, network {graph.name}, its graph has none of this"
            f" name{closest(unknown[0], [*known])}"
        )
    reached = set(names)
    for node in reversed(graph.nodes):
        if node.name in reached:
            reached |= known.intersection(node.inputs)
    return reached


def nth_call(graph: Graph, op: str, number: int) -> int:
    """Return the index of the `number`-th call of an operator, from 0. Raises UnknownName."""
    calls = [i for i, node in enumerate(graph.nodes) if op in (node.op, node.kind)]
    if not 0 <= number < len(calls):
        kinds = dict.fromkeys(node.kind for node in graph.nodes)
        have = f"{len(calls)}, counted from 0" if calls else f"none{closest(op, [*kinds])}"
        raise UnknownName(f"unknown split point {op}:{number}, network {graph.name}, it has {have}")
    return calls[number]


def node_position(graph: Graph, name: str) -> int:
    """Return the index of the node that ends a cut or a module. Raises UnknownName."""
    for cut in find_cuts(graph):
        if cut.name == name != OUTPUT:
            return cut.position
    for i, node in enumerate(graph.nodes):
        if node.name == name:
            return i
    for i, node in reversed(list(enumerate(graph.nodes))):
        if name in prefixes(node.module) and not is_size(node):
            return i
    if name == OUTPUT:  # splits nothing, as any name of the last node
        return len(graph.nodes) - 1
    known = [cut.name for cut in find_cuts(graph)] + [node.name for node in graph.nodes]
    raise UnknownName(
        f"unknown split point {name!r}, network {graph.name}, no cut, module or node of this"
        f" name{closest(name, known)}"
    )


def stages_of_ranges(graph: Graph, ranges: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Return the stage of every node, from ranges of the printed form.

    Raises UnknownName for an unknown node, BadInput when ranges overlap or leave gaps.
    """
    position = graph.positions()
    check_names(graph, ranges)
    stage_of: dict[int, int] = {}
    for stage, (start, end) in enumerate(sorted(ranges, key=lambda pair: position[pair[0]])):
        if position[end] < position[start]:
            raise BadInput(
                f"range {start}{RANGE}{end} ends before it starts, network {graph.name}, nodes are"
                " in printed order"
            )
        for i in range(position[start], position[end] + 1):
            if i in stage_of:
                raise BadInput(
                    f"{graph.nodes[i].name} is in two ranges, network {graph.name}, each node is"
                    " in one"
                )
            stage_of[i] = stage
    outside = [i for i in range(len(graph.nodes)) if i not in stage_of]
    missing = [graph.nodes[i].name for i in outside if not is_size(graph.nodes[i])]
    if missing:
        raise BadInput(
            f"{name_first(missing)} {'are' if len(missing) > 1 else 'is'} in no range, network"
            f" {graph.name}, ranges must cover every node"
        )
    return tuple(stage_of.get(i, 0) for i in range(len(graph.nodes)))


def check_names(graph: Graph, ranges: Sequence[tuple[str, str]]) -> None:
    """Check that a graph has the nodes of all ranges. Raises UnknownName."""
    known = [node.name for node in graph.nodes]
    for name in chain.from_iterable(ranges):
        if name not in known:
            raise UnknownName(
                f"unknown node {name!r}, network {graph.name}, its graph has none of this"
                f" name{closest(name, known)}"
            )
