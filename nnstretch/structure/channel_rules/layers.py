"""How layers with weights, norms and matrix products pass channel slices on."""

from __future__ import annotations

from nnstretch.graph import Node
from nnstretch.structure.arguments import argument
from nnstretch.structure.channel_analysis import ChannelAnalysis, pinned, unknown
from nnstretch.structure.channel_slices import (
    ChannelSlice,
    Dim,
    SameChannels,
    Shape,
    fixed_shape,
    groups_in,
    total,
)


def conv(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read channels through a weight; grouped ones group by group."""
    x = a.arg(node, 0)
    weight = a.arg(node, 1)
    groups = argument(node, 6, 1)
    if x is None or weight is None or not isinstance(groups, int):
        return unknown(a, node)
    a.pin(weight[2:], f"{node.name}: window")
    if groups == 1:
        a.unify(x[1], weight[1], node.name)
        consume(a, x[1])
    else:
        grouped(a, node, x[1], weight, groups)
    unify_bias(a, node, weight[0])
    return ((x[0], weight[0], *pixels(a, node, x)),)


def unify_bias(a: ChannelAnalysis, node: Node, written: Dim) -> None:
    """Unify a layer's bias, where it has one, with the channels it writes."""
    bias = a.arg(node, 2)
    if bias is not None:
        a.unify(bias[0], written, node.name)


def unify_affine(a: ChannelAnalysis, node: Node, normalized: Dim) -> None:
    """Unify scale and shift of a norm, where it has them, with the dimension they lie along."""
    for position in (2, 3):
        parameter = a.arg(node, position)
        if parameter is not None:
            a.unify(normalized, parameter[-1], node.name)


def pixels(a: ChannelAnalysis, node: Node, x: Shape) -> Shape:
    """Propagate pixels, which keep their number.

    A window along channels themselves (efficient channel attention) passes them.
    """
    unchanged = tuple(map(total, x[2:])) == node.output.shape[2:]
    if node.kind == "conv1d" and unchanged and node.args[3:4] in ((), ((1,),)):
        return x[2:]
    a.pin(x[2:], f"{node.name}: pixels")
    return fixed_shape(node.output.shape[2:])


def grouped(a: ChannelAnalysis, node: Node, x: Dim, weight: Shape, groups: int) -> None:
    """Let groups come and go whole: input and output scale by one ratio, the group width stays."""
    a.pin([weight[1]], f"{node.name}: group width")
    consume(a, x)
    cin = total(x)
    width_in = cin // groups
    if any(part.size % width_in for part in x):
        a.pin([x, weight[0]], f"{node.name}: groups straddle concatenated inputs")
        return
    at = 0
    for part in x:
        share = part.size * total(weight[0]) // cin
        piece = a.cut(weight[0], at, at + share)
        at += share
        if part.group is None or len(groups_in(piece)) < len(piece):
            a.pin([(part,), piece], f"{node.name}: tied to a size that does not scale")
            continue
        a.need_whole(part.group, part.size // width_in)
        for group in groups_in(piece):
            a.need_whole(group, part.size // width_in)
            a.tie(part.group, group)
        keep_groups_whole(a, part, piece, width_in)


def keep_groups_whole(a: ChannelAnalysis, x: ChannelSlice, written: Dim, width: int) -> None:
    """Keep or drop the channels of a group, `width` of them read, together with what they write."""
    count = x.size // width
    first = a.number(count)
    a.same.append(SameChannels(first, count, x.first, inner=width))
    a.same.append(SameChannels(first, count, a.contiguous(written), inner=total(written) // count))


def consume(a: ChannelAnalysis, dim: Dim) -> None:
    """Mark the groups of a dimension as read by a layer."""
    a.consumed.update(groups_in(dim))


def conv_transpose(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read channels through a transposed weight."""
    x = a.arg(node, 0)
    weight = a.arg(node, 1)
    if x is None or weight is None or argument(node, 6, 1) != 1:
        return unknown(a, node)
    a.pin(x[2:] + weight[2:], f"{node.name}: pixels")
    a.unify(x[1], weight[0], node.name)
    consume(a, x[1])
    unify_bias(a, node, weight[1])
    return ((x[0], weight[1], *fixed_shape(node.output.shape[2:])),)


def linear(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read the last dimension through a weight."""
    x = a.tensor_arg(node)
    weight = a.tensor_arg(node, 1)
    a.unify(x[-1], weight[1], node.name)
    consume(a, x[-1])
    unify_bias(a, node, weight[0])
    return ((*x[:-1], weight[0]),)


def channel_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through batch and instance norm and prelu: parameters lie along dimension 1."""
    x = a.tensor_arg(node)
    for position in range(1, 5):
        weight = a.arg(node, position)
        if weight is not None and total(weight[0]) > 1:
            a.unify(x[1], weight[0], node.name)
    consume(a, x[1])
    return (x,)


def group_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Keep groups whole; they may straddle concatenated inputs, which then scale alike."""
    x = a.tensor_arg(node)
    groups = node.args[1]
    assert isinstance(groups, int)
    unify_affine(a, node, x[1])
    if groups > 1:
        a.uniform(x[1])
        width = total(x[1]) // groups
        for group in groups_in(x[1]):
            a.need_whole(group, width)
        a.divide_evenly(x[1], width)
    consume(a, x[1])
    return (x,)


def layer_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Tie the parameters to the dimension that is normalized."""
    x = a.tensor_arg(node)
    shape = node.args[1]
    assert isinstance(shape, tuple)
    if len(shape) > 1:
        return pinned(a, node, f"{node.name}: normalises over pixels")
    unify_affine(a, node, x[-1])
    consume(a, x[-1])
    return (x,)


def matmul(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Unify the inner dimensions of a product, and those of the batches that it multiplies."""
    x = a.arg(node, 0)
    y = a.arg(node, 1)
    if x is None or y is None or len(x) < 2 or len(x) != len(y):
        return unknown(a, node)
    a.unify(x[-1], y[-2], node.name)
    outer: list[Dim] = []
    for x_dim, y_dim in zip(x[:-2], y[:-2], strict=True):
        if total(x_dim) == total(y_dim) > 1:
            a.unify(x_dim, y_dim, node.name)
        outer.append(x_dim if total(x_dim) > 1 else y_dim)
    return ((*outer, x[-2], y[-1]),)


def attention(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through softmax(q k^T + mask) v.

    q and k agree in depth, k and v in length, all three in heads.
    """
    q = a.tensor_arg(node)
    k = a.tensor_arg(node, 1)
    v = a.tensor_arg(node, 2)
    a.unify(q[-1], k[-1], node.name)
    a.unify(k[-2], v[-2], node.name)
    for i in range(len(q) - 2):
        if total(q[i]) > 1:
            a.unify(q[i], k[i], node.name)
            a.unify(q[i], v[i], node.name)
    mask = a.arg(node, 3) or ()
    for dim, heads in zip(mask[-4:], q[len(q) - len(mask[-4:]) :], strict=True):
        if total(dim) > 1 and total(heads) == total(dim):
            a.unify(dim, heads, node.name)
    return ((*q[:-1], v[-1]),)
