"""Paddings of all modes, windows of a map as columns, parts that are picked or replaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.operators.shapes import axis_number, clip, integer, integers
from nnstretch.export.cpp.operators.windows import pair
from nnstretch.export.cpp.program import TensorBuffer, TensorView, whole_view
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]
MODES = {"reflection_pad": "reflect", "replication_pad": "replicate", "_pad_circular": "circular"}


def padded(t: Translation, node: Node) -> Views:
    """Translate padding by a number, by reflection, by the edge or by the other end."""
    mode = "constant"
    if node.kind == "pad":
        mode = str(argument(node, 2, mode))
    for prefix, name in MODES.items():
        mode = name if node.kind.startswith(prefix) else mode
    value = argument(node, 3 if node.kind == "pad" else 2) if mode == "constant" else None
    widths = integers(node.args[1])
    x = t.view_of(node.args[0])
    margins: list[tuple[int, int]] = [(0, 0)] * len(x.shape)
    for number in range(len(widths) // 2):
        margins[-1 - number] = (widths[2 * number], widths[2 * number + 1])
    cuts = [(0, 0)] * len(margins)  # of the result; where nothing is reflected, of x
    if mode == "reflect":  # what is cut off at one end may be reflected at the other
        cuts = [(min(0, before), min(0, after)) for before, after in margins]
        margins = [(max(0, before), max(0, after)) for before, after in margins]
    x = cut(x, margins)
    sizes = zip(x.shape, margins, strict=True)
    shape = tuple(n + max(0, before) + max(0, after) for n, (before, after) in sizes)
    if x.shape == shape:
        return cut(x, cuts)
    target = whole_view(TensorBuffer(node.name, "arena", shape))
    if mode == "constant":
        fill = {"number": float(value or 0.0)}  # type: ignore[arg-type]
        t.call(node, "Fill", (), target.shape, fill, write=target, suffix="_border")
    place = target
    for axis, (before, _) in enumerate(margins):
        place = view_algebra.narrow(place, axis, max(0, before), x.shape[axis])
    t.call(node, "Copy", (x,), x.shape, write=place, suffix="_inside")
    if mode != "constant":
        copy_borders(t, node, place, margins, mode)
    return cut(target, cuts)


def cut(x: TensorView, margins: list[tuple[int, int]]) -> TensorView:
    """Return a view without what negative margins take off."""
    for axis, (before, after) in enumerate(margins):
        length = x.shape[axis] + min(0, before) + min(0, after)
        x = view_algebra.narrow(x, axis, max(0, -before), length)
    return x


def copy_borders(
    t: Translation,
    node: Node,
    inside: TensorView,
    margins: list[tuple[int, int]],
    mode: str,
) -> None:
    """Fill the border around what lies inside a tensor, axis by axis."""
    for axis in reversed(range(len(margins))):
        before, after = (max(0, width) for width in margins[axis])
        size = inside.shape[axis]
        for side, width in (("before", before), ("after", after)):
            if width == 0:
                continue
            start = -width if side == "before" else size
            place = view_algebra.narrow(inside, axis, start, width)
            source = border_source(inside, axis, width, side == "before", mode)
            suffix = f"_{axis}_{side}"
            t.call(node, "Copy", (source,), place.shape, write=place, suffix=suffix)
        # The next axis copies whole rows, with the borders of this one.
        inside = view_algebra.narrow(inside, axis, -before, before + size + after)


def border_source(
    inside: TensorView, axis: int, width: int, is_before: bool, mode: str
) -> TensorView:
    """Return the elements that a border of some width repeats."""
    size = inside.shape[axis]
    if mode == "reflect":
        start = 1 if is_before else size - 1 - width
        return view_algebra.flip(view_algebra.narrow(inside, axis, start, width), axis)
    if mode == "circular":
        return view_algebra.narrow(inside, axis, size - width if is_before else 0, width)
    if mode == "replicate":
        edge = view_algebra.narrow(inside, axis, 0 if is_before else size - 1, 1)
        shape = tuple(width if i == axis else n for i, n in enumerate(inside.shape))
        return view_algebra.broadcast(edge, shape)
    raise UnsupportedArguments(f"padding of mode {mode}")


def windows_of_axis(t: Translation, node: Node) -> Views:
    """Translate x.unfold(axis, size, step): windows that overlap in memory."""
    x = t.view_of(node.args[0])
    axis = axis_number(integer(node.args[1]), len(x.shape))
    size, step = integer(node.args[2]), integer(node.args[3])
    return view_algebra.windows(x, axis, size, step)


def columns_of_windows(t: Translation, node: Node) -> Views:
    """Translate im2col: for each tap of the window a strided part of the padded maps."""
    kernel, dilation, padding, stride = (
        pair(argument(node, number, default), default)
        for number, default in ((1, 1), (2, 1), (3, 0), (4, 1))
    )
    x = t.view_of(node.args[0])
    if len(x.shape) == 3:
        x = view_algebra.insert_axis(x, 0)
    if any(padding):
        margins = [(0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])]
        x = zero_border(t, node, x, margins)
    batch, channels, height, width = x.shape
    rows = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    columns = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    shape = (batch, channels, kernel[0] * kernel[1], rows, columns)
    target = whole_view(TensorBuffer(node.name, "arena", shape))
    for tap in range(shape[2]):
        top, start = tap // kernel[1] * dilation[0], tap % kernel[1] * dilation[1]
        part = view_algebra.narrow(x, 2, top, rows, stride[0])
        part = view_algebra.narrow(part, 3, start, columns, stride[1])
        place = view_algebra.select(target, 2, tap)
        t.call(node, "Copy", (part,), part.shape, write=place, suffix=f"_tap{tap}")
    return t.reshape(target, node.output.shape, node)


def zero_border(
    t: Translation, node: Node, x: TensorView, margins: list[tuple[int, int]]
) -> TensorView:
    """Return a copy of a view with zeros around it."""
    shape = tuple(n + before + after for n, (before, after) in zip(x.shape, margins, strict=True))
    target = whole_view(TensorBuffer(f"{node.name}_padded", "arena", shape))
    t.call(node, "Fill", (), shape, {"number": 0.0}, write=target, suffix="_border")
    place = target
    for axis, (before, _) in enumerate(margins):
        place = view_algebra.narrow(place, axis, before, x.shape[axis])
    t.call(node, "Copy", (x,), x.shape, write=place, suffix="_inside")
    return target


def indexed(t: Translation, node: Node) -> Views:
    """Translate index and index_select by constant indices along one axis."""
    x = t.view_of(node.args[0])
    axis, item = index_argument(node, len(x.shape))
    if not isinstance(item, ValueRef) or item.name not in t.constants:
        raise UnsupportedArguments("indices that are computed")
    numbers = t.constants[item.name]
    if numbers.dtype == np.bool_:
        if numbers.ndim != 1:
            raise UnsupportedArguments("a mask of several axes")
        numbers = np.flatnonzero(numbers)
    size = x.shape[axis]
    positions = [int(number) % size for number in numbers.reshape(-1)]
    shape = (*x.shape[:axis], len(positions), *x.shape[axis + 1 :])
    target = whole_view(TensorBuffer(node.name, "arena", shape))
    start = 0
    for number, (first, length, step) in enumerate(runs(positions)):
        part = view_algebra.narrow(x, axis, first, length, step)
        place = view_algebra.narrow(target, axis, start, length)
        t.call(node, "Copy", (part,), part.shape, write=place, suffix=f"_part{number}")
        start += length
    return t.reshape(target, node.output.shape, node)


def replaced(t: Translation, node: Node) -> Views:
    """Translate slice_scatter and select_scatter: a copy in which a part is another tensor."""
    x, part = t.view_of(node.args[0]), t.view_of(node.args[1])
    axis = axis_number(integer(argument(node, 2), 0), len(x.shape))
    size, start = x.shape[axis], integer(argument(node, 3), 0)
    if node.kind == "select_scatter":
        start %= size
        part = view_algebra.insert_axis(part, axis)
    elif integer(argument(node, 5), 1) != 1:
        raise UnsupportedArguments("steps over positions")
    start = clip(start, size)
    end = start + part.shape[axis]
    target = whole_view(TensorBuffer(node.name, "arena", x.shape))
    # Only what stays is copied: x itself may be read again.
    before = view_algebra.narrow(x, axis, 0, start)
    after = view_algebra.narrow(x, axis, end, size - end)
    for name, first, piece in (("before", 0, before), ("part", start, part), ("after", end, after)):
        if piece.elements:
            place = view_algebra.narrow(target, axis, first, piece.shape[axis])
            t.call(node, "Copy", (piece,), piece.shape, write=place, suffix=f"_{name}")
    return target


def index_argument(node: Node, rank: int) -> tuple[int, Argument]:
    """Return axis and indices of a node that picks along one axis.

    Raises UnsupportedArguments for several axes.
    """
    if node.kind == "index_select":
        return axis_number(integer(node.args[1]), rank), node.args[2]
    items = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    named = [axis for axis, item in enumerate(items) if item is not None]
    if len(named) != 1:
        raise UnsupportedArguments(f"indices of {len(named)} axes")
    return named[0], items[named[0]]


def runs(positions: list[int]) -> list[tuple[int, int, int]]:
    """Return positions as (first, length, step) of arithmetic runs, from the first on."""
    parts: list[tuple[int, int, int]] = []
    for position in positions:
        if parts:
            first, length, step = parts[-1]
            gap = position - first if length == 1 else step
            if position == first + length * gap:
                parts[-1] = (first, length + 1, gap)
                continue
        parts.append((position, 1, 1))
    return parts


RULES: dict[str, Rule] = {
    "pad": padded,
    "constant_pad_nd": padded,
    **dict.fromkeys(
        (
            *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
            "_pad_circular",
        ),
        padded,
    ),
    "unfold": windows_of_axis,
    "im2col": columns_of_windows,
    "index": indexed,
    "index_select": indexed,
    "slice_scatter": replaced,
    "select_scatter": replaced,
}
