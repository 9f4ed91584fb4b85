"""A network that is ready to be trained.

What it starts from or inherits, and how its branches are kept apart.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from nnstretch.errors import BadInput
from nnstretch.plan import Plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork, stretch
from nnstretch.stretch.weights.initialization import initialize_weights, zero_residuals
from nnstretch.train.checkpoints import load_weights
from nnstretch.train.data.datamodule import open_dataset, prepare_images
from nnstretch.train.data.sampling_order import shuffle_indices
from nnstretch.train.hardware import process_rank
from nnstretch.train.recipe import Recipe

CALIBRATION_BATCH_IMAGES = 64
DROPOUT_OPERATORS = frozenset({"dropout", "feature_dropout", "alpha_dropout"})
M = TypeVar("M", bound=nn.Module)


def branched_network(
    original: nn.Module, plan: Plan, recipe: Recipe, weights: str | Path | None = None
) -> StretchedNetwork:
    """Build the plan's network as `recipe.branched` begins it.

    `original`, with the weights to inherit, stays as it is.

    A file of the network's own `weights` takes the place of the beginning. `original` then only
    says which of its channels each channel stands for, so it must be the one that was inherited
    from.
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
    """Return modules of `original` that draw random numbers in training and have no operator in the
    captured graph (stochastic depth).

    A graph is captured in evaluation mode, where drop-out is an operator that waits, and stochastic
    depth is nothing at all. Found by running a copy of the original once in training mode, on
    zeros: who advances PyTorch's generator, and is no drop-out layer. Where as many operators wait
    as are no layer's, they are drop-out that was called as a function, and nothing is lost.
    """
    nodes = (node for segment in network.lowered.segments for node in segment.original.nodes)
    waiting = sum(node.op in DROPOUT_OPERATORS and float(node.args[1]) > 0 for node in nodes)  # type: ignore[arg-type]
    drawing = random_modules(copy.deepcopy(original), torch.zeros(2, *network.plan.input_shape[1:]))
    others = [name for name, module in drawing if not isinstance(module, _DropoutNd)]
    return tuple(dict.fromkeys(others)) if waiting < len(drawing) else ()


def random_modules(module: nn.Module, images: Tensor) -> tuple[tuple[str, nn.Module], ...]:
    """Return the innermost modules that draw random numbers in training mode, in the order in which
    they end. Changes statistics of `module`.
    """
    drawing: list[tuple[str, nn.Module]] = []
    before: dict[str, Tensor] = {}

    def begun(name: str, *_: object) -> None:
        before[name] = torch.get_rng_state()

    def ended(name: str, inner: nn.Module, *_: object) -> None:
        if not torch.equal(before[name], torch.get_rng_state()) and not any(
            later.startswith(f"{name}.") for later, _ in drawing
        ):
            drawing.append((name, inner))

    for name, inner in module.named_modules():
        if name:
            inner.register_forward_pre_hook(partial(begun, name))
            inner.register_forward_hook(partial(ended, name))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module.train()(images)
        except (
            Exception
        ):  # a network that cannot be trained on zeros is refused elsewhere, and by name
            return ()
    return tuple(drawing)


@contextmanager
def fork_seeded_rng(recipe: Recipe) -> Iterator[None]:
    """Start layers that are made within by `recipe.seed`.

    Random numbers outside go on as they were.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        yield


def initialize_network(module: M, recipe: Recipe) -> M:
    """Load the weights that `recipe.start` begins with, drawn by `recipe.seed`, into `module`.

    Raises BadInput for an original without a residual path where its last scale should be 0;
    branches may well have none.
    """
    if recipe.start != "own":
        initialize_weights(module, recipe.seed)
    if recipe.start == "zero_residual":
        changed = zero_residuals(
            module, torch.zeros(1, 3, recipe.data.image_px, recipe.data.image_px)
        )
        if not changed and not isinstance(module, StretchedNetwork):
            raise BadInput(
                f"start is zero_residual, {recipe.model}, no residual path of it ends in a batch or"
                " group norm, take he"
            )
    return module


def has_pretrained_weights(model: str) -> bool:
    """Return whether a model comes with weights by its own word.

    A file, torchvision's `weights=`, timm's `pretrained=true` or `checkpoint_path=`.
    """
    source, _, query = model.partition("?")
    asked = dict(parse_qsl(query))
    wanted = (asked.get(key, "").lower() for key in ("weights", "pretrained", "checkpoint_path"))
    return source.endswith((".onnx", ".pt2")) or any(
        word not in ("false", "none", "null", "no", "off", "0", "") for word in wanted
    )


def has_pretrained_classifier(model: str) -> bool:
    """Return whether its scores of classes are trained, too.

    Timm leaves out a head of another size, and draws one.
    """
    return (
        has_pretrained_weights(model)
        and not {"num_classes", "in_chans"} & dict(parse_qsl(model.partition("?")[2])).keys()
    )


def refuse_lost_weights(recipe: Recipe) -> None:
    """Refuse a `recipe.start` that would draw over what the model brings. Raises BadInput."""
    if recipe.start != "own" and has_pretrained_weights(recipe.model):
        raise BadInput(
            f"start is {recipe.start}, {recipe.model} brings its own weights, which would be lost;"
            " take own"
        )


def calibration_batches(recipe: Recipe) -> list[Tensor]:
    """Return training images as the network sees them when it is judged, chosen by the seed; no
    labels.
    """
    dataset = open_dataset(recipe.data)
    count = min(recipe.branched.calibration_images, len(dataset.train))
    chosen = shuffle_indices(len(dataset.train), dataset.train.chunks, recipe.seed, 0)[
        :count
    ].tolist()
    images, _ = prepare_images(
        dataset, dataset.train, chosen, recipe.data, aloud=process_rank(recipe.trainer) == 0
    )
    return list(torch.split(images, CALIBRATION_BATCH_IMAGES))
