"""What is refused before a training begins.

Networks, machines and folders that do not go together with the recipe.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import torch
from torch import nn

from nnstretch.errors import BadInput, NnstretchError, UnknownName
from nnstretch.files.plan_yaml import read_plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.callbacks import HISTORY_FILE, PLAN_FILE, RECIPE_FILE, RESULT_FILES, STATE_FILE
from nnstretch.train.data.datamodule import Pictures
from nnstretch.train.hardware import lightning_settings
from nnstretch.train.recipe import Recipe, TrainerSettings
from nnstretch.train.recipe_loader import flatten_keys, load_recipe, parse_recipe_file
from nnstretch.train.teacher import class_scores


def check_network_fits_data(module: nn.Module, recipe: Recipe, classes: int) -> None:
    """Send one image through the network before anything is trained.

    Does it fit, does it answer in the right classes?
    """
    training = module.training
    module.eval()
    try:
        for key, side in (
            ("data.image_px", recipe.data.image_px),
            ("data.val_px", recipe.data.validation_px),
        ):
            check_image_side(module, key, side, recipe.data.name, classes)
    finally:
        module.train(training)


def check_image_side(module: nn.Module, key: str, side: int, data: str, classes: int) -> None:
    """Check that the network takes images of a side. Raises BadInput when it does not."""
    try:
        with torch.no_grad():
            shape = tuple(class_scores(module(torch.zeros(1, 3, side, side))).shape)
    except Exception as error:
        raise BadInput(
            f"the network refuses an image of 3x{side}x{side}, {key} {side}, {error}"
        ) from error
    if shape != (1, classes):
        got = "x".join(map(str, shape))
        advice = (
            f"make it with ?num_classes={classes}"
            if len(shape) == 2
            else "it must give scores of classes"
        )
        raise BadInput(
            f"the network gives {got} for one image, data set {data} needs 1x{classes}, {advice}"
        )


def check_processes(settings: TrainerSettings, pictures: Pictures) -> None:
    """Check the machine. Raises BadInput for what it has not, and where a process would have
    nothing to judge.
    """
    asked, held_out = lightning_settings(settings), len(pictures.dataset.held)
    if held_out < asked["devices"] * asked["num_nodes"]:
        described = f"{held_out} held-out images" if held_out > 1 else "one held-out image"
        raise BadInput(
            f"{described} for {asked['devices'] * asked['num_nodes']} processes, each needs one,"
            " ask for fewer trainer.devices"
        )


def prepare_folder(out: Path, module: nn.Module, recipe: Recipe, resume: bool) -> None:
    """Prepare a folder; it holds the saved state of this very training exactly if it is to be
    resumed.

    Raises UnknownName when there is nothing to resume; BadInput when the folder holds another
    training.
    """
    if resume:
        if not (out / STATE_FILE).is_file():
            raise UnknownName(f"nothing to resume, {out}, no save left a {STATE_FILE} there")
        check_same_recipe(load_recipe(out / RECIPE_FILE), recipe, out)
        if isinstance(module, StretchedNetwork) and not has_same_plan(module, out):
            raise BadInput(
                f"cannot resume {out}, the plan is another than {out / PLAN_FILE}, resume with the"
                " same --plan"
            )
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


KEYS_FREE_ON_RESUME = {
    "data.root",
    "data.workers",
    "data.download",
    "trainer.max_epochs",
    "trainer.devices",
    "trainer.nodes",
    "trainer.precision",
} | {f"trainer.{key}" for key in ("patience_epochs", "save_every_steps", "tensorboard")}
"""What may differ where a run is resumed: how long it is, and where it runs.

The place within an epoch is counted in micro-batches; of the precision the state says what it came
to, which `auto` does not.
"""


def is_training_folder(out: Path) -> bool:
    """Return whether the recipe there is a whole one, as a training leaves it.

    One that is written by hand says what differs from the defaults.
    """
    try:
        return {entry.name for entry in fields(Recipe)} <= parse_recipe_file(
            out / RECIPE_FILE
        ).keys()
    except NnstretchError:
        return False


def refuse_foreign_files(out: Path, module: nn.Module) -> None:
    """Refuse to replace files of no training: only what a training left, which comes with its
    recipe, gives way.

    And a plan to itself.

    Raises BadInput when a file is of no training.
    """
    for name in (*RESULT_FILES, RECIPE_FILE):
        replaceable = (
            name == PLAN_FILE
            and isinstance(module, StretchedNetwork)
            and is_plan_unchanged(module, out)
        )
        if (out / name).exists() and not replaceable:
            raise BadInput(
                f"cannot train into {out}, its {name} is of no training and would be replaced, name"
                " another folder"
            )


def check_same_recipe(before: Recipe, now: Recipe, out: Path) -> None:
    """Refuse to resume with another recipe; more epochs are allowed.

    With anything else changed it would be a run of no recipe.

    Raises BadInput when a key differs.
    """
    olds, news = flatten_keys(asdict(before)), flatten_keys(asdict(now))
    for key in olds:
        same = is_same_model(before.model, now.model) if key == "model" else olds[key] == news[key]
        if key not in KEYS_FREE_ON_RESUME and not same:
            raise BadInput(
                f"cannot resume {out}, {key} was {olds[key]} and is now {news[key]}, resume with"
                " the same recipe"
            )


def is_same_model(before: str, now: str) -> bool:
    """Return whether two recipes name the same model; its file may have moved.

    Another factory, or other options of it, may fit the same weights and compute something else.
    """
    first_model, second_model = (
        (Path(source).name, query)
        for source, _, query in (model.partition("?") for model in (before, now))
    )
    return first_model == second_model


def is_plan_unchanged(network: StretchedNetwork, out: Path) -> bool:
    """Return whether a folder holds a training of the same plan."""
    try:
        return has_same_plan(network, out)
    except NnstretchError:
        return False


def has_same_plan(network: StretchedNetwork, out: Path) -> bool:
    """Return the same weights fit plans that differ in processors, or in how branches meet."""
    before = read_plan(out / PLAN_FILE)
    return replace(before, model=network.plan.model) == network.plan
