"""How each operator passes channel parts on, and what it ties or pins. One rule a family.

An operator without a rule pins everything it reads, and the reason names it: such a stretch of
the network keeps its width and can still be a sequential segment.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from nnstretch.graph import Node, Ref
from nnstretch.structure.channels import Analyst, Dim, Junction, Part, Shape
from nnstretch.structure.cuts import ACTIVATIONS, PASSING, is_size

Rule = Callable[[Analyst, Node], tuple[Shape, ...]]


def apply(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """Parts of everything the node writes."""
    if is_size(node) or not node.output.shape:
        return tuple(a.fixed(o) for o in node.outputs)
    return RULES.get(node.kind, unknown)(a, node)


def unknown(a: Analyst, node: Node) -> tuple[Shape, ...]:
    return pinned(a, node, f"no width rule for {node.op} ({node.name})")


def pinned(a: Analyst, node: Node, reason: str) -> tuple[Shape, ...]:
    for name in node.inputs:
        if a.is_tensor(name):
            a.pin(a.shape_of(name), reason)
    return tuple(a.fixed(o) for o in node.outputs)


def same(a: Analyst, node: Node) -> tuple[Shape, ...]:
    shape = a.arg(node, 0)
    return unknown(a, node) if shape is None else (shape,)


def conv(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, weight, bias = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    assert x is not None
    assert weight is not None
    a.pin(x[2:], f"{node.name}: pixels")
    a.pin(weight[2:], f"{node.name}: window")
    groups = node.args[6] if len(node.args) > 6 else 1
    assert isinstance(groups, int)
    if groups == 1:
        a.unify(x[1], weight[1], node.name)
        consume(a, x[1])
    else:
        grouped(a, node, x[1], weight, groups)
    if bias is not None:
        a.unify(bias[0], weight[0], node.name)
    return ((x[0], weight[0], *a.fixed(node.output)[2:]),)


def grouped(a: Analyst, node: Node, x: Dim, weight: Shape, groups: int) -> None:
    """Groups come and go whole: input and output scale by one ratio, the group width stays."""
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


def consume(a: Analyst, dim: Dim) -> None:
    a.consumed |= {part.group for part in dim if part.group is not None}


def conv_transpose(a: Analyst, node: Node) -> tuple[Shape, ...]:
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


def linear(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, weight, bias = a.arg(node, 0), a.arg(node, 1), a.arg(node, 2)
    assert x is not None
    assert weight is not None
    a.unify(x[-1], weight[1], node.name)
    consume(a, x[-1])
    if bias is not None:
        a.unify(bias[0], weight[0], node.name)
    return ((*x[:-1], weight[0]),)


def channel_norm(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """Batch and instance norm, prelu: parameters lie along dimension 1."""
    x = a.arg(node, 0)
    assert x is not None
    for position in range(1, 5):
        weight = a.arg(node, position)
        if weight is not None and sum(p.size for p in weight[0]) > 1:
            a.unify(x[1], weight[0], node.name)
    consume(a, x[1])
    return (x,)


def group_norm(a: Analyst, node: Node) -> tuple[Shape, ...]:
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


def layer_norm(a: Analyst, node: Node) -> tuple[Shape, ...]:
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


def binary(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, y = a.arg(node, 0), a.arg(node, 1)
    if x is None or y is None:
        known = x if x is not None else y
        return unknown(a, node) if known is None else (known,)
    rank = max(len(x), len(y))
    one: Dim = (Part(None, 1),)
    x, y = (one,) * (rank - len(x)) + x, (one,) * (rank - len(y)) + y
    out: list[Dim] = []
    for left, right in zip(x, y, strict=True):
        if total(left) == 1 or total(right) == 1:
            out.append(right if total(left) == 1 else left)
        else:
            out.append(joined(a, node, left, right))
    return (tuple(out),)


def joined(a: Analyst, node: Node, left: Dim, right: Dim) -> Dim:
    """Equal dimensions; a shortcut from the section's own input stays free of the main path."""
    if node.kind == "add":
        mine, other = carries_input(a, left), carries_input(a, right)
        if mine != other:
            a.junctions.append(Junction(node.name, 0 if mine else 1))
            return right if mine else left
    a.unify(left, right, node.name)
    return left


def carries_input(a: Analyst, dim: Dim) -> bool:
    """Whether the dimension is the section's input itself, tied to nothing pinned."""
    roots = {a.find(g) for g in a.inputs}
    groups = [part.group for part in dim]
    return all(g is not None and a.find(g) in roots and not a.is_pinned(g) for g in groups)


def total(dim: Dim) -> int:
    return sum(part.size for part in dim)


def cat(a: Analyst, node: Node) -> tuple[Shape, ...]:
    names = node.args[0]
    assert isinstance(names, tuple)
    axis = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(axis, int)
    shapes = [a.shape_of(ref.name) for ref in names if isinstance(ref, Ref)]
    axis %= len(shapes[0])
    for shape in shapes[1:]:
        for i, (left, right) in enumerate(zip(shapes[0], shape, strict=True)):
            if i != axis and total(left) > 1:
                a.unify(left, right, node.name)
    out = list(shapes[0])
    out[axis] = tuple(part for shape in shapes for part in shape[axis])
    return (tuple(out),)


