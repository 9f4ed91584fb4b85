"""Operators that move elements: views without a copy, joins, paddings, shuffles."""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import TensorBuffer, TensorView, whole_view
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


def integer(value: Argument, default: int | None = None) -> int:
    """Return a whole-number argument. Raises UnsupportedArguments for anything else."""
    if value is None and default is not None:
        return default
    if isinstance(value, int):
        return int(value)
    raise UnsupportedArguments(f"{value} where a number is read")


def integers(value: Argument) -> tuple[int, ...]:
    """Return whole numbers, of one or several."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple(integer(item) for item in items)


def rename(t: Translation, node: Node) -> Views:
    """Pass a value on: dropout, contiguous, clone change nothing here."""
    t.pass_on(node.args[0], node)
    return t.view_of(node.args[0])


def reshaped(t: Translation, node: Node) -> Views:
    """Translate view, reshape, flatten and the like: the output's shape says all."""
    calls = len(t.calls)
    view = t.reshape(t.view_of(node.args[0]), node.output.shape, node)
    if len(t.calls) == calls:
        t.pass_on(node.args[0], node)
    return view


def expanded(t: Translation, node: Node) -> Views:
    """Translate expand: strides of 0."""
    return view_algebra.broadcast(t.view_of(node.args[0]), node.output.shape)


def permuted(t: Translation, node: Node) -> Views:
    """Translate permute, and transpose of all kinds."""
    x = t.view_of(node.args[0])
    rank = len(x.shape)
    if node.kind in ("t", "numpy_T"):
        return view_algebra.permute(x, tuple(reversed(range(rank))))
    if node.kind == "permute":
        axes = integers(node.args[1])
        return view_algebra.permute(x, tuple(axis % rank for axis in axes))
    if node.kind == "movedim":
        return moved(x, integers(node.args[1]), integers(node.args[2]))
    first, second = integer(node.args[1]), integer(node.args[2])
    return view_algebra.transpose(x, first % rank, second % rank)


def moved(x: TensorView, sources: tuple[int, ...], targets: tuple[int, ...]) -> TensorView:
    """Return a view with some axes at other positions, the others in order."""
    rank = len(x.shape)
    order: list[int | None] = [None] * rank
    for source, target in zip(sources, targets, strict=True):
        order[target % rank] = source % rank
    free = iter(axis for axis in range(rank) if axis not in order)
    return view_algebra.permute(x, tuple(next(free) if axis is None else axis for axis in order))


def sliced(t: Translation, node: Node) -> Views:
    """Translate slice(x, axis, start, end, step)."""
    x = t.view_of(node.args[0])
    axis = integer(argument(node, 1), 0) % len(x.shape)
    size = x.shape[axis]
    start = clip(integer(argument(node, 2), 0), size)
    step = integer(argument(node, 4), 1)
    return view_algebra.narrow(x, axis, start, node.output.shape[axis], step)


def clip(position: int, size: int) -> int:
    """Return a position of an axis, counted from its end where negative."""
    return max(0, min(size, position + size if position < 0 else position))


def selected(t: Translation, node: Node) -> Views:
    """Translate select(x, axis, index)."""
    x = t.view_of(node.args[0])
    axis = integer(node.args[1]) % len(x.shape)
    return view_algebra.select(x, axis, integer(node.args[2]) % x.shape[axis])


def parts(t: Translation, node: Node) -> Views:
    """Translate chunk, split and split_with_sizes: one view for each output."""
    x = t.view_of(node.args[0])
    axis = integer(argument(node, 2), 0) % len(x.shape)
    views: list[TensorView] = []
    start = 0
    for spec in node.outputs:
        views.append(view_algebra.narrow(x, axis, start, spec.shape[axis]))
        start += spec.shape[axis]
    return tuple(views)


def unbound(t: Translation, node: Node) -> Views:
    """Translate unbind: one view for each position of an axis."""
    x = t.view_of(node.args[0])
    axis = integer(argument(node, 1), 0) % len(x.shape)
    return tuple(view_algebra.select(x, axis, index) for index in range(x.shape[axis]))


def picked(t: Translation, node: Node) -> Views:
    """Translate getitem of a list of tensors."""
    source = node.args[0]
    assert isinstance(source, ValueRef)
    views = t.values[source.name]
    if not isinstance(views, tuple):
        raise UnsupportedArguments("an item of what is no list")
    index = integer(node.args[1])
    if index >= len(views):
        raise UnsupportedArguments("indices of a pool")
    return views[index]


def joined(t: Translation, node: Node) -> Views:
    """Translate cat and stack: each part is copied to its place."""
    items = node.args[0]
    if not isinstance(items, tuple):
        raise UnsupportedArguments("no list of tensors")
    views = [t.view_of(item) for item in items]
    views = [view for view in views if view.elements > 0]
    shape = node.output.shape
    axis = integer(argument(node, 1), 0) % len(shape)
    if node.kind == "stack":
        views = [view_algebra.insert_axis(view, axis) for view in views]
    target = whole_view(TensorBuffer(node.name, "arena", shape))
    start = 0
    for number, view in enumerate(views):
        place = view_algebra.narrow(target, axis, start, view.shape[axis])
        t.call(node, "Copy", (view,), view.shape, write=place, suffix=f"_part{number}")
        start += view.shape[axis]
    return target


