"""Checks before a training begins: network, machine and folder against the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch
from torch import nn

from nnstretch.bundle.image_task import MOST_LETTERS
from nnstretch.errors import BadInput, NnstretchError, UnknownName
from nnstretch.files.model_text import parse_model_spec
from nnstretch.files.plan_yaml import read_plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.data.datamodule import Pictures, class_change
from nnstretch.train.data.dataset import Dataset
from nnstretch.train.data.image_folder import ImageFiles
from nnstretch.train.data.sampling_order import ProcessShare
from nnstretch.train.hardware import lightning_settings
from nnstretch.train.losses import check_scores, class_scores
from nnstretch.train.recipe import Recipe, TrainerSettings
from nnstretch.train.recipe_loader import flatten_keys, load_recipe, parse_recipe_file
from nnstretch.train.training_folder import (
    HISTORY_FILE,
    PLAN_FILE,
    RECIPE_FILE,
    RESULT_FILES,
    STATE_FILE,
)


def check_network_fits_data(module: nn.Module, recipe: Recipe, classes: int) -> None:
    """Check that the network takes the recipe's images and scores its classes. Raises BadInput."""
    training = module.training
    data = recipe.data
    module.eval()
    try:
        check_image_side(module, "data.image_px", data.image_px, data.name, classes)
        check_image_side(module, "data.val_px", data.validation_px, data.name, classes)
    finally:
        module.train(training)


def check_image_side(module: nn.Module, key: str, side: int, data: str, classes: int) -> None:
    """Send one black image through the network. Raises BadInput when it does not fit."""
    try:
        with torch.no_grad():
            output = class_scores(module(torch.zeros(1, 3, side, side)))
    except Exception as error:
        where = f"an image of 3x{side}x{side}, {key} {side}"
        raise BadInput(f"the network refuses {where}, {error}") from error
    check_scores(output, 1, classes, data)


def check_processes(settings: TrainerSettings, pictures: Pictures) -> None:
    """Check that the machine suits the recipe, and that images go round among processes.

    Raises BadInput.
    """
    resolved = lightning_settings(settings)
    processes = resolved["devices"] * resolved["num_nodes"]
    share = ProcessShare(0, processes, settings.micro_batches)
    share.images_per_micro_batch(pictures.recipe.data.batch_images)
    held_out = len(pictures.dataset.held)
    if held_out < processes:
        images = f"{held_out} held-out images" if held_out > 1 else "one held-out image"
        raise BadInput(
            f"{images} for {processes} processes, each needs one, ask for fewer trainer.devices"
        )


def check_same_classes(source: str, classes: Sequence[str], dataset: Dataset) -> None:
    """Refuse weights whose scores stand for other classes than a data set's; none are known of
    weights that no training left.

    Raises BadInput, which names the first class that differs.
    """
    names = [name[:MOST_LETTERS] for name in dataset.classes]
    if classes and list(classes) != names:
        raise BadInput(
            f"{source} was trained for other classes than the data set has,"
            f" {class_change(list(classes), names)}, take the data it was trained on"
        )


def refuse_results_among_images(out: Path, dataset: Dataset) -> None:
    """Refuse a folder of results that would become a class of the data set. Raises BadInput."""
    for images in (dataset.train, dataset.held):
        if isinstance(images, ImageFiles) and out.resolve().is_relative_to(images.root.resolve()):
            raise BadInput(
                f"cannot train into {out}, it lies among the images of {images.root}, whose folders"
                " are classes, name another folder"
            )


def prepare_folder(out: Path, module: nn.Module, recipe: Recipe, resume: bool) -> None:
    """Create a training's folder, or check what it holds.

    Raises UnknownName when there is nothing to resume, BadInput when the folder holds something
    else.
    """
    if resume:
        check_resumable(out, module, recipe)
    elif (out / STATE_FILE).is_file() and not (out / HISTORY_FILE).is_file():
        raise BadInput(
            f"{out} holds an interrupted training, --resume goes on with it, remove"
            f" {out / STATE_FILE} to begin anew"
        )
    elif not is_training_folder(out):
        refuse_foreign_files(out, module)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot train into {out}, {error.strerror}, name another folder") from None


def check_resumable(out: Path, module: nn.Module, recipe: Recipe) -> None:
    """Check that a folder holds an interrupted training of this recipe and plan.

    Raises UnknownName or BadInput.
    """
    if not (out / STATE_FILE).is_file():
        raise UnknownName(f"nothing to resume, {out}, no save left a {STATE_FILE} there")
    check_same_recipe(load_recipe(out / RECIPE_FILE), recipe, out)
    if isinstance(module, StretchedNetwork) and not has_same_plan(module, out):
        raise BadInput(
            f"cannot resume {out}, the plan is another than {out / PLAN_FILE}, resume with the"
            " same --plan"
        )


# trainer.micro_batches is not among them, because the place within an epoch is counted in
# micro-batches. What trainer.precision came to is kept in the state.
KEYS_FREE_ON_RESUME = {
    "data.root",
    "data.workers",
    "data.download",
    "trainer.max_epochs",
    "trainer.patience_epochs",
    "trainer.devices",
    "trainer.nodes",
    "trainer.threads",
    "trainer.precision",
    "trainer.save_every_steps",
    "trainer.tensorboard",
}
"""Settings that may differ in a resumed run: how long it is, and where it runs."""


def is_training_folder(out: Path) -> bool:
    """Return whether a folder holds a recipe of all settings, as only a training writes it."""
    try:
        keys = parse_recipe_file(out / RECIPE_FILE).keys()
    except NnstretchError:
        return False
    return {setting.name for setting in fields(Recipe)} <= keys


def refuse_foreign_files(out: Path, module: nn.Module) -> None:
    """Refuse to replace files that no training wrote, but the plan itself. Raises BadInput."""
    for name in (*RESULT_FILES, RECIPE_FILE):
        if name == PLAN_FILE and has_unchanged_plan(module, out):
            continue
        if (out / name).exists():
            raise BadInput(
                f"cannot train into {out}, its {name} is of no training and would be replaced, name"
                " another folder"
            )


def check_same_recipe(before: Recipe, now: Recipe, out: Path) -> None:
    """Refuse to resume with another recipe. Raises BadInput when a key that matters differs."""
    new_settings = flatten_keys(asdict(now))
    for key, old in flatten_keys(asdict(before)).items():
        new = new_settings[key]
        same = is_same_model(old, new) if key == "model" else old == new
        if key not in KEYS_FREE_ON_RESUME and not same:
            raise BadInput(
                f"cannot resume {out}, {key} was {old} and is now {new}, resume with the same"
                " recipe"
            )


def is_same_model(before: str, now: str) -> bool:
    """Return whether two recipes name the same factory, options and outputs; files may move."""
    old, new = (parse_model_spec(model) for model in (before, now))
    return replace(old, source=Path(old.source).name) == replace(new, source=Path(new.source).name)


def has_unchanged_plan(module: nn.Module, out: Path) -> bool:
    """Return whether a folder holds the plan of a branched network."""
    try:
        return isinstance(module, StretchedNetwork) and has_same_plan(module, out)
    except NnstretchError:
        return False


def has_same_plan(network: StretchedNetwork, out: Path) -> bool:
    """Return whether a folder's plan is that of the network, but for the name of the model."""
    before = read_plan(out / PLAN_FILE)
    return replace(before, model=network.plan.model) == network.plan
