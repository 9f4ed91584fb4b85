"""Kernels near another one: other channels, another map; what must agree goes on to agree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod

from nnstretch.profile.sampling.kernel_spec import CONVOLUTIONS, KernelSpec, Shape
from nnstretch.structure.kernel_operators import TRANSPOSED_KIND

TOKEN_KINDS = frozenset({"linear", "add", "mul", "activation", "norm", "softmax"})
NEAR = 1.25
"""Most that a neighbour's channels differ by."""
GROUP_WIDTHS = (2, 4, 8, 16, 24, 32, 40, 48, 64)
SIDES = (
    *(4, 5, 6, 7, 8, 10, 12, 13, 14, 16, 19, 20, 24, 28, 32),
    *(38, 40, 48, 56, 64, 75, 80, 96, 112, 128),
)


def perturb(recipe: KernelSpec, rng: random.Random, low: float, high: float) -> KernelSpec | None:
    """Return a kernel of other channels and another map; what must agree goes on to agree.

    None where nothing sensible comes out.
    """
    first, out = recipe.shapes_in[0], recipe.shape_out
    if recipe.kind in CONVOLUTIONS:
        return perturb_convolution(recipe, rng, low, high)
    if recipe.kind == "linear" and len(first) == 2:
        cin, cout = (
            round_channels(size * rng.uniform(low, high), rng) for size in (first[1], out[1])
        )
        return replace(recipe, shapes_in=((first[0], cin),), shape_out=(out[0], cout))
    if recipe.kind == TRANSPOSED_KIND:
        return perturb_transposed(recipe, rng, low, high)
    if recipe.kind == "linear" or (len(first) == 3 and recipe.kind in TOKEN_KINDS):
        return perturb_tokens(recipe, rng, low, high)
    if len(first) != 4 or recipe.kind in ("reshape", "matmul", "softmax"):
        return recipe
    return perturb_maps(recipe, rng, low, high)


