"""A branched network that is ready to be trained: what it inherits, and how its branches are kept apart."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from nnstretch.plan import Plan
from nnstretch.stretch.module import StretchedNetwork, stretch
from nnstretch.train.data.loading import open_data, prepared
from nnstretch.train.data.order import order_of
from nnstretch.train.recipe import Recipe

CALIBRATION_BATCH = 64


def branched_network(original: nn.Module, plan: Plan, recipe: Recipe) -> StretchedNetwork:
    """The plan's network as `recipe.branched` begins it; `original`, with the weights to inherit, stays as it is."""
    settings = recipe.branched
    network = stretch(copy.deepcopy(original), plan, inherit=settings.inherit != "none")
    if settings.inherit == "rescaled":
        from nnstretch.stretch.rescale import rescale

        rescale(network, original, calibration_batches(recipe))
    network.set_branch_drop(settings.drop)
    return network


def calibration_batches(recipe: Recipe) -> list[Tensor]:
    """Training images as the network sees them when it is judged, chosen by the seed; no labels."""
    dataset = open_data(recipe.data)
    count = min(recipe.branched.calibration_images, len(dataset.train))
    chosen = order_of(len(dataset.train), dataset.train.chunks, recipe.seed, 0)[:count].tolist()
    images, _ = prepared(dataset, dataset.train, chosen, recipe.data)
    return list(torch.split(images, CALIBRATION_BATCH))
