"""A network that is ready to be trained: what it starts from or inherits, and how its branches are kept apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from nnstretch.errors import BadInput
from nnstretch.plan import Plan
from nnstretch.stretch.module import StretchedNetwork, stretch
from nnstretch.stretch.starting import draw, zero_residuals
from nnstretch.train.data.loading import open_data, prepared
from nnstretch.train.data.order import order_of
from nnstretch.train.recipe import Recipe

CALIBRATION_BATCH = 64
M = TypeVar("M", bound=nn.Module)


def branched_network(original: nn.Module, plan: Plan, recipe: Recipe) -> StretchedNetwork:
    """The plan's network as `recipe.branched` begins it; `original`, with the weights to inherit, stays as it is."""
    settings = recipe.branched
    with seeded(recipe):
        network = stretch(copy.deepcopy(original), plan, inherit=settings.inherit != "none")
    if settings.inherit == "none":
        started(network, recipe)
    if settings.inherit == "rescaled":
        from nnstretch.stretch.rescale import rescale

        rescale(network, original, calibration_batches(recipe))
    network.set_branch_drop(settings.drop)
    return network


@contextmanager
def seeded(recipe: Recipe) -> Iterator[None]:
    """Layers that are made within start by `recipe.seed`; random numbers outside go on as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        yield


def started(module: M, recipe: Recipe) -> M:
    """`module` with the weights that `recipe.start` begins with, drawn by `recipe.seed`; in place.

    Raises BadInput for an original without a residual path where its last scale should be 0; branches may well have none.
    """
    if recipe.start != "own":
        draw(module, recipe.seed)
    if recipe.start == "zero_residual":
        found = zero_residuals(module, torch.zeros(1, 3, recipe.data.image_px, recipe.data.image_px))
        if not found and not isinstance(module, StretchedNetwork):
            raise BadInput(f"start is zero_residual, {recipe.model}, no residual path of it ends in a batch or group norm, take he")
    return module


def refuse_lost_weights(recipe: Recipe) -> None:
    """Raises BadInput where `recipe.start` would draw over what the model's file brings."""
    if recipe.start != "own" and recipe.model.endswith((".onnx", ".pt2")):
        raise BadInput(f"start is {recipe.start}, {recipe.model} brings its own weights, which would be lost; take own")


def calibration_batches(recipe: Recipe) -> list[Tensor]:
    """Training images as the network sees them when it is judged, chosen by the seed; no labels."""
    dataset = open_data(recipe.data)
    count = min(recipe.branched.calibration_images, len(dataset.train))
    chosen = order_of(len(dataset.train), dataset.train.chunks, recipe.seed, 0)[:count].tolist()
    images, _ = prepared(dataset, dataset.train, chosen, recipe.data)
    return list(torch.split(images, CALIBRATION_BATCH))
