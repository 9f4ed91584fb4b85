"""Operators that move elements inside a tensor: rolls, repetitions, shuffles."""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.operators.shapes import axis_number, integer, integers
from nnstretch.export.cpp.program import TensorBuffer, whole_view
from nnstretch.export.cpp.translation import Translation, UnsupportedArguments, Views
from nnstretch.graph import Node
from nnstretch.structure.arguments import argument

Rule = Callable[[Translation, Node], Views]


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
        x = view_algebra.flip(x, axis_number(axis, len(x.shape)))
    return x


def repeated(t: Translation, node: Node) -> Views:
    """Translate repeat and tile: an axis that is repeated becomes (repeats, size)."""
    x = t.view_of(node.args[0])
    repeats = integers(node.args[1])
    missing = max(0, len(repeats) - len(x.shape))
    sizes = (1,) * missing + x.shape
    x = t.reshape(x, sizes, node)
    repeats = (1,) * (len(sizes) - len(repeats)) + repeats
    shape: list[int] = []
    for count, size in zip(repeats, sizes, strict=True):
        if count != 1:
            x = view_algebra.insert_axis(x, len(shape))
            shape.append(count)
        shape.append(size)
    return t.reshape(view_algebra.broadcast(x, tuple(shape)), node.output.shape, node)


def interleaved(t: Translation, node: Node) -> Views:
    """Translate repeat_interleave by a number: every position of an axis several times in a row."""
    x = t.view_of(node.args[0])
    count = integer(node.args[1])
    item = argument(node, 2)
    if item is None:
        x, axis = t.reshape(x, (x.elements,), node), 0
    else:
        axis = axis_number(integer(item), len(x.shape))
    x = view_algebra.insert_axis(x, axis + 1)
    shape = (*x.shape[: axis + 1], count, *x.shape[axis + 2 :])
    return t.reshape(view_algebra.broadcast(x, shape), node.output.shape, node)


def pixel_shuffled(t: Translation, node: Node) -> Views:
    """Translate pixel_shuffle and pixel_unshuffle."""
    x = t.view_of(node.args[0])
    factor = integer(node.args[1])
    *_, channels, height, width = x.shape
    batch = x.elements // (channels * height * width)
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


RULES: dict[str, Rule] = {
    "roll": rolled,
    "flip": flipped,
    "repeat": repeated,
    "tile": repeated,
    "repeat_interleave": interleaved,
    "pixel_shuffle": pixel_shuffled,
    "pixel_unshuffle": pixel_shuffled,
    "channel_shuffle": channel_shuffled,
}
