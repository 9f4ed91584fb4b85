"""Patterns that exporters spell out, as the one operator PyTorch has for them.

`x * sigmoid(x)` is silu, `x * hardsigmoid(x)` hardswish, `x * (1 + erf(x / sqrt 2)) / 2` gelu. The
numbers are the same; cuts and predictors know the short form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isclose, sqrt

from nnstretch.graph import Argument, Node, ValueRef, names_read

NodesByName = dict[str, Node]


def fuse_patterns(nodes: NodesByName, outputs: tuple[str, ...]) -> NodesByName:
    """Replace every pattern, where its last node stood, by one operator that computes the same."""
    pattern = PatternMatcher(nodes, outputs)
    rewritten = dict(nodes)
    for name, node in nodes.items():
        for rule in (pattern.match_gated, pattern.match_hardswish, pattern.match_gelu):
            match = rule(node)
            if match is not None:
                op, source = match
                short = replace(node, op=op, args=(ValueRef(source),), kwargs=())
                rewritten[name] = pattern.nodes[name] = short
                break
    return rewritten


class PatternMatcher:
    """Search for patterns that end in a node; a match is an operator and the value it reads."""

    def __init__(self, nodes: NodesByName, outputs: tuple[str, ...]) -> None:
        self.nodes = dict(nodes)
        self.readers = Counter(names_read(nodes.values()))
        self.readers.update(outputs)

    def sole_producer(self, argument: Argument, *ops: str) -> Node | None:
        """Return the node behind an argument, if it calls one of `ops` and has no other reader."""
        node = self.nodes.get(argument.name) if isinstance(argument, ValueRef) else None
        if node is None or node.op not in ops or self.readers[node.name] != 1:
            return None
        return node

    def match_gated(self, node: Node) -> tuple[str, str] | None:
        """Match x * sigmoid(x) and x * hardsigmoid(x)."""
        if node.op != "mul.Tensor":
            return None
        for x, gate in both_orders(node):
            inner = self.sole_producer(gate, "sigmoid", "hardsigmoid")
            if inner is not None and isinstance(x, ValueRef) and inner.args[0] == x:
                return ("silu" if inner.op == "sigmoid" else "hardswish"), x.name
        return None

    def match_hardswish(self, node: Node) -> tuple[str, str] | None:
        """Match x * clip(x + 3, 0, 6) / 6."""
        if not multiplies_by(node, 1 / 6):
            return None
        product = self.sole_producer(node.args[0], "mul.Tensor")
        if product is None:
            return None
        for x, gate in both_orders(product):
            clipped = self.sole_producer(gate, "hardtanh")
            if clipped is None or clipped.args[1:] != (0.0, 6.0) or not isinstance(x, ValueRef):
                continue
            shifted = self.sole_producer(clipped.args[0], "add.Tensor")
            if shifted is not None and shifted.args == (x, 3.0):
                return "hardswish", x.name
        return None

    def match_gelu(self, node: Node) -> tuple[str, str] | None:
        """Match x * (1 + erf(x / sqrt 2)) * 0.5, the factors in any order."""
        factors = self.product_factors(node)
        if len(factors) != 3 or not any(is_close_number(f, 0.5) for f in factors):
            return None
        tensors = [f for f in factors if isinstance(f, ValueRef)]
        if len(tensors) != 2:
            return None
        for factor, x in (tensors, tensors[::-1]):
            if self.is_gelu_factor(factor, x):
                return "gelu", x.name
        return None

    def is_gelu_factor(self, factor: Argument, x: ValueRef) -> bool:
        """Return whether a value is 1 + erf(x / sqrt 2)."""
        shifted = self.sole_producer(factor, "add.Tensor")
        if shifted is None or not is_close_number(shifted.args[1], 1.0):
            return False
        erf = self.sole_producer(shifted.args[0], "erf")
        if erf is None:
            return False
        scaled = self.sole_producer(erf.args[0], "div.Tensor", "mul.Tensor")
        return scaled is not None and scaled.args[0] == x and multiplies_by(scaled, 1 / sqrt(2))

    def product_factors(self, node: Node) -> list[Argument]:
        """Return what a product of three is made of."""
        if node.op != "mul.Tensor" or len(node.args) != 2:
            return []
        for pair, two in both_orders(node):
            inner = self.sole_producer(two, "mul.Tensor")
            if inner is not None:
                return [pair, *inner.args]
        return []


def both_orders(node: Node) -> tuple[tuple[Argument, Argument], ...]:
    """Return the two arguments of a commutative node in both orders."""
    a, b = node.args
    return ((a, b), (b, a))


def is_close_number(argument: Argument, wanted: float) -> bool:
    """Return whether an argument is a number within 1e-5 of the wanted one."""
    return isinstance(argument, (int, float)) and isclose(argument, wanted, rel_tol=1e-5)


def multiplies_by(node: Node, factor: float) -> bool:
    """Return whether a node multiplies by a number, or divides by its inverse."""
    if len(node.args) != 2:
        return False
    wanted = {"mul.Tensor": factor, "div.Tensor": 1 / factor}.get(node.op)
    return wanted is not None and is_close_number(node.args[1], wanted)


__all__ = ["fuse_patterns"]
