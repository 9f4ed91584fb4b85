"""Multiply-accumulates of one operator, counted from shapes alone.

Convolutions and linear layers, `addmm` among them, count as pycls counts them (`complexity`,
models/blocks.py): a bias costs one per output element, and so does `bilinear`'s. A step of a
recurrent layer or cell costs each of its weights and biases once; everything else is free.
Products of two activations, of which attention consists, are counted apart, so that numbers of
published networks stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import prod

from nnstretch.graph import Argument, Graph, Node, TensorSpec, ValueRef, refs
from nnstretch.structure.arguments import sides

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
WEIGHTED = CONVOLUTIONS | TRANSPOSED | {"linear"}
RECURRENT = frozenset({"gru", "lstm", "rnn_tanh", "rnn_relu"})
CELLS = frozenset({"gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"})
"""One step of a recurrent layer."""
ATTENTION = "scaled_dot_product_attention"
FIRST_FACTOR = {
    **dict.fromkeys(("matmul", "linalg_matmul", "bmm", "mm", "mv", "inner", "cdist"), 0),
    **dict.fromkeys(("baddbmm", "addbmm", "addmv"), 1),
}
"""Products that sum over the last dimension of an operand: which one of those that they read.

A distance (`cdist`) takes a step for each feature of a pair, as a product of the pair would.
"""
CHAINS = frozenset({"linalg_multi_dot", "chain_matmul"})
DOTS = frozenset({"dot", "vdot", "linalg_vecdot"})
PRODUCTS = frozenset(FIRST_FACTOR) | CHAINS | DOTS | {"einsum", "tensordot", ATTENTION}
"""Products of two activations or more. `outer` is none: it sums nothing and costs what `mul` does.
"""
CONVENTION = (
    "macs: convolutions and linear layers as pycls counts them, a bias is one per output;"
    " attention_macs: products of two activations (attention, matmul, bmm, einsum), not in macs"
)


def count_macs(
    kind: str, args: tuple[Argument, ...], output: TensorSpec, specs: Mapping[str, TensorSpec]
) -> int:
    """Return the work of one call; `specs` holds the shape of everything it reads."""
    if kind == "addmm" and isinstance(args[1], ValueRef):
        return output.elements * (specs[args[1].name].shape[-1] + 1)
    if kind in RECURRENT and isinstance(args[2], tuple) and isinstance(args[0], ValueRef):
        steps = prod(specs[args[0].name].shape[:-1])  # of every sequence of the batch
        return steps * sum(specs[name].elements for name in refs(args[2]))
    if kind in CELLS and isinstance(args[0], ValueRef):
        steps = prod(specs[args[0].name].shape[:-1])
        return steps * sum(specs[name].elements for name in refs(args[2:]))
    if kind == "bilinear" and isinstance(args[2], ValueRef):
        bias = output.elements if isinstance(args[-1], ValueRef) and len(args) > 3 else 0
        return output.elements * prod(specs[args[2].name].shape[1:]) + bias
    if kind not in WEIGHTED or not isinstance(args[1], ValueRef):
        return 0
    weight = specs[args[1].name].shape
    bias = output.elements if len(args) > 2 and isinstance(args[2], ValueRef) else 0
    if kind in TRANSPOSED:
        assert isinstance(args[0], ValueRef)
        return specs[args[0].name].elements * prod(weight[1:]) + bias
    return output.elements * prod(weight[1:]) + bias


def attention_macs(graph: Graph) -> int:
    """Return the work of all products of two activations, which `Graph.macs` leaves out."""
    specs = graph.specs()
    return sum(product_macs(node, specs) for node in graph.nodes)


def product_macs(node: Node, specs: Mapping[str, TensorSpec]) -> int:
    """Return the work of a product of two activations, 0 for any other operator."""
    if node.kind not in PRODUCTS:
        return 0
    if node.kind == "einsum":
        return einsum_macs(node, specs)
    named = tuple(value for _, value in node.kwargs)
    operands = [specs[name] for name in refs((*node.args, *named))]
    shapes = [operand.shape for operand in operands]
    if node.kind == ATTENTION:
        query, key, value = operands[:3]
        scores = query.elements * key.shape[-2]
        return scores + prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]
    if node.kind in CHAINS:
        return chain_macs(shapes)
    if node.kind in DOTS:
        backwards = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
        return prod(map(max, backwards))
    if node.kind == "tensordot":
        return node.output.elements * summed_elements(node, shapes)
    if not all(shapes):
        return 0  # `inner` with a scalar multiplies as `mul` does.
    batch = shapes[1][0] if node.kind == "addbmm" else 1
    return node.output.elements * batch * shapes[FIRST_FACTOR[node.kind]][-1]


def summed_elements(node: Node, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many pairs each sum of a tensordot holds, 1 where a side is spread."""
    sizes = (
        [shape[axis] for axis in sides(axes)]
        for shape, axes in zip(shapes, node.args[2:4], strict=True)
    )
    return prod(min(pair) for pair in zip(*sizes, strict=True))


def chain_macs(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the work of a chain of matrices, a vector at either end, in the cheapest order.

    It is the order that torch takes.
    """
    row = (1,) if len(shapes[0]) == 1 else shapes[0][:1]
    sizes = [*row, *(shape[0] for shape in shapes[1:])]
    sizes.append(1 if len(shapes[-1]) == 1 else shapes[-1][-1])
    macs = {(first, first + 1): 0 for first in range(len(shapes))}
    for length in range(2, len(sizes)):
        for first in range(len(sizes) - length):
            last = first + length
            macs[first, last] = min(
                macs[first, middle]
                + macs[middle, last]
                + sizes[first] * sizes[middle] * sizes[last]
                for middle in range(first + 1, last)
            )
    return macs[0, len(sizes) - 1]


def einsum_macs(node: Node, specs: Mapping[str, TensorSpec]) -> int:
    """Return the product of the sizes of all letters in an einsum's terms."""
    terms = str(node.args[0]).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, name in zip(terms, refs(node.args[1:]), strict=True):
        for letter, size in zip(letters(term, specs[name]), specs[name].shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return prod(sizes.values())


def letters(term: str, spec: TensorSpec) -> list[str]:
    """Return a letter for each dimension; those of `...` are numbered from their last on."""
    before, dots, after = term.partition("...")
    count = len(spec.shape) - len(before) - len(after) if dots else 0
    return [*before, *(f".{number}" for number in reversed(range(count))), *after]
