"""Shapes of operators that pick, cut, repeat or grow tensors, and integers that say shapes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from nnstretch.bundle.model_files.onnx_file import MAX_SHAPE_NUMBERS
from nnstretch.bundle.model_files.rule_context import (
    Rule,
    RuleContext,
    Shape,
    Shapes,
    broadcast,
    front_axis,
)

GROWING = ("Expand", "Tile", "ConstantOfShape", "Resize", "Upsample", "Pad", "Range", "OneHot")
"""Operators whose output may be any size, whatever their inputs are."""


def shape_of(context: RuleContext) -> Shapes:
    """Return the shape of a shape."""
    sizes = shape_numbers(context)
    return (None if sizes is None else (len(sizes),),)


def shape_numbers(context: RuleContext) -> Shape | None:
    """Return what `Shape` writes."""
    source = context.shape(0)
    if source is None:
        return None
    start, end = context.integer("start", 0), context.integer("end", len(source))
    return source[start:end]


def gather(context: RuleContext) -> Shapes:
    """Return the entries picked along an axis. Raises ValueError for an index out of range."""
    source, picked = context.shape(0), context.shape(1)
    if source is None:
        return (None,)
    axis = context.axis(len(source), 0)
    for index in context.known_numbers(1) or ():
        if not -source[axis] <= index < source[axis]:
            raise ValueError(f"index {index} on an axis of {source[axis]}")
    return (None if picked is None else (*source[:axis], *picked, *source[axis + 1 :]),)


def slices(context: RuleContext) -> Shapes:
    """Return what is cut out; starts and ends beyond the sides mean the sides."""
    source = context.shape(0)
    starts, ends = context.settings("starts", 1), context.settings("ends", 2)
    axes, steps = context.settings("axes", 3), context.settings("steps", 4)
    if source is None or starts is None or ends is None:
        return (None,)
    if (axes is None and context.given(3)) or (steps is None and context.given(4)):
        return (None,)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes")
    sizes = list(source)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        front = front_axis(axis, len(source))
        if step == 0:
            raise ValueError("a step of 0")
        sizes[front] = len(range(source[front])[start:end:step])
    return (tuple(sizes),)


def split(context: RuleContext) -> Shapes:
    """Return the parts of an axis."""
    source, outputs = context.shape(0), len(context.node.outputs)
    if source is None:
        return (None,) * outputs
    axis = context.axis(len(source), 0)
    sizes = context.settings("split", 1)
    if sizes is None and context.given(1):
        return (None,) * outputs
    if sizes is None:
        chunk = -(-source[axis] // outputs)
        sizes = (*((chunk,) * (outputs - 1)), source[axis] - chunk * (outputs - 1))
    if len(sizes) != outputs or min(sizes) < 0 or sum(sizes) != source[axis]:
        raise ValueError(f"an axis of {source[axis]} in parts of {sizes[:16]}")
    return tuple((*source[:axis], size, *source[axis + 1 :]) for size in sizes)


def squeeze(context: RuleContext) -> Shapes:
    """Return a tensor without axes of size 1."""
    source, axes = context.shape(0), context.settings("axes", 1)
    if source is None or (axes is None and context.given(1)):
        return (None,)
    ones = [axis for axis, size in enumerate(source) if size == 1]
    gone = ones if axes is None else [front_axis(axis, len(source)) for axis in axes]
    if any(source[axis] != 1 for axis in gone):
        raise ValueError(f"axes {tuple(gone)} of {source}, they are not of size 1")
    return (tuple(size for axis, size in enumerate(source) if axis not in gone),)


def unsqueeze(context: RuleContext) -> Shapes:
    """Return a tensor with more axes of size 1."""
    source, axes = context.shape(0), context.settings("axes", 1)
    if source is None or axes is None:
        return (None,)
    rank = len(source) + len(axes)
    added = {front_axis(axis, rank) for axis in axes}
    if len(added) != len(axes):
        raise ValueError(f"axes {axes[:16]}, one is there twice")
    sizes = iter(source)
    return (tuple(1 if axis in added else next(sizes) for axis in range(rank)),)


def expand(context: RuleContext) -> Shapes:
    """Return a tensor broadcast to the sizes asked for."""
    source, sizes = context.shape(0), context.known_numbers(1)
    if source is None or sizes is None:
        return (None,)
    if min(sizes, default=0) < 0:
        raise ValueError(f"sizes {sizes[:16]}")
    return (broadcast((source, sizes)),)


def tile(context: RuleContext) -> Shapes:
    """Return a tensor repeated along its axes."""
    source, repeats = context.shape(0), context.known_numbers(1)
    if source is None or repeats is None:
        return (None,)
    if len(repeats) != len(source) or min(repeats, default=0) < 0:
        raise ValueError(f"repeats {repeats[:16]} of {source}")
    return (tuple(size * count for size, count in zip(source, repeats, strict=True)),)


def filled(context: RuleContext) -> Shapes:
    """Return the sizes that the input names."""
    sizes = context.known_numbers(0)
    if sizes is not None and min(sizes, default=0) < 0:
        raise ValueError(f"sizes {sizes[:16]}")
    return (sizes,)


def pad(context: RuleContext) -> Shapes:
    """Return a tensor with numbers added at its sides."""
    source, pads = context.shape(0), context.settings("pads", 1)
    if source is None or pads is None or context.given(3):
        return (None,)
    rank = len(source)
    if len(pads) != 2 * rank:
        raise ValueError(f"{len(pads)} pads of a tensor of {rank} axes")
    sizes = tuple(size + pads[axis] + pads[axis + rank] for axis, size in enumerate(source))
    if min(sizes, default=0) < 0:
        raise ValueError(f"pads {pads[:16]} of {source}")
    return (sizes,)


def resize(context: RuleContext) -> Shapes:
    """Return the sizes asked for; scales are floats, which are not read."""
    source, sizes = context.shape(0), context.known_numbers(3)
    if source is None or sizes is None or context.integers("axes"):
        return (None,)
    if len(sizes) != len(source) or min(sizes, default=1) < 1:
        raise ValueError(f"{source} resized to {sizes[:16]}")
    return (sizes,)


def depth_to_space(context: RuleContext) -> Shapes:
    """Return channels laid out as pixels."""
    source, block = context.shape(0), context.integer("blocksize", 0)
    if source is None:
        return (None,)
    if len(source) != 4 or block < 1 or source[1] % (block * block):
        raise ValueError(f"blocks of {block} in {source}")
    return ((source[0], source[1] // (block * block), source[2] * block, source[3] * block),)


def known_integers(context: RuleContext) -> Shape | None:
    """Return the integers that a node writes where they say a shape and can be known.

    None for more than any shape has: a file may join them with themselves again and again.
    """
    op = context.node.op
    first = context.known_numbers(0)
    if op == "Constant":
        attribute = context.node.attributes.get("value")
        if attribute is not None and attribute.tensor is not None:
            return attribute.tensor.numbers
        values = context.integers("value_ints") or context.integers("value_int") or ()
        return values if 0 < len(values) <= MAX_SHAPE_NUMBERS else None
    if op == "Shape":
        return shape_numbers(context)
    if op in ("Identity", "Cast", "Unsqueeze", "Squeeze"):
        return first
    if op == "Concat" and None not in context.numbers:
        parts = [numbers or () for numbers in context.numbers]
        few = sum(map(len, parts)) <= MAX_SHAPE_NUMBERS
        return tuple(chain.from_iterable(parts)) if few else None
    picked = context.known_numbers(1)
    if op == "Gather" and first is not None and picked is not None:
        return tuple(first[index] for index in picked)
    return None


INDEXING_RULES: Mapping[str, Rule] = {
    "Shape": shape_of,
    "Gather": gather,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Expand": expand,
    "Tile": tile,
    "ConstantOfShape": filled,
    "Pad": pad,
    "Resize": resize,
    "DepthToSpace": depth_to_space,
}
