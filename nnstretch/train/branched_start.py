"""Starting weights of a network, drawn, inherited or loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from nnstretch.errors import BadInput
from nnstretch.files.model_text import parse_model_spec
from nnstretch.plan import Plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork, stretch
from nnstretch.stretch.weights.initialization import initialize_weights, zero_residuals
from nnstretch.stretch.weights.weights_file import load_weights
from nnstretch.train.data.batches import prepare_images
from nnstretch.train.data.catalog import open_dataset
from nnstretch.train.data.sampling_order import shuffle_indices
from nnstretch.train.hardware import process_rank
from nnstretch.train.recipe import Recipe

CALIBRATION_BATCH_IMAGES = 64
DROPOUT_OPERATORS = frozenset({"dropout", "feature_dropout", "alpha_dropout"})
FALSE_WORDS = frozenset({"false", "none", "null", "no", "off", "0", ""})
M = TypeVar("M", bound=nn.Module)


def branched_network(
    original: nn.Module, plan: Plan, recipe: Recipe, weights: str | Path | None = None
) -> StretchedNetwork:
    """Build the plan's network, with weights as `recipe.branched` says or from a file.

    `original` is not changed. Its weights decide which original channel each branch channel
    replaces, so with a file of `weights` it must be the network that these were inherited from.
    """
    settings = recipe.branched
    with fork_seeded_rng(recipe):
        network = stretch(copy.deepcopy(original), plan, inherit=settings.inherit != "none")
    if weights is not None:
        load_weights(network, weights)
    elif settings.inherit == "none":
        initialize_network(network, recipe)
    elif settings.inherit == "rescaled":
        from nnstretch.stretch.weights.reconstruction import reconstruct

        reconstruct(network, original, calibration_batches(recipe))
    network.set_branch_drop(settings.drop)
    return network


def uncaptured_random_modules(original: nn.Module, network: StretchedNetwork) -> tuple[str, ...]:
    """Return modules that draw random numbers in training, which capturing lost (stochastic depth).

    A graph is captured in evaluation mode, where drop-out remains as an operator of the module that
    calls it, and stochastic depth vanishes.
    """
    captured: set[str] = set()
    for segment in network.lowered.segments:
        nodes = segment.original.nodes
        captured |= {node.module for node in nodes if node.op in DROPOUT_OPERATORS}
    images = torch.zeros(2, *network.plan.input_shape[1:])
    drawing = random_modules(copy.deepcopy(original), images)
    return tuple(dict.fromkeys(name for name in drawing if name not in captured))


def random_modules(module: nn.Module, images: Tensor) -> tuple[str, ...]:
    """Return the innermost modules that advance PyTorch's generator in training, as they end.

    Changes statistics of `module`.
    """
    drawing: list[str] = []
    before: dict[str, Tensor] = {}

    def note_state(name: str, *_: object) -> None:
        before[name] = torch.get_rng_state()

    def compare_state(name: str, *_: object) -> None:
        is_innermost = not any(drawn.startswith(f"{name}.") for drawn in drawing)
        if is_innermost and not torch.equal(before[name], torch.get_rng_state()):
            drawing.append(name)

    for name, inner in module.named_modules():
        if name:
            inner.register_forward_pre_hook(partial(note_state, name))
            inner.register_forward_hook(partial(compare_state, name))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module.train()(images)
        # A network that cannot be trained on zeros is refused elsewhere, and by name.
        except Exception:
            return ()
    return tuple(drawing)


@contextmanager
def fork_seeded_rng(recipe: Recipe) -> Iterator[None]:
    """Draw the weights of layers made within by `recipe.seed`; the generator is restored after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        yield


def initialize_network(module: M, recipe: Recipe) -> M:
    """Draw the weights that `recipe.start` begins with, by `recipe.seed`, into `module`.

    Raises BadInput for zero_residual where an original, unbranched network has no residual path.
    """
    if recipe.start != "own":
        initialize_weights(module, recipe.seed)
    if recipe.start == "zero_residual":
        side = recipe.data.image_px
        changed = zero_residuals(module, torch.zeros(1, 3, side, side))
        if not changed and not isinstance(module, StretchedNetwork):
            raise BadInput(
                f"start is zero_residual, {recipe.model}, no residual path of it ends in a batch or"
                " group norm, take he"
            )
    return module


def has_pretrained_weights(model: str) -> bool:
    """Return whether a model is a file, or its options (torchvision's, timm's) ask for weights."""
    spec = parse_model_spec(model)
    options = dict(spec.query)
    values = [options.get(key, "").lower() for key in ("weights", "pretrained", "checkpoint_path")]
    return spec.source.endswith((".onnx", ".pt2")) or any(
        value not in FALSE_WORDS for value in values
    )


def has_pretrained_classifier(model: str) -> bool:
    """Return whether the classifier's weights are trained, too; timm draws one of another size."""
    options = dict(parse_model_spec(model).query)
    return has_pretrained_weights(model) and not options.keys() & {"num_classes", "in_chans"}


def refuse_lost_weights(recipe: Recipe) -> None:
    """Refuse a `recipe.start` that would overwrite the model's own weights. Raises BadInput."""
    if recipe.start != "own" and has_pretrained_weights(recipe.model):
        raise BadInput(
            f"start is {recipe.start}, {recipe.model} brings its own weights, which would be lost;"
            " take own"
        )


def calibration_batches(recipe: Recipe) -> list[Tensor]:
    """Return training images chosen by the seed, prepared as in validation, in batches."""
    dataset = open_dataset(recipe.data)
    count = min(recipe.branched.calibration_images, len(dataset.train))
    order = shuffle_indices(len(dataset.train), dataset.train.chunks, recipe.seed, 0)
    indices = order[:count].tolist()
    aloud = process_rank(recipe.trainer) == 0
    images, _ = prepare_images(dataset, dataset.train, indices, recipe.data, aloud)
    return list(torch.split(images, CALIBRATION_BATCH_IMAGES))
