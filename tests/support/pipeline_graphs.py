"""Graphs of scalars for tests of pipelines, and what they compute, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight

ONE = TensorSpec((1, 1))


def node(name: str, op: str, *args: Any, outputs: int = 1, module: str = "") -> Node:
    """Strings that begin with % are values."""

    def argument(item: Any) -> Any:
        return (
            ValueRef(item[1:])
            if isinstance(item, str) and item.startswith("%")
            else tuple(map(argument, item))
            if isinstance(item, tuple)
            else item
        )

    return Node(name, op, tuple(map(argument, args)), (ONE,) * outputs, module)


def reference() -> Graph:
    """out = 4d + 3e + 22, as the fact sheet writes it."""
    nodes = (
        node("o1", "add.Tensor", "%d", 1),
        node("o2", "sub.Tensor", "%d", 2),
        node("both", "cat", ("%o1", "%o2")),
        node("halves", "split.Tensor", "%both", 3, outputs=2),
        node("first", "getitem", "%halves", 0),
        node("o3", "add.Tensor", "%first", 2),
        node("n1", "add.Tensor", "%o3", 2),
        node("n2", "add.Tensor", "%n1", "%e"),
        node("n", "add.Tensor", "%n2", 3),
        node("thrice", "mul.Tensor", "%n", 3),
        node("out", "add.Tensor", "%thrice", "%o2"),
    )
    return Graph("reference", (Value("d", ONE), Value("e", ONE)), (), nodes, ("out",))


def run(graph: Graph, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value that a graph computes, of numbers and tuples of numbers."""
    found = dict(values)

    def of(argument: Any) -> Any:
        return (
            found[argument.name]
            if isinstance(argument, ValueRef)
            else tuple(map(of, argument))
            if isinstance(argument, tuple)
            else argument
        )

    operators = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "cat": lambda items: items,
        "split": lambda items, size: items,
        "getitem": lambda items, at: items[at],
        "sym_size": lambda item, axis: 1,
        "full": lambda size: 10 * size,
    }
    for one in graph.nodes:
        found[one.name] = operators[one.kind](*map(of, one.args))
    return found


def run_pieces(found: Sequence[Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    """What crosses and what leaves when each piece reads only what it says it reads."""
    known = dict(values)
    for piece in found:
        weights = {weight.name: values[weight.name] for weight in piece.weights}
        inside = run(piece, {value.name: known[value.name] for value in piece.inputs} | weights)
        known |= {name: inside[name] for name in piece.outputs}
    return known


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Sums, tuples and weights, values used once, several times or twice by one operator.

    One to three outputs.
    """
    names, tuples, nodes = ["x", "y"], [], []
    for i in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(["add", "add", "mul", "weight", "tuple", "pick", "sized"]))
        one, two = (f"%{draw(st.sampled_from(names))}" for _ in range(2))
        if kind == "tuple":
            nodes += [
                node(f"c{i}", "cat", (one, two)),
                node(f"v{i}", "split.Tensor", f"%c{i}", 1, outputs=2),
            ]
            tuples.append(f"v{i}")
            continue
        if kind == "pick" and tuples:
            nodes.append(
                node(
                    f"v{i}", "getitem", f"%{draw(st.sampled_from(tuples))}", draw(st.integers(0, 1))
                )
            )
        elif kind == "sized":
            nodes += [
                node(f"s{i}", "sym_size.int", one, 0),
                node(f"f{i}", "full", f"%s{i}"),
                node(f"v{i}", "add.Tensor", two, f"%f{i}"),
            ]
        else:
            nodes.append(
                node(
                    f"v{i}",
                    "mul.Tensor" if kind == "mul" else "add.Tensor",
                    one,
                    f"%w{i % 3}" if kind == "weight" else two,
                )
            )
        names.append(f"v{i}")
    made = names[2:] or ["x"]
    if made == ["x"]:
        nodes.append(node("last", "add.Tensor", "%x", "%y"))
        made = ["last"]
    outputs = tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)))
    needed = set(outputs)
    for one_node in reversed(nodes):
        if one_node.name in needed:
            needed.update(one_node.inputs)
    kept = tuple(one_node for one_node in nodes if one_node.name in needed)
    weights = tuple(Weight(f"w{i}", ONE) for i in range(3))
    return Graph("random", (Value("x", ONE), Value("y", ONE)), weights, kept, outputs)


MAP = TensorSpec((1, 64, 28, 28))


def residual(blocks: int = 3) -> Graph:
    """Blocks of two convolutions and a sum, each a hundred million MACs and more.

    Enough for mi9's predictors.
    """
    nodes, weights, at = [], [], "x"
    for b in range(blocks):
        start = at
        for c in range(2):
            weight = Weight(f"b{b}.c{c}.weight", TensorSpec((64, 64, 3, 3)))
            weights.append(weight)
            args = (ValueRef(at), ValueRef(weight.name), None, (1, 1), (1, 1), (1, 1), 1)
            nodes.append(
                Node(
                    f"conv{b}{c}", "conv2d", args, (MAP,), f"b{b}.c{c}", macs=64 * 64 * 9 * 28 * 28
                )
            )
            nodes.append(
                Node(f"relu{b}{c}", "relu", (ValueRef(f"conv{b}{c}"),), (MAP,), f"b{b}.r{c}")
            )
            at = f"relu{b}{c}"
        nodes.append(
            Node(f"add{b}", "add.Tensor", (ValueRef(at), ValueRef(start)), (MAP,), f"b{b}")
        )
        at = f"add{b}"
    return Graph("residual", (Value("x", MAP),), tuple(weights), tuple(nodes), (at,))
