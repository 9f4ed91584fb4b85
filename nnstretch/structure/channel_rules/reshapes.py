"""How reshapes and broadcasts pass channel slices on."""

from __future__ import annotations

from math import prod

from nnstretch.graph import Node
from nnstretch.structure.channel_analysis import ChannelAnalysis, unknown
from nnstretch.structure.channel_slices import (
    ChannelSlice,
    Dim,
    SameChannels,
    Shape,
    fixed_dim,
    fixed_shape,
    groups_in,
    positioned,
    total,
)


def reshape(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Match old and new dimensions in runs of equal product; see `merge` and `divide`."""
    x = a.tensor_arg(node)
    out: list[Dim] = []
    start = 0
    for count, sizes in matching_runs([total(dim) for dim in x], list(node.output.shape)):
        out += regroup(a, node, x[start : start + count], sizes, first=start == 0)
        start += count
    return (tuple(out),)


def reshape_as(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through a reshape whose sizes another tensor spells: both must scale alike."""
    target = a.arg(node, 1)
    (shape,) = reshape(a, node)
    if target is None:
        return unknown(a, node)
    return unify_wide(a, node, shape, target)


def expand_as(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Propagate through expand_as: dimensions of size 1 take the target's, the others agree."""
    x = a.arg(node, 0)
    target = a.arg(node, 1)
    if x is None or target is None:
        return unknown(a, node)
    return unify_wide(a, node, x, target)


def unify_wide(a: ChannelAnalysis, node: Node, shape: Shape, target: Shape) -> tuple[Shape, ...]:
    """Unify dimensions larger than 1 with the target's last ones, and return the target."""
    for dim, target_dim in zip(shape, target[len(target) - len(shape) :], strict=True):
        if total(dim) > 1:
            a.unify(dim, target_dim, node.name)
    return (target,)


def expand(a: ChannelAnalysis, node: Node) -> tuple[Shape, ...]:
    """Broadcast dimensions of size 1; add leading ones."""
    x = a.tensor_arg(node)
    out = list(fixed_shape(node.output.shape))
    for i, dim in enumerate(x, start=len(out) - len(x)):
        if total(dim) != 1:
            out[i] = dim
    return (tuple(out),)


def matching_runs(old: list[int], new: list[int]) -> list[tuple[int, list[int]]]:
    """Return the shortest runs of equal product: how many old dimensions, and which new sizes."""
    runs: list[tuple[int, list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        old_end = min(i + 1, len(old))
        new_end = min(j + 1, len(new))
        while True:
            old_size = prod(old[i:old_end])
            new_size = prod(new[j:new_end])
            if old_size < new_size and old_end < len(old):
                old_end += 1
            elif new_size < old_size and new_end < len(new):
                new_end += 1
            else:
                break
        runs.append((old_end - i, new[j:new_end]))
        i = old_end
        j = new_end
    return runs


def regroup(
    a: ChannelAnalysis, node: Node, olds: Shape, sizes: list[int], first: bool
) -> list[Dim]:
    """Turn a run of dimensions into a run of equal product."""
    tracked = [dim for dim in olds if any(not a.is_pinned(group) for group in groups_in(dim))]
    if not tracked:
        return list(fixed_shape(sizes))
    if len(tracked) == 1:
        if sum(size > 1 for size in sizes) <= 1:
            return merge(a, olds, tracked[0], sizes)
        alone = total(tracked[0]) == prod(map(total, olds))
        if alone and not (first and len(olds) > 1):
            return divide(a, tracked[0], sizes)
    a.pin(tracked, f"{node.name}: reshaped across dimensions")
    return list(fixed_shape(sizes))


def merge(a: ChannelAnalysis, olds: Shape, tracked: Dim, sizes: list[int]) -> list[Dim]:
    """Merge several dimensions into one: channels times the size of the others."""
    factor = prod(map(total, olds)) // total(tracked)
    position = next(i for i, dim in enumerate(olds) if dim is tracked)
    outer = prod(map(total, olds[:position]))
    if outer > 1:
        a.uniform(tracked)
    merged = tracked if factor == 1 else repeat_channels(a, tracked, outer, factor // outer)
    return [merged if size > 1 else fixed_dim(1) for size in sizes]


def repeat_channels(a: ChannelAnalysis, dim: Dim, outer: int, inner: int) -> Dim:
    """Return a dimension repeated `outer` times, every channel `inner` times in a row."""
    size = total(dim)
    first = a.number(size * outer * inner)
    a.same.append(SameChannels(a.contiguous(dim), size, first, outer, inner))
    repeated: list[ChannelSlice] = []
    for at, part in positioned(dim):
        start = first + at * outer * inner
        repeated.append(ChannelSlice(part.group, part.size * outer * inner, start))
    return tuple(repeated)


def divide(a: ChannelAnalysis, tracked: Dim, sizes: list[int]) -> list[Dim]:
    """Divide one dimension into several.

    The one that was merged into it carries the channels, else the largest.
    """
    a.uniform(tracked)
    out = list(fixed_shape(sizes))
    group = tracked[0].group
    if group is None:
        return out
    base = a.base[group]
    merged = tracked[0].size > base and base in sizes
    carrier = sizes.index(base if merged else max(sizes))
    size = sizes[carrier]
    a.need_whole(group, size)
    first = a.number(size)
    # What the carrier does not tell apart is kept or dropped together: query, key and value keep
    # the same positions, those in every head, or the same heads whole.
    outer = prod(sizes[:carrier])
    inner = prod(sizes[carrier + 1 :])
    a.same.append(SameChannels(first, size, a.contiguous(tracked), outer, inner))
    out[carrier] = (ChannelSlice(group, size, first),)
    return out
