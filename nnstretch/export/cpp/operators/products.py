"""Matrix products: with weights, of two activations, and what attention lowers to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import Attribute, TensorView
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


def product(
    t: Translation,
    node: Node,
    a: TensorView,
    b: TensorView,
    bias: TensorView | None = None,
    scale: float = 1.0,
    suffix: str = "",
) -> TensorView:
    """Multiply matrices [.., M, K] and [.., K, N]; leading axes broadcast."""
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    reads = (
        view_algebra.broadcast(a, (*batch, *a.shape[-2:])),
        view_algebra.broadcast(b, (*batch, *b.shape[-2:])),
        None,
        bias if bias is None else t.dense(view_algebra.broadcast(bias, shape), node),
    )
    attributes: dict[str, Attribute] = {"scale": scale}
    return t.call(node, "Matmul", reads, shape, attributes, suffix=suffix)


def linear(t: Translation, node: Node) -> Views:
    """Translate linear: all leading axes are rows of one product with the transposed weight."""
    x = t.dense(t.view_of(node.args[0]), node)
    weight = t.view_of(node.args[1])
    if len(weight.shape) != 2:
        raise UnsupportedArguments(f"a weight of {len(weight.shape)} axes")
    rows = t.reshape(x, (x.elements // x.shape[-1], x.shape[-1]), node)
    bias = argument(node, 2)
    row = None if bias is None else bias_row(t, node, t.view_of(bias), weight.shape[0])
    reads = (rows, view_algebra.transpose(weight, 0, 1), row, None)
    result = t.call(node, "Matmul", reads, (rows.shape[0], weight.shape[0]))
    return t.reshape(result, node.output.shape, node)


def addmm(t: Translation, node: Node) -> Views:
    """Translate a product to which a bias of one row is added."""
    bias, a, b = (t.view_of(item) for item in node.args[:3])
    if len(bias.shape) != 1 or node.kwargs:
        raise UnsupportedArguments("a bias that is no row, or factors")
    row = bias_row(t, node, bias, b.shape[1])
    return t.call(node, "Matmul", (a, b, row, None), node.output.shape)


def bias_row(t: Translation, node: Node, bias: TensorView, columns: int) -> TensorView:
    """Return a bias as one number a column, of which a single one may stand for all."""
    return t.dense(view_algebra.broadcast(bias, (columns,)), node)


def broadcast_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to."""
    rank = max(len(a), len(b))
    sizes_a = (1,) * (rank - len(a)) + a
    sizes_b = (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(sizes_a, sizes_b, strict=True))


def matmul(t: Translation, node: Node) -> Views:
    """Translate matmul, bmm and mm; a vector becomes a row or a column."""
    a, b = t.view_of(node.args[0]), t.view_of(node.args[1])
    if len(a.shape) == 1:
        a = view_algebra.insert_axis(a, 0)
    if len(b.shape) == 1:
        b = view_algebra.insert_axis(b, 1)
    return t.reshape(product(t, node, a, b), node.output.shape, node)


def attention(t: Translation, node: Node) -> Views:
    """Translate scaled_dot_product_attention: two products with a softmax between them."""
    query, key, value = (t.view_of(item) for item in node.args[:3])
    keywords = dict(node.kwargs)
    if argument(node, 4, keywords.get("dropout_p")):
        raise UnsupportedArguments("dropout, which draws random numbers")
    mask = argument(node, 3, keywords.get("attn_mask"))
    if keywords.get("enable_gqa"):
        key, value = (repeated_heads(t, node, view, query.shape[-3]) for view in (key, value))
    factor = keywords.get("scale")
    scale = float(factor) if isinstance(factor, int | float) else 1 / math.sqrt(query.shape[-1])
    keys = view_algebra.transpose(key, len(key.shape) - 2, len(key.shape) - 1)
    bias = None if mask is None else mask_bias(t, node, mask)
    if argument(node, 5, keywords.get("is_causal")):
        allowed = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
        bias = t.constant(f"{node.name}.causal", additive(allowed))
    scores = product(t, node, query, keys, bias, scale, "_scores")
    weights = t.call(node, "Softmax", (scores,), scores.shape, suffix="_weights")
    return product(t, node, weights, value)


