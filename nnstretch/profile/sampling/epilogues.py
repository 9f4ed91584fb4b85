"""What follows a drawn kernel in a network, and the layout in which it then runs."""

from __future__ import annotations

import random
from dataclasses import replace

from nnstretch.kernel import PADDED, FusionRules, Kernel
from nnstretch.profile.sampling.kernel_spec import CONVOLUTIONS, KernelSpec, kernel_of_spec
from nnstretch.structure.layout_conversion import BLOCKED, kernel_layouts


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
