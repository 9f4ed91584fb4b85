"""How each operator passes channel parts on, and what it ties or pins. One rule a family.

An operator without a rule pins everything it reads, and the reason names it: such a stretch of
the network keeps its width and can still be a sequential segment. Rules of layers are in
channel_rules_layers.py, those of operators that only move or rename dimensions in
channel_rules_shapes.py.
"""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.graph import Node
from nnstretch.structure import channel_rules_layers as layers
from nnstretch.structure import channel_rules_shapes as shapes
from nnstretch.structure.channel_analysis import (
    ChannelAnalysis,
    ChannelSlice,
    Dim,
    Shape,
    ShortcutJunction,
    total,
    unknown,
)
from nnstretch.structure.cuts import ACTIVATIONS, PASSING, is_size

Rule = Callable[[ChannelAnalysis, Node], tuple[Shape, ...]]


def apply_rule(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Return parts of everything the node writes."""
    if is_size(node) or not node.output.shape:
        return tuple(a.fixed(o) for o in node.outputs)
    return RULES.get(node.kind, unknown)(a, node)


def same(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Pass the shape of the first input on."""
    shape = a.arg(node, 0)
    return unknown(a, node) if shape is None else (shape,)


def binary(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Unify the inputs, broadcast, and pass their shape on."""
    x, y = a.arg(node, 0), a.arg(node, 1)
    if x is None or y is None:
        known = x if x is not None else y
        return unknown(a, node) if known is None else (known,)
    rank = max(len(x), len(y))
    unit_dim: Dim = (ChannelSlice(None, 1),)
    x, y = (unit_dim,) * (rank - len(x)) + x, (unit_dim,) * (rank - len(y)) + y
    out: list[Dim] = []
    for first_dim, right in zip(x, y, strict=True):
        if total(first_dim) == 1 or total(right) == 1:
            out.append(right if total(first_dim) == 1 else first_dim)
        else:
            out.append(unify_operands(a, node, first_dim, right))
    return (tuple(out),)


def unify_operands(a: ChannelAnalysis, node: Node, first_dim: Dim, right: Dim) -> Dim:
    """Unify equal dimensions; a shortcut from the section's own input stays free of the main path,
    never of a mere weight.
    """
    if node.kind == "add" and all(name in a.carriers for name in node.inputs):
        mine, second = carries_input(a, first_dim), carries_input(a, right)
        if mine != second:
            a.junctions.append(ShortcutJunction(node.name, 0 if mine else 1))
            return right if mine else first_dim
    a.unify(first_dim, right, node.name)
    return first_dim


def carries_input(a: ChannelAnalysis, dim: Dim) -> bool:
    """Return whether the dimension is the section's input itself, tied to nothing pinned."""
    roots = {a.find(g) for g in a.inputs}
    groups = [part.group for part in dim]
    return all(g is not None and a.find(g) in roots and not a.is_pinned(g) for g in groups)


def pooling(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through pools and interpolation: channels pass, pixels change."""
    x = a.arg(node, 0)
    assert x is not None
    a.pin(x[2:], f"{node.name}: pixels")
    shape = (x[0], x[1], *a.fixed(node.output)[2:])
    return tuple(shape for _ in node.outputs)


def reduction(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through mean, sum, amax ...: reduced dimensions go or become 1, the others pass."""
    x = a.arg(node, 0)
    assert x is not None
    axes = node.args[1] if len(node.args) > 1 else None
    if isinstance(axes, int) and not isinstance(axes, bool):
        axes = (axes,)
    if not isinstance(axes, tuple):
        return tuple(a.fixed(o) for o in node.outputs)
    gone = {int(str(i)) % len(x) for i in axes}
    if len(node.output.shape) == len(x):
        shape = tuple((ChannelSlice(None, 1),) if i in gone else dim for i, dim in enumerate(x))
    else:
        shape = tuple(dim for i, dim in enumerate(x) if i not in gone)
    return tuple(shape for _ in node.outputs)


POINTWISE_NAMES = (
    "neg abs exp log sqrt rsqrt square reciprocal erf sin cos floor clamp clamp_min "
    "clamp_max softmax log_softmax pow to _to_copy type_as roll flip log_sigmoid "
    "logical_not bernoulli normalize lift_fresh_copy celu threshold rrelu zero fill "
    "zeros_like ones_like"
)
POOLING_NAMES = (
    "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool1d avg_pool1d "
    "adaptive_avg_pool1d max_pool2d_with_indices upsample_nearest2d upsample_bilinear2d "
    "upsample_bicubic2d lp_pool2d max_pool3d avg_pool3d adaptive_avg_pool3d"
)
POINTWISE = ACTIVATIONS | PASSING | frozenset(POINTWISE_NAMES.split())
RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, same),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), layers.conv),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), layers.conv_transpose
    ),
    **dict.fromkeys(("batch_norm", "instance_norm", "prelu"), layers.channel_norm),
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "maximum", "minimum", "rsub", "eq", "gt", "lt"), binary
    ),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), shapes.pieces),
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze"), shapes.reshape
    ),
    **dict.fromkeys(
        (
            "mean",
            "sum",
            "amax",
            "amin",
            "var",
            "std",
            "linalg_vector_norm",
            "norm",
            "var_mean",
            "max",
            "logsumexp",
        ),
        reduction,
    ),
    **dict.fromkeys(
        ("constant_pad_nd", "pad", "reflection_pad2d", "replication_pad2d"), shapes.padding
    ),
    **dict.fromkeys(("matmul", "bmm"), layers.matmul),
    **dict.fromkeys(
        POOLING_NAMES.split(),
        pooling,
    ),
    "linear": layers.linear,
    "group_norm": layers.group_norm,
    "layer_norm": layers.layer_norm,
    "reshape_as": shapes.reshape_as,
    "view_as": shapes.reshape_as,
    "expand_as": shapes.expand_as,
    "cat": shapes.cat,
    "getitem": shapes.getitem,
    "unbind": shapes.unbind,
    "select": shapes.select,
    "slice": shapes.slice_,
    "slice_scatter": shapes.slice_scatter,
    "permute": shapes.permute,
    "transpose": shapes.transpose,
    "unsqueeze": shapes.unsqueeze,
    "expand": shapes.expand,
    "index": shapes.indexed,
    "scaled_dot_product_attention": layers.attention,
}