def mask_bias(t: Translation, node: Node, mask: Argument) -> TensorView:
    """Return what a mask adds to scores; a constant of truth values becomes 0 and -infinity.

    Raises UnsupportedArguments where a constant allows some row nothing: its softmax has no value.
    """
    values = t.constants.get(mask.name) if isinstance(mask, ValueRef) else None
    if values is None:
        return t.view_of(mask)
    added = additive(values) if values.dtype == np.bool_ else values
    if np.isneginf(added).all(-1).any():
        raise UnsupportedArguments("a mask that allows some row nothing")
    return t.constant(f"{node.name}.mask", added)


def additive(allowed: np.ndarray) -> np.ndarray:
    """Return 0 where a mask allows, -infinity elsewhere."""
    return np.where(allowed, np.float32(0), np.float32(-np.inf))


def repeated_heads(t: Translation, node: Node, view: TensorView, heads: int) -> TensorView:
    """Return keys or values with each head as often as queries share it."""
    *batch, count, rows, columns = view.shape
    shared = (*batch, count, heads // count, rows, columns)
    wide = view_algebra.broadcast(view_algebra.insert_axis(view, len(batch) + 1), shared)
    return t.reshape(wide, (*batch, heads, rows, columns), node)


def einsum(t: Translation, node: Node) -> Views:
    """Translate an einsum of two operands in which every letter is batch, row, column or sum."""
    equation, operands = str(node.args[0]).replace(" ", ""), node.args[1]
    operand_letters, _, result = equation.partition("->")
    terms = operand_letters.split(",")
    if len(terms) != 2 or not isinstance(operands, tuple) or not result or "." in equation:
        raise UnsupportedArguments(f"the equation {equation}")
    if any(len(set(term)) < len(term) for term in terms):
        raise UnsupportedArguments(f"the equation {equation}, a diagonal")
    a, b = map(t.view_of, operands)
    sizes: dict[str, int] = {}
    for term, view in zip(terms, (a, b), strict=True):
        for letter, size in zip(term, view.shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    a = view_algebra.broadcast(a, tuple(sizes[letter] for letter in terms[0]))
    b = view_algebra.broadcast(b, tuple(sizes[letter] for letter in terms[1]))
    batch = [letter for letter in terms[0] if letter in terms[1] and letter in result]
    summed = [letter for letter in terms[0] if letter in terms[1] and letter not in result]
    rows = [letter for letter in terms[0] if letter not in terms[1]]
    columns = [letter for letter in terms[1] if letter not in terms[0]]
    if not {*rows, *columns} <= set(result):
        raise UnsupportedArguments(f"the equation {equation}")
    rows_first = arranged(t, node, a, terms[0], (batch, rows, summed), sizes)
    columns_last = arranged(t, node, b, terms[1], (batch, summed, columns), sizes)
    multiplied = product(t, node, rows_first, columns_last)
    order = [*batch, *rows, *columns]
    view = t.reshape(multiplied, tuple(sizes[letter] for letter in order), node)
    return view_algebra.permute(view, tuple(map(order.index, result)))


def arranged(
    t: Translation,
    node: Node,
    view: TensorView,
    letters: str,
    blocks: tuple[list[str], list[str], list[str]],
    sizes: Mapping[str, int],
) -> TensorView:
    """Return an operand of einsum as [batch.., rows, columns], each block one axis."""
    order = [*blocks[0], *blocks[1], *blocks[2]]
    moved = view_algebra.permute(view, tuple(map(letters.index, order)))
    shape = [sizes[letter] for letter in blocks[0]]
    shape += [math.prod(sizes[letter] for letter in block) for block in blocks[1:]]
    return t.reshape(moved, tuple(shape), node)


RULES: dict[str, Rule] = {
    "linear": linear,
    "addmm": addmm,
    "matmul": matmul,
    "bmm": matmul,
    "mm": matmul,
    "scaled_dot_product_attention": attention,
    "einsum": einsum,
}
