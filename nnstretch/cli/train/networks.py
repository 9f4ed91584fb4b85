"""Networks to train: the original or a branched one, with weights, and their teacher."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.errors import BadInput, name_first

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.stretch.weights.branched_module import StretchedNetwork
    from nnstretch.train.recipe import Recipe


def networks(
    recipe: Recipe,
    plan_file: str | None,
    weights: str | None,
    teacher: str | None = None,
    aloud: bool = False,
) -> tuple[nn.Module, nn.Module | None]:
    """Return the network to train, and its teacher where the recipe distils.

    The original, or any network with --teacher's weights.

    Where asked (`aloud`) says on standard error what a user may not expect.

    Raises BadInput when the recipe asks for a teacher and none is given.
    """
    if plan_file is not None:
        return build_branched(recipe, plan_file, weights, teacher, aloud)
    module = started_or_loaded(recipe, weights, aloud)
    if not recipe.loss.has_teacher:
        return module, None
    if teacher is None:
        raise BadInput(
            f"{teacher_text(recipe)}, no teacher, give --teacher CKPT, or --plan and --weights of"
            " the original"
        )
    return module, load_weighted(recipe.model, teacher)


def started_or_loaded(recipe: Recipe, weights: str | None, aloud: bool = True) -> nn.Module:
    """Return the recipe's network with the weights of a file, or with those that it starts from.

    Where asked (`aloud`) says on standard error that the start draws over what the model brings.
    """
    from nnstretch.capture import load_model
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights
    from nnstretch.train.branched_start import initialize_network, refuse_lost_weights

    if weights is None:
        refuse_lost_weights(recipe)
    module = load_model(recipe.model, seed_of_weights(weights, recipe.seed))
    if weights is not None:
        load_weights(module, weights)
        return module
    if (
        aloud
        and recipe.start != "own"
        and ".py:" in recipe.model
        and (same := same_kernels(module, load_model(recipe.model, recipe.seed + 1)))
    ):
        tell(
            recipe,
            f"start {recipe.start} draws over {same} kernels that {recipe.model} brings, start own"
            " keeps them",
        )
    return initialize_network(module, recipe)


def same_kernels(first: nn.Module, second: nn.Module) -> int:
    """Count the kernels that two networks of other seeds share; constants do not count."""
    pairs = zip(first.parameters(), second.parameters(), strict=False)
    return sum(
        a.ndim > 1 and a.shape == b.shape and bool((a == b).all()) and float(a.detach().std()) > 0
        for a, b in pairs
    )


def tell(recipe: Recipe, what: str) -> None:
    """Print from the first of several processes only."""
    from nnstretch.train.hardware import process_rank

    if process_rank(recipe.trainer) == 0:
        print(f"nnstretch: {what}", file=sys.stderr)


def teacher_text(recipe: Recipe) -> str:
    """Return which settings ask for a teacher."""
    return f"loss.distill is {recipe.loss.distill} and loss.features {recipe.loss.features}"


def load_weighted(model: str, weights: str) -> nn.Module:
    """Build a model and load its weights."""
    from nnstretch.capture import load_model
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights

    module = load_model(model, seed_of_weights(weights))
    load_weights(module, weights)
    return module


def build_branched(
    recipe: Recipe, plan_file: str, weights: str | None, teacher: str | None, aloud: bool
) -> tuple[nn.Module, nn.Module | None]:
    """Build the branched network; --weights may be the original's, which are inherited, or its own.

    --teacher is always the original's.

    An original that comes trained needs neither.

    Raises BadInput when weights are given that would not be used.
    """
    from nnstretch.capture import load_model
    from nnstretch.stretch import read_plan
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights
    from nnstretch.train.branched_start import branched_network

    plan = read_plan(Path(plan_file))
    # What it refuses is said before the slow work.
    teaches = None if teacher is None else load_weighted(recipe.model, teacher)
    original = load_model(recipe.model, seed_of_weights(weights))
    inherits = weights is not None and fits(original, weights)
    own_weights = weights if not inherits else None
    if (
        inherits
        and recipe.branched.inherit == "none"
        and (teacher is not None or not recipe.loss.has_teacher)
    ):
        raise BadInput(
            f"--weights {weights} would not be used, branched.inherit is none, set it to weights or"
            " rescaled, or leave them out"
        )
    if own_weights is not None and teacher is not None:
        # Which of its channels are compared follows from its weights.
        load_weights(original, teacher)
    elif inherits or (weights is None and recipe.branched.inherit != "none"):
        original = started_or_loaded(recipe, weights, aloud)
    if recipe.loss.has_teacher and teacher is None and not inherits:
        require_trained_model(recipe)
    module = branched_network(original, plan, recipe, own_weights)
    if aloud:
        tell_other_size(recipe, plan_file, plan.input_shape)
        tell_unexpected(recipe, original, module, weights)
    if not recipe.loss.has_teacher:
        return module, None
    return module, original if teaches is None else teaches


def require_trained_model(recipe: Recipe) -> None:
    """Require a model that comes trained, as the loss needs a teacher. Raises BadInput."""
    from nnstretch.train.branched_start import has_pretrained_classifier, has_pretrained_weights

    teaches = has_pretrained_classifier if recipe.loss.distill else has_pretrained_weights
    if not teaches(recipe.model):
        raise BadInput(
            f"{teacher_text(recipe)}, no teacher, give --weights of the original {recipe.model}, or"
            " --teacher"
        )


def tell_other_size(recipe: Recipe, plan_file: str, shape: tuple[int, ...]) -> None:
    """Print that images have another size than that at which the plan was searched."""
    px = recipe.data.validation_px
    if shape[2:] != (px, px):
        tell(
            recipe,
            f"images are {px} px, {plan_file} is of {'x'.join(map(str, shape))}: that is what its"
            " latency and what `export` writes take",
        )


def tell_unexpected(
    recipe: Recipe, original: nn.Module, module: StretchedNetwork, weights: str | None
) -> None:
    """Print what a user would not expect of this training."""
    from nnstretch.train.branched_start import uncaptured_random_modules

    if weights is None and recipe.branched.inherit != "none":
        tell(recipe, f"no --weights, branches inherit the weights that {recipe.model} starts with")
    if lost := uncaptured_random_modules(original, module):
        tell(
            recipe,
            f"{name_first(lost)} of {recipe.model} act in training only and are not in the branched"
            " network",
        )
    frozen = [name for name, weight in original.named_parameters() if not weight.requires_grad]
    if frozen and recipe.branched.inherit != "none":
        tell(
            recipe,
            f"{name_first(frozen)} of {recipe.model} take no gradient there, in the branched"
            " network all weights are trained",
        )


def fits(module: nn.Module, weights: str) -> bool:
    """Return whether every weight of a file has its place in the module."""
    from nnstretch.stretch.weights.weights_file import first_mismatch, read_tensors

    return first_mismatch(module, read_tensors(Path(weights))[0]) is None
