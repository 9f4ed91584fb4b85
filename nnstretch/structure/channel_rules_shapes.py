"""How operators that only move, cut, join or rename dimensions pass channel parts on."""

from __future__ import annotations

from math import prod

from nnstretch.graph import Node, ValueRef
from nnstretch.structure.channel_analysis import (
    ChannelAnalysis,
    ChannelSlice,
    Dim,
    Shape,
    total,
    unknown,
)


def cat(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Lay dimensions side by side along the axis; unify the others."""
    names = node.args[0]
    assert isinstance(names, tuple)
    axis = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(axis, int)
    shapes = [a.shape_of(ref.name) for ref in names if isinstance(ref, ValueRef)]
    axis %= len(shapes[0])
    for shape in shapes[1:]:
        for i, (first_dim, right) in enumerate(zip(shapes[0], shape, strict=True)):
            if i != axis and total(first_dim) > 1:
                a.unify(first_dim, right, node.name)
    out = list(shapes[0])
    out[axis] = tuple(part for shape in shapes for part in shape[axis])
    return (tuple(out),)


def pieces(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through chunk, split, split_with_sizes: cut where the outputs say; equal pieces
    stay equal.
    """
    x = a.arg(node, 0)
    assert x is not None
    axis = node.args[2] if len(node.args) > 2 else 0
    assert isinstance(axis, int)
    axis %= len(x)
    shapes: list[Shape] = []
    at = 0
    for output in node.outputs:
        size = output.shape[axis]
        shapes.append(
            (*x[:axis], a.cut(x[axis], at, at + size, mark=unequal(node, axis)), *x[axis + 1 :])
        )
        at += size
    if node.kind != "split_with_sizes":
        for shape in shapes[1:]:
            if total(shape[axis]) == total(shapes[0][axis]):
                a.unify(shapes[0][axis], shape[axis], node.name)
            else:
                a.pin([shapes[0][axis], shape[axis]], f"{node.name}: unequal pieces")
    return tuple(shapes)


def unequal(node: Node, axis: int) -> bool:
    """Return whether pieces along an axis differ in size."""
    return len({output.shape[axis] for output in node.outputs}) > 1


def getitem(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Return one of several outputs."""
    source, index = node.args
    assert isinstance(source, ValueRef)
    assert isinstance(index, int)
    shapes = a.shapes[source.name]
    return (shapes[index],) if len(shapes) > 1 else shapes


def unbind(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Drop an axis: one output for each index."""
    x = a.arg(node, 0)
    assert x is not None
    axis = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(axis, int)
    axis %= len(x)
    a.pin([x[axis]], f"{node.name}: taken apart")
    outer_dims = x[:axis] + x[axis + 1 :]
    return tuple(outer_dims for _ in node.outputs)


def select(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Drop an axis: one index of it."""
    return (unbind(a, node)[0],)


def slice_(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Cut a range out of an axis."""
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
        return ((*x[:axis], (ChannelSlice(None, node.output.shape[axis]),), *x[axis + 1 :]),)
    low = 0 if start is None else start + (size if start < 0 else 0)
    return (
        (*x[:axis], a.cut(x[axis], low, low + node.output.shape[axis], mark=True), *x[axis + 1 :]),
    )


def slice_scatter(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through a tensor with a slice of it replaced: the new slice is as long as the old
    one.
    """
    x, source = a.arg(node, 0), a.arg(node, 1)
    axis, start, _, step = (node.args[2:] + (0, None, None, 1)[len(node.args) - 2 :])[:4]
    if (
        x is None
        or source is None
        or step != 1
        or not isinstance(start, int | None)
        or not isinstance(axis, int)
    ):
        return unknown(a, node)
    axis %= len(x)
    low = 0 if start is None else start + (total(x[axis]) if start < 0 else 0)
    for i, (mine, new) in enumerate(zip(x, source, strict=True)):
        a.unify(
            a.cut(mine, low, low + total(new), mark=True) if i == axis else mine, new, node.name
        )
    return (x,)


def permute(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Reorder the dimensions."""
    x, order = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(order, tuple)
    return (tuple(x[int(str(i)) % len(x)] for i in order),)


def transpose(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Swap two dimensions."""
    x = a.arg(node, 0)
    assert x is not None
    i, j = (int(str(v)) % len(x) for v in (node.args[1:3] if len(node.args) > 2 else (0, 1)))
    out = list(x)
    out[i], out[j] = out[j], out[i]
    return (tuple(out),)


def unsqueeze(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Insert a dimension of size 1."""
    x, axis = a.arg(node, 0), node.args[1]
    assert x is not None
    assert isinstance(axis, int)
    axis %= len(x) + 1
    return ((*x[:axis], (ChannelSlice(None, 1),), *x[axis:]),)


def reshape(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Match old and new dimensions in runs of equal product; see `merge` and `divide`."""
    x = a.arg(node, 0)
    assert x is not None
    new = list(node.output.shape)
    out: list[Dim] = []
    i = 0
    for count, run in matching_runs([total(d) for d in x], new):
        olds, i = x[i : i + count], i + count
        out.extend(regroup(a, node, olds, run, first=i == count))
    return (tuple(out),)


def reshape_as(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through a reshape whose sizes another tensor spells: both must scale alike."""
    target = a.arg(node, 1)
    shape = reshape(a, node)[0]
    if target is None:
        return unknown(a, node)
    for old_dim, right in zip(shape, target, strict=True):
        if total(old_dim) > 1:
            a.unify(old_dim, right, node.name)
    return (target,)


def expand_as(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through expand_as: dimensions of size 1 take the other tensor's, the others agree
    with it.
    """
    x, target = a.arg(node, 0), a.arg(node, 1)
    if x is None or target is None:
        return unknown(a, node)
    for first_dim, right in zip(x, target[len(target) - len(x) :], strict=True):
        if total(first_dim) > 1:
            a.unify(first_dim, right, node.name)
    return (target,)


def matching_runs(old: list[int], new: list[int]) -> list[tuple[int, list[int]]]:
    """Return the shortest runs: how many old dimensions, and which new sizes, multiply to the same
    number.
    """
    runs: list[tuple[int, list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        run: list[int] = []
        count, old_size, right = 0, 1, 1
        while True:
            if count == 0 and i < len(old):
                old_size, count, i = old_size * old[i], 1, i + 1
            elif not run and j < len(new):
                right, j = right * new[j], j + 1
                run.append(new[j - 1])
            elif old_size < right and i < len(old):
                old_size, count, i = old_size * old[i], count + 1, i + 1
            elif right < old_size and j < len(new):
                right, j = right * new[j], j + 1
                run.append(new[j - 1])
            else:
                break
        runs.append((count, run))
    return runs


def regroup(a: ChannelAnalysis, node: Node, olds: Shape, news: list[int], first: bool) -> list[Dim]:
    """Turn a run of dimensions into a run of equal product."""
    tracked = [
        dim
        for dim in olds
        if any(part.group is not None and not a.is_pinned(part.group) for part in dim)
    ]
    wide = [size for size in news if size > 1]
    if not tracked:
        return [(ChannelSlice(None, size),) for size in news]
    if len(wide) <= 1 and len(tracked) == 1:
        return merge(a, olds, tracked[0], news)
    if (
        len(tracked) == 1
        and total(tracked[0]) == prod(total(d) for d in olds)
        and not (first and len(olds) > 1)
    ):
        return divide(a, node, tracked[0], news)
    a.pin(tracked, f"{node.name}: reshaped across dimensions")
    return [(ChannelSlice(None, size),) for size in news]


def merge(a: ChannelAnalysis, olds: Shape, tracked: Dim, news: list[int]) -> list[Dim]:
    """Merge several dimensions into one: channels times the size of the others."""
    factor = prod(total(dim) for dim in olds) // total(tracked)
    position = next(i for i, dim in enumerate(olds) if dim is tracked)
    if any(total(dim) > 1 for dim in olds[:position]):
        a.uniform(tracked)
    merged = tuple(ChannelSlice(part.group, part.size * factor) for part in tracked)
    return [merged if size > 1 else (ChannelSlice(None, 1),) for size in news]


def divide(a: ChannelAnalysis, node: Node, tracked: Dim, news: list[int]) -> list[Dim]:
    """Divide one dimension into several.

    The one that was merged into it carries the channels, else the largest.
    """
    a.uniform(tracked)
    part = tracked[0]
    if part.group is None:
        return [(ChannelSlice(None, size),) for size in news]
    natural = a.base[part.group] if part.size > a.base[part.group] else 0
    carrier = (
        news.index(natural) if natural in news else max(range(len(news)), key=lambda i: news[i])
    )
    a.need_whole(part.group, news[carrier])
    return [
        (ChannelSlice(part.group, size),) if i == carrier else (ChannelSlice(None, size),)
        for i, size in enumerate(news)
    ]


def expand(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Broadcast dimensions of size 1; add leading ones."""
    x = a.arg(node, 0)
    assert x is not None
    fresh = a.fixed(node.output)
    lead = len(fresh) - len(x)
    return ((*fresh[:lead], *(fresh[lead + i] if total(d) == 1 else d for i, d in enumerate(x))),)


def padding(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through padding: dimensions that are padded keep their size; the others pass."""
    x = a.arg(node, 0)
    assert x is not None
    out: list[Dim] = []
    for dim, size in zip(x, node.output.shape, strict=True):
        if total(dim) != size:
            a.pin([dim], f"{node.name}: padded")
        out.append(dim if total(dim) == size else (ChannelSlice(None, size),))
    return (tuple(out),)


def indexed(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through table[index]: rows are picked, the table's other dimensions pass."""
    x, where = a.arg(node, 0), node.args[1]
    if (
        x is None
        or not isinstance(where, tuple)
        or len(where) != 1
        or not isinstance(where[0], ValueRef)
    ):
        return unknown(a, node)
    a.pin([x[0]], f"{node.name}: picked by index")
    picked = len(node.output.shape) - len(x) + 1
    return ((*a.fixed(node.output)[:picked], *x[1:]),)