def perturb_convolution(
    recipe: KernelSpec, rng: random.Random, low: float, high: float
) -> KernelSpec | None:
    """Return a convolution of nearby channels and sides, None when no side is near."""
    (batch, cin, height, width), out = recipe.shapes_in[0], recipe.shape_out
    groups, cout = recipe.groups, out[1]
    if recipe.kind == "dwconv":
        cin = cout = groups = round_channels(cin * rng.uniform(low, high), rng)
    elif recipe.kind == "gconv":
        each = (cin // groups, cout // groups)
        if high > NEAR and rng.random() < 0.5:
            each = (rng.choice(GROUP_WIDTHS),) * 2
            groups = max(2, round(cin / each[0]))
        groups = max(2, round(groups * rng.uniform(low, high)))
        cin, cout = each[0] * groups, each[1] * groups
    else:
        cin = cin if cin <= 4 else round_channels(cin * rng.uniform(low, high), rng)
        cout = round_channels(cout * rng.uniform(low, high), rng)
    side = height if height != width or height <= 2 else perturb_side(height, rng)
    second_side = width if height != width else side
    shrink = [-(-size // recipe.stride) for size in (side, second_side)]
    if side < recipe.kernel // 2 + 1:
        return None
    return replace(
        recipe,
        shapes_in=((batch, cin, side, second_side),),
        shape_out=(batch, cout, *shrink),
        groups=groups,
    )


def perturb_transposed(
    recipe: KernelSpec, rng: random.Random, low: float, high: float
) -> KernelSpec | None:
    """Return a transposed convolution of nearby channels and sides; None where it is grouped."""
    (batch, cin, height, width), out = recipe.shapes_in[0], recipe.shape_out
    if recipe.groups > 1:
        return None
    cin, cout = (round_channels(size * rng.uniform(low, high), rng) for size in (cin, out[1]))
    side, second_side = perturb_side(height, rng), perturb_side(width, rng)
    grown = (side * recipe.stride, second_side * recipe.stride)
    shapes_in = ((batch, cin, side, second_side),)
    return replace(recipe, shapes_in=shapes_in, shape_out=(batch, cout, *grown))


def perturb_tokens(recipe: KernelSpec, rng: random.Random, low: float, high: float) -> KernelSpec:
    """Return an operator on tokens (batch, tokens, channels) with other counts of both.

    What is the same in several operands stays the same.
    """
    sizes: dict[int, int] = {1: 1}
    shapes = (*recipe.shapes_in, recipe.shape_out)
    for size in sorted(set(chain.from_iterable(shape[1:] for shape in shapes))):
        if size > 1:
            sizes[size] = max(2, round(size * rng.uniform(low, high)))
    *shapes_in, out = ((*shape[:1], *(sizes[size] for size in shape[1:])) for shape in shapes)
    return replace(recipe, shapes_in=tuple(shapes_in), shape_out=out)


def perturb_maps(
    recipe: KernelSpec, rng: random.Random, low: float, high: float
) -> KernelSpec | None:
    """Return sums, products, pools or concatenations with one factor for the channels and one side
    for the maps.
    """
    factor, old = rng.uniform(low, high), recipe.shapes_in[0][2]
    side = old if old <= 2 else perturb_side(old, rng)
    if side < recipe.kernel:
        return None

    widths = {
        channels: round_channels(channels * factor, rng)
        for channels in sorted({s[1] for s in (*recipe.shapes_in, recipe.shape_out)})
    }

    def changed(shape: Shape) -> Shape:
        height, width = (max(1, round(size * side / old)) if size > 1 else 1 for size in shape[2:])
        return (shape[0], widths[shape[1]], height, width)

    shapes = tuple(changed(s) for s in recipe.shapes_in)
    if recipe.kind == "concat":
        return joined_channels(recipe, shapes)
    if recipe.kind in ("pool", "gap"):
        out = recipe.shape_out if len(recipe.shape_out) != 4 else changed(recipe.shape_out)
        if len(out) == 2:
            out = (out[0], shapes[0][1])
        height = (
            [-(-size // recipe.stride) if recipe.shape_out[2] > 1 else 1 for size in shapes[0][2:]]
            if len(out) == 4
            else []
        )
        return replace(recipe, shapes_in=shapes, shape_out=(out[0], shapes[0][1], *height))
    top = max(shapes, key=prod)
    return (
        replace(recipe, shapes_in=shapes, shape_out=top) if len(recipe.shape_out) == 4 else recipe
    )


def joined_channels(recipe: KernelSpec, shapes: Sequence[Shape]) -> KernelSpec:
    """Return a concatenation of other maps; unchanged where it joins no channels of equal maps."""
    sides = {shape[2:] for shape in shapes}
    sides_before = {shape[2:] for shape in recipe.shapes_in}
    joins_nothing = recipe.shape_out[1] == recipe.shapes_in[0][1]
    if len(sides) > 1 or len(sides_before) > 1 or joins_nothing:
        return recipe
    batch, _, *side = shapes[0]
    channels = sum(shape[1] for shape in shapes)
    return replace(recipe, shapes_in=tuple(shapes), shape_out=(batch, channels, *side))


def perturb_side(side: int, rng: random.Random) -> int:
    """Draw a side near another, pixels."""
    return rng.choice([s for s in SIDES if 0.45 * side <= s <= 1.6 * side] or [side])


def perturb_map(shape: Shape, rng: random.Random) -> Shape:
    """Draw a map near another."""
    if len(shape) != 4:
        return (1, 64, 28, 28)
    side = perturb_side(shape[2], rng)
    return (shape[0], round_channels(shape[1] * rng.uniform(0.5, 1.5), rng), side, side)


def round_channels(channels: float, rng: random.Random) -> int:
    """Round to multiples of 8 mostly, as networks have them; of 32 and 64 often where they are
    wide.

    Any even number sometimes.
    """
    chance = rng.random()
    if chance < 0.12:
        return max(2, int(channels / 2) * 2)
    if chance < 0.5 and channels >= 48:
        step = 64 if channels >= 96 else 32
        return max(step, int(channels / step + 0.5) * step)
    return (
        max(8, int(channels / 8 + 0.5) * 8)
        if channels >= 12
        else max(4, int(channels / 4 + 0.5) * 4)
    )
