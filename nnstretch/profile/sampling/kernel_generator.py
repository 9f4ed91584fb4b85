"""Kernels to measure: drawn from a zoo of networks, then varied, so that search finds answers
between them.

`prior.csv` holds the operators of some fifty networks (prior.py). A draw takes one,
mostly changes its channels and its map, gives it an epilogue that the backend fuses, and the layout
the backend would run it in.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from math import prod

from nnstretch.kernel import PADDED, FusionRules, Kernel
from nnstretch.profile.sampling.kernel_spec import (
    CONVOLUTIONS,
    KernelSpec,
    Shape,
    kernel_of_spec,
    spec_of_kernel,
)
from nnstretch.structure.kernel_operators import TRANSPOSED_KIND
from nnstretch.structure.layout_conversion import BLOCKED, kernel_layouts, reorder_kernel

SHARES = {
    "conv": 40,
    "dwconv": 14,
    "gconv": 7,
    "linear": 3,
    "add": 4,
    "mul": 5,
    "concat": 5,
    "activation": 6,
    "pool": 4,
    "gap": 4,
    "norm": 3,
    "reshape": 4,
    "reorder": 6,
    "softmax": 0.5,
    "matmul": 0.5,
}
"""Of every hundred draws, by kind.

About what each adds to the latency of networks, and how hard it is to tell.
"""
MOST_MACS = 1.2e9
MOST_ELEMENTS = 8e6
MOST_WEIGHTS = 1.1e8
"""The first linear layer of a VGG."""
STEMS = 0.08
"""Share of convolutions that read an image.

Every network has one, and it is among its most expensive kernels.
"""
HEADS = 0.05
"""Share of dense convolutions with few or odd outputs, as the ends of detectors and segmenters."""
HEAD_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 18, 19, 21, 27, 33, 51, 75, 84, 85, 91, 150, 255)
STRETCHED = 0.06
"""Share of convolutions over maps much wider than high, as of lines of text and spectra."""
TOKEN_KINDS = frozenset({"linear", "add", "mul", "activation", "norm", "softmax"})
NEAR = 1.25
"""Most that a neighbour's channels differ by."""
CHANGED = 0.7
"""Share of draws that are no operator of the zoo."""
GROUP_WIDTHS = (2, 4, 8, 16, 24, 32, 40, 48, 64)
SIDES = (
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    13,
    14,
    16,
    19,
    20,
    24,
    28,
    32,
    38,
    40,
    48,
    56,
    64,
    75,
    80,
    96,
    112,
    128,
)


@dataclass(frozen=True)
class KernelPrior:
    """Operators of a zoo, by kind."""

    recipes: dict[str, tuple[KernelSpec, ...]]

    @cached_property
    def stems(self) -> tuple[KernelSpec, ...]:
        """Return convolutions over images."""
        return tuple(r for r in self.recipes["conv"] if r.shapes_in[0][1] <= 4)


def load_prior() -> KernelPrior:
    """Load the shapes of kernels in known networks."""
    specs: dict[str, list[KernelSpec]] = {}
    for row in csv.DictReader(
        files("nnstretch.profile").joinpath("prior.csv").read_text(encoding="utf-8").splitlines()
    ):
        shapes = tuple(shape(text) for text in row["shapes_in"].split())
        numbers = {name: int(row[name]) for name in ("kernel", "stride", "groups")}
        specs.setdefault(row["kind"], []).append(
            KernelSpec(row["kind"], row["op"], shapes, shape(row["shape_out"]), **numbers)
        )
    return KernelPrior({kind: tuple(recipes) for kind, recipes in specs.items()})


def shape(text: str) -> Shape:
    """Parse a shape such as `1x64x56x56`."""
    return tuple(int(part) for part in text.split("x"))


def generate_kernels(prior: KernelPrior, rules: FusionRules, seed: int) -> Iterator[Kernel]:
    """Yield kernels without end, each once; the same seed draws the same kernels."""
    rng = random.Random(seed)
    kinds = [
        kind for kind in SHARES if kind in prior.recipes or (kind == "reorder" and rules.blocked)
    ]
    seen: set[tuple[object, ...]] = set()
    while True:
        kind = rng.choices(kinds, [SHARES[k] for k in kinds])[0]
        kernel = draw_kernel(prior, kind, rules, rng, f"{kind}{len(seen)}")
        if kernel is not None and kernel.key not in seen:
            seen.add(kernel.key)
            yield kernel


def perturb_kernel(
    kernel: Kernel, rules: FusionRules, rng: random.Random, name: str
) -> Kernel | None:
    """Return a kernel like this one; None where the change makes none."""
    if kernel.kind == "reorder":
        return resize_spec(
            reorder_kernel(name, perturb_map(kernel.shape_out, rng), kernel.op.removeprefix("to_"))
        )
    recipe = perturb(spec_of_kernel(kernel), rng, 1 / NEAR, NEAR)
    return None if recipe is None else resize_spec(with_epilogue(recipe, rules, rng, name))


