"""Kernels to measure: drawn from a zoo of networks, then varied, so that search finds answers
between them.

`prior.csv` holds the operators of some fifty networks (scripts/predictors). A draw takes one of
them, in most cases changes its channels and map size, adds an epilogue that the backend fuses, and
uses the layout in which the backend would run it.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files

from nnstretch.kernel import FusionRules, Kernel
from nnstretch.profile.sampling.epilogues import with_epilogue
from nnstretch.profile.sampling.kernel_spec import (
    CONVOLUTIONS,
    KernelSpec,
    Shape,
    spec_of_kernel,
)
from nnstretch.profile.sampling.perturbation import NEAR, perturb, perturb_map
from nnstretch.structure.layout_conversion import reorder_kernel

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
CHANGED = 0.7
"""Share of draws that are no operator of the zoo."""


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
