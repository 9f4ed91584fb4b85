"""How operators that only move, cut or join dimensions pass channel slices on."""

from __future__ import annotations

from nnstretch.graph import Node, ValueRef
from nnstretch.structure.arguments import argument, slice_start
from nnstretch.structure.channel_analysis import ChannelAnalysis, unknown
from nnstretch.structure.channel_slices import (
    ChannelSlice,
    Dim,
    Shape,
    fixed_dim,
    fixed_shape,
    replace_dim,
    total,
)


def axis_argument(node: Node, position: int, rank: int, default: int = 0) -> int:
    """Return an axis argument, counted from the front."""
    axis = argument(node, position, default)
    assert isinstance(axis, int)
    return axis % rank


def cat(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Lay dimensions side by side along the axis; unify the others."""
    names = node.args[0]
    assert isinstance(names, tuple)
    shapes = [a.shape_of(ref.name) for ref in names if isinstance(ref, ValueRef)]
    first = shapes[0]
    axis = axis_argument(node, 1, len(first))
    joined: list[ChannelSlice] = list(first[axis])
    for shape in shapes[1:]:
        joined += shape[axis]
        for i, (first_dim, dim) in enumerate(zip(first, shape, strict=True)):
            if i != axis and total(first_dim) > 1:
                a.unify(first_dim, dim, node.name)
    return (replace_dim(first, axis, tuple(joined)),)


def pieces(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through chunk, split, split_with_sizes: equal pieces stay equal."""
    x = a.tensor_arg(node)
    axis = axis_argument(node, 2, len(x))
    sizes = [output.shape[axis] for output in node.outputs]
    cuts: list[Dim] = []
    start = 0
    for size in sizes:
        cuts.append(a.cut(x[axis], start, start + size, mark=len(set(sizes)) > 1))
        start += size
    if node.kind != "split_with_sizes":
        for piece in cuts[1:]:
            if total(piece) == total(cuts[0]):
                a.scale_alike(cuts[0], piece, node.name)
            else:
                a.pin([cuts[0], piece], f"{node.name}: unequal pieces")
    return tuple(replace_dim(x, axis, piece) for piece in cuts)


def gated(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through glu: one half of an axis, scaled by the other."""
    x = a.tensor_arg(node)
    axis = axis_argument(node, 1, len(x), default=-1)
    half = total(x[axis]) // 2
    value = a.cut(x[axis], 0, half)
    a.unify(value, a.cut(x[axis], half, 2 * half), node.name)
    return (replace_dim(x, axis, value),)


def getitem(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Return one of several outputs."""
    source, index = node.args
    assert isinstance(source, ValueRef)
    assert isinstance(index, int)
    shapes = a.shapes[source.name]
    return (shapes[index],) if len(shapes) > 1 else shapes


def unbind(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Drop an axis: one output for each index."""
    x = a.tensor_arg(node)
    axis = axis_argument(node, 1, len(x))
    a.pin([x[axis]], f"{node.name}: taken apart")
    return (x[:axis] + x[axis + 1 :],) * len(node.outputs)


def select(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Drop an axis: one index of it."""
    return (unbind(a, node)[0],)


def slice_(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Cut a range out of an axis."""
    x = a.tensor_arg(node)
    axis = axis_argument(node, 1, len(x))
    start = argument(node, 2)
    size = node.output.shape[axis]
    if size == total(x[axis]):
        return (x,)
    if argument(node, 4, 1) != 1 or not whole_numbers(start, argument(node, 3)):
        a.pin([x[axis]], f"{node.name}: sliced in steps")
        return (replace_dim(x, axis, fixed_dim(size)),)
    low = slice_start(start, total(x[axis]))
    return (replace_dim(x, axis, a.cut(x[axis], low, low + size, mark=True)),)


def whole_numbers(*bounds: object) -> bool:
    """Return whether all bounds of a slice are numbers, or left out."""
    return all(isinstance(bound, int | None) for bound in bounds)


def slice_scatter(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through a tensor with a slice replaced by another one of its length."""
    x = a.arg(node, 0)
    source = a.arg(node, 1)
    axis = argument(node, 2, 0)
    start = argument(node, 3)
    if x is None or source is None or argument(node, 5, 1) != 1:
        return unknown(a, node)
    if not whole_numbers(start) or not isinstance(axis, int):
        return unknown(a, node)
    axis %= len(x)
    low = slice_start(start, total(x[axis]))
    for i, (dim, new) in enumerate(zip(x, source, strict=True)):
        replaced = a.cut(dim, low, low + total(new), mark=True) if i == axis else dim
        a.unify(replaced, new, node.name)
    return (x,)


def permute(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Reorder the dimensions."""
    x = a.tensor_arg(node)
    order = node.args[1]
    assert isinstance(order, tuple)
    return (tuple(x[int(str(i))] for i in order),)


def transpose(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Swap two dimensions."""
    x = a.tensor_arg(node)
    i = axis_argument(node, 1, len(x))
    j = axis_argument(node, 2, len(x), default=1)
    out = list(x)
    out[i], out[j] = out[j], out[i]
    return (tuple(out),)


def unsqueeze(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Insert a dimension of size 1."""
    x = a.tensor_arg(node)
    axis = axis_argument(node, 1, len(x) + 1)
    return ((*x[:axis], fixed_dim(1), *x[axis:]),)


def padding(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through padding: dimensions that are padded keep their size; the others pass."""
    x = a.tensor_arg(node)
    out: list[Dim] = []
    for dim, size in zip(x, node.output.shape, strict=True):
        if total(dim) == size:
            out.append(dim)
        else:
            a.pin([dim], f"{node.name}: padded")
            out.append(fixed_dim(size))
    return (tuple(out),)


def indexed(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through table[index]: rows are picked, the table's other dimensions pass."""
    x = a.arg(node, 0)
    index = node.args[1]
    if x is None or not isinstance(index, tuple) or len(index) != 1:
        return unknown(a, node)
    if not isinstance(index[0], ValueRef):
        return unknown(a, node)
    a.pin([x[0]], f"{node.name}: picked by index")
    picked = len(node.output.shape) - len(x) + 1
    return ((*fixed_shape(node.output.shape[:picked]), *x[1:]),)