def rolled(t: Translation, node: Node) -> Views:
    """Translate roll along some axes, one after the other: two copies each."""
    x = t.view_of(node.args[0])
    shifts = integers(node.args[1])
    axes = integers(argument(node, 2, ()))
    if len(axes) != len(shifts):
        raise UnsupportedArguments("a roll of the flattened tensor")
    for number, (shift, axis) in enumerate(zip(shifts, axes, strict=True)):
        size = x.shape[axis]
        if shift % size == 0:
            continue
        target = whole_view(TensorBuffer(f"{node.name}_{number}", "arena", x.shape))
        split = shift % size
        pieces = ((0, size - split, split), (split, 0, size - split))
        for piece, (to, start, length) in enumerate(pieces):
            t.call(
                node,
                "Copy",
                (view_algebra.narrow(x, axis, start, length),),
                x.shape,
                write=view_algebra.narrow(target, axis, to, length),
                suffix=f"_{number}_{piece}",
            )
        x = target
    return x


def flipped(t: Translation, node: Node) -> Views:
    """Translate flip: negative strides."""
    x = t.view_of(node.args[0])
    for axis in integers(node.args[1]):
        x = view_algebra.flip(x, axis % len(x.shape))
    return x


def repeated(t: Translation, node: Node) -> Views:
    """Translate repeat and tile: every axis becomes (repeats, size)."""
    x = t.view_of(node.args[0])
    repeats = integers(node.args[1])
    missing = max(0, len(repeats) - len(x.shape))
    sizes = (1,) * missing + x.shape
    x = t.reshape(x, sizes, node)
    repeats = (1,) * (len(sizes) - len(repeats)) + repeats
    shape: list[int] = []
    for axis, (count, size) in enumerate(zip(repeats, sizes, strict=True)):
        x = view_algebra.insert_axis(x, 2 * axis)
        shape += [count, size]
    return t.reshape(view_algebra.broadcast(x, tuple(shape)), node.output.shape, node)


def interleaved(t: Translation, node: Node) -> Views:
    """Translate repeat_interleave by a number: every position of an axis several times in a row."""
    x = t.view_of(node.args[0])
    count = integer(node.args[1])
    item = argument(node, 2)
    if item is None:
        x, axis = t.reshape(x, (x.elements,), node), 0
    else:
        axis = integer(item) % len(x.shape)
    x = view_algebra.insert_axis(x, axis + 1)
    shape = (*x.shape[: axis + 1], count, *x.shape[axis + 2 :])
    return t.reshape(view_algebra.broadcast(x, shape), node.output.shape, node)


def pixel_shuffled(t: Translation, node: Node) -> Views:
    """Translate pixel_shuffle and pixel_unshuffle."""
    x = t.view_of(node.args[0])
    factor = integer(node.args[1])
    batch, channels, height, width = x.shape
    if node.kind == "pixel_shuffle":
        split = (batch, channels // factor**2, factor, factor, height, width)
        moved_view = view_algebra.permute(t.reshape(x, split, node), (0, 1, 4, 2, 5, 3))
    else:
        split = (batch, channels, height // factor, factor, width // factor, factor)
        moved_view = view_algebra.permute(t.reshape(x, split, node), (0, 1, 3, 5, 2, 4))
    return t.reshape(moved_view, node.output.shape, node)


def channel_shuffled(t: Translation, node: Node) -> Views:
    """Translate channel_shuffle."""
    x = t.view_of(node.args[0])
    groups = integer(node.args[1])
    split = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    moved_view = view_algebra.transpose(t.reshape(x, split, node), 1, 2)
    return t.reshape(moved_view, node.output.shape, node)


RULES: dict[str, Rule] = dict.fromkeys(
    (
        *("dropout", "feature_dropout", "alpha_dropout", "contiguous", "alias", "detach"),
        *("identity", "clone", "to", "_to_copy", "type_as", "lift_fresh_copy"),
    ),
    rename,
)
RULES |= dict.fromkeys(
    (
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("view_as", "reshape_as"),
    ),
    reshaped,
)
RULES |= {
    "expand": expanded,
    "expand_as": expanded,
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T", "swapaxes", "movedim"), permuted),
    "slice": sliced,
    "select": selected,
    "chunk": parts,
    "split": parts,
    "split_with_sizes": parts,
    "unbind": unbound,
    "getitem": picked,
    "cat": joined,
    "concat": joined,
    "stack": joined,
    "roll": rolled,
    "flip": flipped,
    "repeat": repeated,
    "tile": repeated,
    "repeat_interleave": interleaved,
    "pixel_shuffle": pixel_shuffled,
    "pixel_unshuffle": pixel_shuffled,
    "channel_shuffle": channel_shuffled,
}
