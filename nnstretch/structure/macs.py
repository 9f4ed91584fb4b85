"""Multiply-accumulates of one operator, counted from shapes alone.

Convolutions and linear layers count as pycls counts them (`complexity`, models/blocks.py): a
bias costs one per output element; everything else is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.graph import Argument, Node, TensorSpec, ValueRef, refs

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
WEIGHTED = CONVOLUTIONS | TRANSPOSED | {"linear"}


def count_macs(
    kind: str, args: tuple[Argument, ...], output: TensorSpec, specs: Mapping[str, TensorSpec]
) -> int:
    """Return the work of one call; `specs` holds the shape of everything it reads."""
    if kind not in WEIGHTED or not isinstance(args[1], ValueRef):
        return 0
    weight = specs[args[1].name].shape
    bias = output.elements if len(args) > 2 and isinstance(args[2], ValueRef) else 0
    if kind in TRANSPOSED:
        assert isinstance(args[0], ValueRef)
        return specs[args[0].name].elements * prod(weight[1:]) + bias
    return output.elements * prod(weight[1:]) + bias


def product_macs(node: Node, specs: Mapping[str, TensorSpec]) -> int:
    """Return the work of a product of two activations, which MAC counts by convention leave out."""
    if node.kind == "einsum":
        return einsum_macs(node, specs)
    if node.kind == "scaled_dot_product_attention":
        query, key, value = (specs[name] for name in (node.inputs * 3)[:3])
        scores = query.elements * key.shape[-2]
        return scores + prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]
    return node.output.elements * specs[node.inputs[0]].shape[-1]


def einsum_macs(node: Node, specs: Mapping[str, TensorSpec]) -> int:
    """Return the product of the sizes of all letters in an einsum's terms."""
    terms = str(node.args[0]).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, name in zip(terms, refs(node.args[1:]), strict=True):
        sizes.update(zip(term, specs[name].shape, strict=True))
    return prod(sizes.values())