def draw_kernel(
    prior: KernelPrior, kind: str, rules: FusionRules, rng: random.Random, name: str
) -> Kernel | None:
    """Draw a kernel near one of the prior, None when the draw is too large."""
    if kind == "reorder":
        return resize_spec(
            reorder_kernel(
                name,
                perturb_map(rng.choice(prior.recipes["conv"]).shape_out, rng),
                rng.choice(["blocked", "plain"]),
            )
        )
    stem = kind == "conv" and rng.random() < STEMS
    recipe = rng.choice(prior.stems if stem else prior.recipes[kind])
    changed = perturb(recipe, rng, 0.4, 1.7) if rng.random() < CHANGED else recipe
    if changed is not None and kind in CONVOLUTIONS:
        changed = as_head_or_stretched(changed, rng)
    return None if changed is None else resize_spec(with_epilogue(changed, rules, rng, name))


def as_head_or_stretched(recipe: KernelSpec, rng: random.Random) -> KernelSpec:
    """Return a convolution that now and then has odd outputs, or a map wider than high."""
    (batch, cin, height, width), out = recipe.shapes_in[0], recipe.shape_out
    if recipe.kind == "conv" and cin > 4 and rng.random() < HEADS:
        return replace(recipe, shape_out=(batch, rng.choice(HEAD_WIDTHS), *out[2:]))
    if rng.random() < STRETCHED and height == width:
        times = rng.choice((2, 3, 4, 8))
        height = max(recipe.kernel // 2 + 1, height // times)
        width = width * times
        sides = (-(-height // recipe.stride), -(-width // recipe.stride))
        shapes_in = ((batch, cin, height, width),)
        return replace(recipe, shapes_in=shapes_in, shape_out=(batch, out[1], *sides))
    return recipe


def resize_spec(kernel: Kernel) -> Kernel | None:
    """Return the kernel when its memory fits, else None."""
    fits = (
        kernel.macs <= MOST_MACS and kernel.read_elements + kernel.write_elements <= MOST_ELEMENTS
    )
    return kernel if fits and kernel.weight_elements <= MOST_WEIGHTS else None


def with_epilogue(recipe: KernelSpec, rules: FusionRules, rng: random.Random, name: str) -> Kernel:
    """Return the kernel with a random fusable epilogue and the layout that follows."""
    epilogue = choose_epilogue(recipe, rules, rng)
    kernel = kernel_of_spec(recipe, name, epilogue)
    if (
        rules.copies_padding
        and can_pad(recipe)
        and rng.random() < (0.6 if recipe.kind == "pool" else 0.85)
    ):
        return replace(kernel, layout=PADDED)
    if rules.blocked is None:
        return kernel
    layout = BLOCKED if rng.random() < 0.75 else "plain"
    _, writes = kernel_layouts(kernel, [layout] * len(recipe.shapes_in), rules.blocked)
    return (
        replace(kernel, layout=writes)
        if writes == BLOCKED and len(recipe.shapes_in[0]) == 4
        else kernel
    )


def can_pad(recipe: KernelSpec) -> bool:
    """Return whether a strided window reaches over the map's edge on one end only, as PyTorch's
    padding makes it.
    """
    if (
        recipe.kind not in (*CONVOLUTIONS, "pool")
        or recipe.stride < 2
        or len(recipe.shape_out) != 4
        or recipe.kernel < 2
    ):
        return False
    needed = (recipe.shape_out[-1] - 1) * recipe.stride + recipe.kernel - recipe.shapes_in[0][-1]
    return needed > 0 and needed % 2 == 1


def choose_epilogue(recipe: KernelSpec, rules: FusionRules, rng: random.Random) -> tuple[str, ...]:
    """Return nothing, an activation, a residual sum, or both, of what the backend fuses."""
    follows = sorted(
        op
        for kind, op in rules.pairs
        if kind == recipe.kind and op not in ("batch_norm", "add", "scale", "shift")
    )
    common = [op for op in follows if op in ("relu", "relu6", "hardtanh", "hardswish", "silu")]
    taken: tuple[str, ...] = ()
    if rules.fuses(recipe.kind, "add") and recipe.kind in CONVOLUTIONS and rng.random() < 0.2:
        taken = ("add",)
        common = [op for op in common if op in ("relu", "relu6")]
        follows = common
    if follows and rng.random() < 0.65:
        taken += (rng.choice(common if common and rng.random() < 0.85 else follows),)
    return taken


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
    for size in sorted({size for shape in shapes for size in shape[1:]}):
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
        if (
            len({s[2:] for s in shapes}) > 1
            or len({s[2:] for s in recipe.shapes_in}) > 1
            or recipe.shape_out[1] == recipe.shapes_in[0][1]
        ):
            return recipe
        return replace(
            recipe,
            shapes_in=shapes,
            shape_out=(shapes[0][0], sum(s[1] for s in shapes), *shapes[0][2:]),
        )
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
