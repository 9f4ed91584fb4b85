"""Operators that move elements: views without a copy, joins, what is filled."""

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


def axis_number(position: int, rank: int) -> int:
    """Return an axis counted from the first.

    Raises UnsupportedArguments for a tensor of one number, which PyTorch takes as one axis.
    """
    if rank == 0:
        raise UnsupportedArguments("an axis of a tensor that has none")
    return position % rank


def integers(value: Argument) -> tuple[int, ...]:
    """Return whole numbers, of one or several."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple(integer(item) for item in items)


def rename(t: Translation, node: Node) -> Views:
    """Pass a value on: dropout, contiguous, clone change nothing here."""
    t.pass_on(node.args[0], node)
    return t.view_of(node.args[0])


def dropped(t: Translation, node: Node) -> Views:
    """Pass a value through dropout, which drops nothing in evaluation mode.

    Raises UnsupportedArguments where the network drops in evaluation mode, too.
    """
    if argument(node, 2) and argument(node, 1):
        raise UnsupportedArguments("training=True, which draws random numbers")
    return rename(t, node)


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
    if node.kind == "mT":
        return view_algebra.transpose(x, rank - 2, rank - 1)
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
    axis = axis_number(integer(argument(node, 1), 0), len(x.shape))
    size = x.shape[axis]
    start = clip(integer(argument(node, 2), 0), size)
    step = integer(argument(node, 4), 1)
    return view_algebra.narrow(x, axis, start, node.output.shape[axis], step)


def clip(position: int, size: int) -> int:
    """Return a position of an axis, counted from its end where negative."""
    return max(0, min(size, position + size if position < 0 else position))


def narrowed(t: Translation, node: Node) -> Views:
    """Translate narrow(x, axis, start, length)."""
    x = t.view_of(node.args[0])
    axis, start, length = (integer(item) for item in node.args[1:4])
    axis = axis_number(axis, len(x.shape))
    return view_algebra.narrow(x, axis, start % x.shape[axis], length)


def selected(t: Translation, node: Node) -> Views:
    """Translate select(x, axis, index)."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(node.args[1]), len(x.shape))
    return view_algebra.select(x, axis, integer(node.args[2]) % x.shape[axis])


def parts(t: Translation, node: Node) -> Views:
    """Translate chunk, split and split_with_sizes: one view for each output."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(argument(node, 2), 0), len(x.shape))
    views: list[TensorView] = []
    start = 0
    for spec in node.outputs:
        views.append(view_algebra.narrow(x, axis, start, spec.shape[axis]))
        start += spec.shape[axis]
    return tuple(views)


def unbound(t: Translation, node: Node) -> Views:
    """Translate unbind: one view for each position of an axis."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(argument(node, 1), 0), len(x.shape))
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
    views = [view for view in map(t.view_of, items) if view.elements > 0]
    shape = node.output.shape
    axis = axis_number(integer(argument(node, 1), 0), len(shape))
    if node.kind == "hstack":
        axis = min(1, len(shape) - 1)
    if node.kind == "stack":
        views = [view_algebra.insert_axis(view, axis) for view in views]
    target = whole_view(TensorBuffer(node.name, "arena", shape))
    start = 0
    for number, view in enumerate(views):
        place = view_algebra.narrow(target, axis, start, view.shape[axis])
        t.call(node, "Copy", (view,), view.shape, write=place, suffix=f"_part{number}")
        start += view.shape[axis]
    return target


def constant_number(t: Translation, item: Argument) -> Argument:
    """Return the number that a constant without dimensions holds, everything else as it is."""
    values = t.constants.get(item.name) if isinstance(item, ValueRef) else None
    return float(values) if values is not None and not values.shape else item


def filled(t: Translation, node: Node) -> Views:
    """Translate zeros_like, ones_like, full_like, and a number that is written into a part."""
    known = {"zeros_like": 0.0, "zero": 0.0, "ones_like": 1.0}
    value = constant_number(t, known.get(node.kind, argument(node, 1)))
    if not isinstance(value, int | float):
        raise UnsupportedArguments(f"{value} where a number is read")
    return t.call(node, "Fill", (), node.output.shape, {"number": float(value)})


RULES: dict[str, Rule] = dict.fromkeys(
    ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), dropped
)
RULES |= dict.fromkeys(
    (
        *(
            "contiguous",
            "alias",
            "detach",
            "identity",
            "clone",
            "to",
            "_to_copy",
            "type_as",
            "lift_fresh_copy",
        ),
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
    **dict.fromkeys(
        ("permute", "transpose", "t", "numpy_T", "mT", "swapaxes", "movedim"), permuted
    ),
    "slice": sliced,
    "select": selected,
    "narrow": narrowed,
    "chunk": parts,
    "tensor_split": parts,
    "split": parts,
    "split_with_sizes": parts,
    "unbind": unbound,
    "getitem": picked,
    "cat": joined,
    "concat": joined,
    "hstack": joined,
    "stack": joined,
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "fill", "zero"), filled),
}