def pieces(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """chunk, split, split_with_sizes: cut where the outputs say; equal pieces stay equal."""
    x = a.arg(node, 0)
    assert x is not None
    axis = node.args[2] if len(node.args) > 2 else 0
    assert isinstance(axis, int)
    axis %= len(x)
    shapes: list[Shape] = []
    at = 0
    for output in node.outputs:
        size = output.shape[axis]
        shapes.append((*x[:axis], a.cut(x[axis], at, at + size), *x[axis + 1 :]))
        at += size
    if node.kind != "split_with_sizes":
        for shape in shapes[1:]:
            if total(shape[axis]) == total(shapes[0][axis]):
                a.unify(shapes[0][axis], shape[axis], node.name)
            else:
                a.pin([shapes[0][axis], shape[axis]], f"{node.name}: unequal pieces")
    return tuple(shapes)


def getitem(a: Analyst, node: Node) -> tuple[Shape, ...]:
    source, index = node.args
    assert isinstance(source, Ref)
    assert isinstance(index, int)
    shapes = a.shapes[source.name]
    return (shapes[index],) if len(shapes) > 1 else shapes


def unbind(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x = a.arg(node, 0)
    assert x is not None
    axis = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(axis, int)
    axis %= len(x)
    a.pin([x[axis]], f"{node.name}: taken apart")
    rest = x[:axis] + x[axis + 1 :]
    return tuple(rest for _ in node.outputs)


def select(a: Analyst, node: Node) -> tuple[Shape, ...]:
    return (unbind(a, node)[0],)


def slice_(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x = a.arg(node, 0)
    assert x is not None
    axis, start, end, step = (node.args[1:] + (0, None, None, 1)[len(node.args) - 1 :])[:4]
    assert isinstance(axis, int)
    axis %= len(x)
    size = total(x[axis])
    if node.output.shape[axis] == size:
        return (x,)
    if step != 1 or not isinstance(start, int | None) or not isinstance(end, int | None):
        a.pin([x[axis]], f"{node.name}: sliced in steps")
        return ((*x[:axis], (Part(None, node.output.shape[axis]),), *x[axis + 1 :]),)
    low = 0 if start is None else start + (size if start < 0 else 0)
    return ((*x[:axis], a.cut(x[axis], low, low + node.output.shape[axis]), *x[axis + 1 :]),)


def permute(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, order = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(order, tuple)
    return (tuple(x[int(str(i)) % len(x)] for i in order),)


def transpose(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x = a.arg(node, 0)
    assert x is not None
    i, j = (int(str(v)) % len(x) for v in (node.args[1:3] if len(node.args) > 2 else (0, 1)))
    out = list(x)
    out[i], out[j] = out[j], out[i]
    return (tuple(out),)


def unsqueeze(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, axis = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(axis, int)
    axis %= len(x) + 1
    return ((*x[:axis], (Part(None, 1),), *x[axis:]),)


def reshape(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """Match old and new dimensions in runs of equal product; see `merge` and `divide`."""
    x = a.arg(node, 0)
    assert x is not None
    new = list(node.output.shape)
    out: list[Dim] = []
    i = 0
    for count, run in runs([total(d) for d in x], new):
        olds, i = x[i : i + count], i + count
        out.extend(regroup(a, node, olds, run, first=i == count))
    return (tuple(out),)


def runs(old: list[int], new: list[int]) -> list[tuple[int, list[int]]]:
    """Shortest runs: how many old dimensions, and which new sizes, multiply to the same number."""
    found: list[tuple[int, list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        count, run = 0, []
        left = right = 1
        while True:
            if count == 0 and i < len(old):
                left, count, i = left * old[i], 1, i + 1
            elif not run and j < len(new):
                right, j = right * new[j], j + 1
                run.append(new[j - 1])
            elif left < right and i < len(old):
                left, count, i = left * old[i], count + 1, i + 1
            elif right < left and j < len(new):
                right, j = right * new[j], j + 1
                run.append(new[j - 1])
            else:
                break
        found.append((count, run))
    return found


def regroup(a: Analyst, node: Node, olds: Shape, news: list[int], first: bool) -> list[Dim]:
    tracked = [dim for dim in olds if any(part.group is not None for part in dim)]
    wide = [size for size in news if size > 1]
    if not tracked:
        return [(Part(None, size),) for size in news]
    if len(wide) <= 1 and len(tracked) == 1:
        return merge(a, olds, tracked[0], news)
    if len(tracked) == 1 and total(tracked[0]) == prod(total(d) for d in olds) and not (first and len(olds) > 1):
        return divide(a, node, tracked[0], news)
    a.pin(tracked, f"{node.name}: reshaped across dimensions")
    return [(Part(None, size),) for size in news]


def merge(a: Analyst, olds: Shape, tracked: Dim, news: list[int]) -> list[Dim]:
    """Several dimensions become one: channels times the size of the others."""
    factor = prod(total(dim) for dim in olds) // total(tracked)
    position = next(i for i, dim in enumerate(olds) if dim is tracked)
    if any(total(dim) > 1 for dim in olds[:position]):
        a.uniform(tracked)
    merged = tuple(Part(part.group, part.size * factor) for part in tracked)
    return [merged if size > 1 else (Part(None, 1),) for size in news]


def divide(a: Analyst, node: Node, tracked: Dim, news: list[int]) -> list[Dim]:
    """One dimension becomes several: the largest of them carries the channels, the others keep their size."""
    a.uniform(tracked)
    part = tracked[0]
    largest = max(range(len(news)), key=lambda i: news[i])
    if part.group is None:
        return [(Part(None, size),) for size in news]
    a.need_whole(part.group, news[largest])
    return [(Part(part.group, size),) if i == largest else (Part(None, size),) for i, size in enumerate(news)]


def expand(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x = a.arg(node, 0)
    assert x is not None
    fresh = a.fixed(node.output)
    lead = len(fresh) - len(x)
    return ((*fresh[:lead], *(fresh[lead + i] if total(d) == 1 else d for i, d in enumerate(x))),)


def pooling(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """Channels pass, pixels change: pools, interpolation."""
    x = a.arg(node, 0)
    assert x is not None
    a.pin(x[2:], f"{node.name}: pixels")
    shape = (x[0], x[1], *a.fixed(node.output)[2:])
    return tuple(shape for _ in node.outputs)


def padding(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """Dimensions that are padded keep their size; the others pass."""
    x = a.arg(node, 0)
    assert x is not None
    out: list[Dim] = []
    for dim, size in zip(x, node.output.shape, strict=True):
        if total(dim) != size:
            a.pin([dim], f"{node.name}: padded")
        out.append(dim if total(dim) == size else (Part(None, size),))
    return (tuple(out),)


def reduction(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """mean, sum, amax ...: reduced dimensions go or become 1, the others pass."""
    x = a.arg(node, 0)
    assert x is not None
    axes = node.args[1] if len(node.args) > 1 else None
    if isinstance(axes, int) and not isinstance(axes, bool):
        axes = (axes,)
    if not isinstance(axes, tuple):
        return tuple(a.fixed(o) for o in node.outputs)
    gone = {int(str(i)) % len(x) for i in axes}
    if len(node.output.shape) == len(x):
        shape = tuple((Part(None, 1),) if i in gone else dim for i, dim in enumerate(x))
    else:
        shape = tuple(dim for i, dim in enumerate(x) if i not in gone)
    return tuple(shape for _ in node.outputs)


def matmul(a: Analyst, node: Node) -> tuple[Shape, ...]:
    x, y = a.arg(node, 0), a.arg(node, 1)
    if x is None or y is None or len(x) < 2 or len(x) != len(y):
        return unknown(a, node)
    a.unify(x[-1], y[-2], node.name)
    for left, right in zip(x[:-2], y[:-2], strict=True):
        if total(left) == total(right) > 1:
            a.unify(left, right, node.name)
    return ((*(l if total(l) > 1 else r for l, r in zip(x[:-2], y[:-2], strict=True)), x[-2], y[-1]),)


def attention(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """softmax(q k^T + mask) v: q and k agree in depth, k and v in length, all three in heads."""
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


def indexed(a: Analyst, node: Node) -> tuple[Shape, ...]:
    """table[index]: rows are picked, the table's other dimensions pass."""
    x, where = a.arg(node, 0), node.args[1]
    if x is None or not isinstance(where, tuple) or len(where) != 1 or not isinstance(where[0], Ref):
        return unknown(a, node)
    a.pin([x[0]], f"{node.name}: picked by index")
    picked = len(node.output.shape) - len(x) + 1
    return ((*a.fixed(node.output)[:picked], *x[1:]),)


POINTWISE = ACTIVATIONS | PASSING | frozenset(
    """neg abs exp log sqrt rsqrt square reciprocal erf sin cos floor clamp clamp_min clamp_max softmax log_softmax pow to _to_copy
    type_as roll flip log_sigmoid logical_not bernoulli normalize lift_fresh_copy celu threshold rrelu""".split()
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, same),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), conv_transpose),
    **dict.fromkeys(("batch_norm", "instance_norm", "prelu"), channel_norm),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "rsub", "eq", "gt", "lt"), binary),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), pieces),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze"), reshape),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "var", "std", "linalg_vector_norm", "norm", "var_mean", "max", "logsumexp"), reduction),
    **dict.fromkeys(("constant_pad_nd", "pad", "reflection_pad2d", "replication_pad2d"), padding),
    **dict.fromkeys(("matmul", "bmm"), matmul),
    **dict.fromkeys(
        """max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool1d avg_pool1d adaptive_avg_pool1d max_pool2d_with_indices
        upsample_nearest2d upsample_bilinear2d upsample_bicubic2d lp_pool2d max_pool3d avg_pool3d adaptive_avg_pool3d""".split(),
        pooling,
    ),
    "linear": linear,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "cat": cat,
    "getitem": getitem,
    "unbind": unbind,
    "select": select,
    "slice": slice_,
    "permute": permute,
    "transpose": transpose,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "index": indexed,
    "scaled_dot_product_attention": attention,
}
