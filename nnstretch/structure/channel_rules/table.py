"""The rule of each operator for channel slices, one rule a family.

An operator without a rule pins everything it reads, and the reason names it: such a stretch of
the network keeps its width and can still be a sequential segment.
"""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.graph import Node, ValueRef
from nnstretch.structure.arguments import TYPE_ONLY, argument
from nnstretch.structure.channel_analysis import ChannelAnalysis, fixed_outputs, unknown
from nnstretch.structure.channel_rules import layers, moves, reshapes
from nnstretch.structure.channel_slices import (
    Dim,
    Shape,
    ShortcutJunction,
    fixed_dim,
    fixed_shape,
    total,
)
from nnstretch.structure.cuts import ACTIVATIONS, PASSING, is_size

Rule = Callable[[ChannelAnalysis, Node], tuple[Shape, ...]]


def apply_rule(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Return the shape of every output, in slices."""
    if is_size(node) or not node.output.shape:
        return fixed_outputs(node)
    return RULES.get(node.kind, unknown)(a, node)


def same(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Pass the shape of the first input on, joined with tensors that bound or scale its values."""
    shape = a.arg(node, 0)
    if shape is None:
        return unknown(a, node)
    operands = () if node.kind in TYPE_ONLY else node.inputs[1:]
    for name in filter(a.is_tensor, operands):
        shape = broadcast(a, node, shape, a.shape_of(name))
    return (shape,)


def binary(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Unify the inputs, broadcast, and pass their shape on."""
    x = a.arg(node, 0)
    y = a.arg(node, 1)
    if x is None or y is None:
        known = x if x is not None else y
        return unknown(a, node) if known is None else (known,)
    return (broadcast(a, node, x, y),)


def broadcast(a: ChannelAnalysis, node: Node, x: Shape, y: Shape) -> Shape:
    """Unify the dimensions of two operands; return those of the result."""
    rank = max(len(x), len(y))
    x = (fixed_dim(1),) * (rank - len(x)) + x
    y = (fixed_dim(1),) * (rank - len(y)) + y
    out: list[Dim] = []
    for axis, (x_dim, y_dim) in enumerate(zip(x, y, strict=True), start=-rank):
        if total(x_dim) == 1:
            out.append(y_dim)
        elif total(y_dim) == 1:
            out.append(x_dim)
        else:
            out.append(unify_operands(a, node, x_dim, y_dim, axis))
    return tuple(out)


def unify_operands(a: ChannelAnalysis, node: Node, x_dim: Dim, y_dim: Dim, axis: int) -> Dim:
    """Unify equal dimensions; a shortcut from the section's own input stays free of the main path.

    A sum with a mere weight is no shortcut.
    """
    if node.kind == "add" and all(name in a.carriers for name in node.inputs):
        x_carries = carries_input(a, x_dim)
        if x_carries != carries_input(a, y_dim):
            a.junctions.append(ShortcutJunction(node.name, 0 if x_carries else 1, axis))
            return y_dim if x_carries else x_dim
    a.unify(x_dim, y_dim, node.name)
    return x_dim


def carries_input(a: ChannelAnalysis, dim: Dim) -> bool:
    """Return whether the dimension is the section's input itself, tied to nothing pinned."""
    roots = {a.find(group) for group in a.inputs}
    for part in dim:
        if part.group is None or a.find(part.group) not in roots or a.is_pinned(part.group):
            return False
    return True


def pooling(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through pools and interpolation: channels pass, pixels change."""
    x = a.tensor_arg(node)
    a.pin(x[2:], f"{node.name}: pixels")
    shape = (x[0], x[1], *fixed_shape(node.output.shape[2:]))
    return (shape,) * len(node.outputs)


def reduction(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through mean, sum, amax ...: reduced dimensions go or become 1, the others pass.

    The largest of two tensors reduces none.
    """
    if isinstance(argument(node, 1), ValueRef):
        return binary(a, node)
    x = a.tensor_arg(node)
    axes = argument(node, 2 if node.kind in ("linalg_vector_norm", "norm") else 1)
    if isinstance(axes, int) and not isinstance(axes, bool):
        axes = (axes,)
    if not isinstance(axes, tuple):
        return fixed_outputs(node)
    reduced = {int(str(axis)) % len(x) for axis in axes}
    if len(node.output.shape) == len(x):
        shape = tuple(fixed_dim(1) if i in reduced else dim for i, dim in enumerate(x))
    else:
        shape = tuple(dim for i, dim in enumerate(x) if i not in reduced)
    return (shape,) * len(node.outputs)


_POINTWISE_NAMES = """
    neg abs exp log sqrt rsqrt square reciprocal erf sin cos floor ceil trunc round sign log1p
    expm1 clamp clip clamp_min clamp_max softmax log_softmax pow to _to_copy type_as roll flip
    log_sigmoid logical_not bernoulli normalize lift_fresh_copy celu threshold rrelu zero fill
    zeros_like ones_like
"""
POINTWISE = ACTIVATIONS | PASSING | frozenset(_POINTWISE_NAMES.split())
_POOLING_NAMES = """
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d
    lp_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
    upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
"""
_REDUCTION_NAMES = """
    mean sum amax amin var std linalg_vector_norm norm var_mean max logsumexp
"""
FAMILIES: dict[str, Rule] = {
    "add sub mul div maximum minimum rsub eq gt lt": binary,
    _POOLING_NAMES: pooling,
    _REDUCTION_NAMES: reduction,
    "conv1d conv2d conv3d": layers.conv,
    "conv_transpose1d conv_transpose2d conv_transpose3d": layers.conv_transpose,
    "linear": layers.linear,
    "batch_norm instance_norm prelu": layers.channel_norm,
    "group_norm": layers.group_norm,
    "layer_norm": layers.layer_norm,
    "matmul bmm": layers.matmul,
    "scaled_dot_product_attention": layers.attention,
    "cat": moves.cat,
    "chunk split split_with_sizes": moves.pieces,
    "glu": moves.gated,
    "getitem": moves.getitem,
    "unbind": moves.unbind,
    "select": moves.select,
    "slice": moves.slice_,
    "slice_scatter": moves.slice_scatter,
    "permute": moves.permute,
    "transpose": moves.transpose,
    "unsqueeze": moves.unsqueeze,
    "index": moves.indexed,
    "constant_pad_nd pad reflection_pad2d replication_pad2d": moves.padding,
    "view reshape _unsafe_view flatten unflatten squeeze": reshapes.reshape,
    "reshape_as view_as": reshapes.reshape_as,
    "expand": reshapes.expand,
    "expand_as": reshapes.expand_as,
}
"""Operators that share a rule, and the rule.

They are named as in `Node.kind`: PyTorch's without overload, a custom one `NAMESPACE::NAME`.
"""
RULES: dict[str, Rule] = dict.fromkeys(POINTWISE, same)
for _names, _rule in FAMILIES.items():
    RULES.update(dict.fromkeys(_names.split(), _rule))
