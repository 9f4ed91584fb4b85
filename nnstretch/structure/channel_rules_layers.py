"""How layers with weights, norms and matrix products pass channel parts on."""

from __future__ import annotations

from nnstretch.graph import Node
from nnstretch.structure.channel_analysis import ChannelAnalysis, Dim, Shape, pinned, total, unknown


def conv(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read channels through a weight; grouped ones group by group."""
    x, weight, bias = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    groups = node.args[6] if len(node.args) > 6 else 1
    if x is None or weight is None or not isinstance(groups, int):
        return unknown(a, node)
    a.pin(weight[2:], f"{node.name}: window")
    if groups == 1:
        a.unify(x[1], weight[1], node.name)
        consume(a, x[1])
    else:
        grouped(a, node, x[1], weight, groups)
    if bias is not None:
        a.unify(bias[0], weight[0], node.name)
    return ((x[0], weight[0], *pixels(a, node, x)),)


def pixels(a: ChannelAnalysis, node: Node, x: Shape) -> Shape:
    """Propagate pixels, which keep their number.

    A window along channels themselves (efficient channel attention) passes them.
    """
    kept = all(total(dim) == size for dim, size in zip(x[2:], node.output.shape[2:], strict=True))
    if node.kind == "conv1d" and kept and node.args[3:4] in ((), ((1,),)):
        return x[2:]
    a.pin(x[2:], f"{node.name}: pixels")
    return a.fixed(node.output)[2:]


def grouped(a: ChannelAnalysis, node: Node, x: Dim, weight: Shape, groups: int) -> None:
    """Unify groups, which come and go whole: input and output scale by one ratio, the group width
    stays.
    """
    a.pin([weight[1]], f"{node.name}: group width")
    consume(a, x)
    cin = sum(part.size for part in x)
    width_in = cin // groups
    if all(part.size % width_in == 0 for part in x):
        at = 0
        for part in x:
            share = part.size * sum(p.size for p in weight[0]) // cin
            piece = a.cut(weight[0], at, at + share)
            at += share
            if part.group is None:
                a.pin([piece], f"{node.name}: tied to a size that does not scale")
                continue
            a.need_whole(part.group, part.size // width_in)
            for written in piece:
                if written.group is not None:
                    a.need_whole(written.group, part.size // width_in)
                    a.tie(part.group, written.group)
        return
    a.pin([x, weight[0]], f"{node.name}: groups straddle concatenated inputs")


def consume(a: ChannelAnalysis, dim: Dim) -> None:
    """Mark the groups of a dimension as read by a layer."""
    a.consumed |= {part.group for part in dim if part.group is not None}


def conv_transpose(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read channels through a transposed weight."""
    x, weight, bias = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    groups = node.args[6] if len(node.args) > 6 else 1
    if x is None or weight is None or groups != 1:
        return unknown(a, node)
    a.pin(x[2:] + weight[2:], f"{node.name}: pixels")
    a.unify(x[1], weight[0], node.name)
    consume(a, x[1])
    if bias is not None:
        a.unify(bias[0], weight[1], node.name)
    return ((x[0], weight[1], *a.fixed(node.output)[2:]),)


def linear(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Read the last dimension through a weight."""
    x, weight, bias = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    assert x is not None
    assert weight is not None
    a.unify(x[-1], weight[1], node.name)
    consume(a, x[-1])
    if bias is not None:
        a.unify(bias[0], weight[0], node.name)
    return ((*x[:-1], weight[0]),)


def channel_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through batch and instance norm and prelu: parameters lie along dimension 1."""
    x = a.arg(node, 0)
    assert x is not None
    for position in range(1, 5):
        weight = a.arg(node, position)
        if weight is not None and sum(p.size for p in weight[0]) > 1:
            a.unify(x[1], weight[0], node.name)
    consume(a, x[1])
    return (x,)


def group_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Keep groups whole."""
    x, groups = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(groups, int)
    for position in (2, 3):
        if (weight := a.arg(node, position)) is not None:
            a.unify(x[1], weight[0], node.name)
    if groups > 1:
        a.uniform(x[1])
        for part in x[1]:
            if part.group is not None:
                a.need_whole(part.group, max(1, part.size // groups))
    consume(a, x[1])
    return (x,)


def layer_norm(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Tie the parameters to the dimensions that are normalized."""
    x, shape = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(shape, tuple)
    if len(shape) > 1:
        return pinned(a, node, f"{node.name}: normalises over pixels")
    for position in (2, 3):
        if (weight := a.arg(node, position)) is not None:
            a.unify(x[-1], weight[-1], node.name)
    consume(a, x[-1])
    return (x,)


def matmul(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Unify the inner dimensions of a product."""
    x, y = a.arg(node, 0), a.arg(node, 1)
    if x is None or y is None or len(x) < 2 or len(x) != len(y):
        return unknown(a, node)
    a.unify(x[-1], y[-2], node.name)
    for first_dim, right in zip(x[:-2], y[:-2], strict=True):
        if total(first_dim) == total(right) > 1:
            a.unify(first_dim, right, node.name)
    return (
        (
            *(
                first_dim if total(first_dim) > 1 else right
                for first_dim, right in zip(x[:-2], y[:-2], strict=True)
            ),
            x[-2],
            y[-1],
        ),
    )


def attention(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through softmax(q k^T + mask) v: q and k agree in depth, k and v in length, all
    three in heads.
    """
    q, k, v = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    assert q is not None
    assert k is not None
    assert v is not None
    a.unify(q[-1], k[-1], node.name)
    a.unify(k[-2], v[-2], node.name)
    for i in range(len(q) - 2):
        if total(q[i]) > 1:
            a.unify(q[i], k[i], node.name)
            a.unify(q[i], v[i], node.name)
    if (mask := a.arg(node, 3)) is not None:
        for dim, heads in zip(mask[-4:], q[-len(mask[-4:]) :], strict=True):
            if total(dim) > 1 and total(heads) == total(dim):
                a.unify(dim, heads, node.name)
    return ((*q[:-1], v[-1]),)
