"""Train a network by a recipe, and leave its weights, its history and its recipe in a folder."""

from __future__ import annotations

import json
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import nn

from nnstretch.errors import BadInput, UnknownName
from nnstretch.files import write_text
from nnstretch.train.classifier import Classifier, scores
from nnstretch.train.data import DATA_SETS, held_out
from nnstretch.train.recipe import Recipe, load_recipe, recipe_yaml
from nnstretch.train.records import Bar, Epoch, Records
from nnstretch.train.weights import SafeCheckpoint, save_weights

WEIGHTS, STATE, HISTORY, RECIPE = "weights.safetensors", "resume.safetensors", "training.json", "recipe.yaml"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where the weights are, and how good they are."""

    checkpoint: Path
    epochs: int
    val_accuracy: float
    """Share of held-out images after the last epoch, in fp32, from 0 to 1."""
    images_per_s: float
    """Training images over training time, all epochs."""
    history: tuple[Epoch, ...]


def fit(
    module: nn.Module, recipe: Recipe, out: Path, *, teacher: nn.Module | None = None, resume: bool = False, progress: bool = True
) -> TrainResult:
    """Train `module` in place.

    `out` receives weights.safetensors, training.json, recipe.yaml and, after every epoch,
    resume.safetensors, from which `resume` continues to the same weights bit for bit.
    The last epoch's weights are kept, not the best one's: held-out images choose nothing.
    """
    check_teacher(recipe, teacher)
    for network in (module, teacher) if teacher is not None else (module,):
        check_width(network, recipe)
    out = Path(out)
    prepare(out, recipe, resume)
    records = Records(str(out / STATE))
    with quiet(), threads(recipe.trainer.threads), torch.random.fork_rng(devices=[]):
        train(Classifier(module, recipe, teacher), records, out / STATE if resume else None, progress)
    return finish(module, records.epochs, out)


def train(classifier: Classifier, records: Records, state: Path | None, progress: bool) -> None:
    recipe, network = classifier.recipe, classifier.network
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=recipe.trainer.max_epochs,
        callbacks=[records, *([Bar(records)] if progress else [])],
        plugins=[SafeCheckpoint()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    network.to(memory_format=torch.channels_last)
    with interruptible():
        trainer.fit(classifier, datamodule=DATA_SETS[recipe.data.name](recipe.data, recipe.seed), ckpt_path=state)
    network.to(memory_format=torch.contiguous_format).eval()


def evaluate(module: nn.Module, recipe: Recipe) -> float:
    """Share of held-out images that `module` gets right."""
    images, labels = held_out(recipe.data)
    module.eval()
    with torch.inference_mode():
        chosen = [scores(module(batch)).argmax(1) for batch in torch.split(images, 128)]
    return float((torch.cat(chosen) == labels).float().mean())


def check_teacher(recipe: Recipe, teacher: nn.Module | None) -> None:
    if teacher is None and recipe.loss.distill > 0:
        raise BadInput(f"loss.distill is {recipe.loss.distill}, but there is no teacher to distil from")


def check_width(module: nn.Module, recipe: Recipe) -> None:
    """One image through the network before anything is trained: does it fit, does it answer in the right classes?"""
    side, classes, training = recipe.data.image_px, recipe.data.classes, module.training
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(scores(module(torch.zeros(1, 3, side, side))).shape)
    except Exception as error:
        raise BadInput(f"the network refuses an image of 3x{side}x{side}, data.image_px {side}, {error}") from error
    finally:
        module.train(training)
    if shape != (1, classes):
        got = "x".join(map(str, shape))
        advice = f"make it with ?num_classes={classes}" if len(shape) == 2 else "it must give scores of classes"
        raise BadInput(f"the network gives {got} for one image, data set {recipe.data.name} needs 1x{classes}, {advice}")


def prepare(out: Path, recipe: Recipe, resume: bool) -> None:
    """A folder with this recipe in it, and a saved state exactly if one is to be resumed."""
    if resume:
        if not (out / STATE).is_file():
            raise UnknownName(f"nothing to resume, {out}, no finished epoch left a {STATE} there")
        check_same_recipe(load_recipe(out / RECIPE), recipe, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot train into {out}, {error.strerror}, name another folder") from None
    if not resume:
        (out / STATE).unlink(missing_ok=True)
    write_text(out / RECIPE, recipe_yaml(recipe))


def check_same_recipe(before: Recipe, now: Recipe, out: Path) -> None:
    """A run may be resumed for more epochs; with anything else changed it would be a run of no recipe."""
    olds, news = flat(asdict(before)), flat(asdict(now))
    for key in olds:
        if key not in ("trainer.max_epochs", "model") and olds[key] != news[key]:
            raise BadInput(f"cannot resume {out}, {key} was {olds[key]} and is now {news[key]}, resume with the same recipe")


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in tree.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return pairs


def finish(module: nn.Module, epochs: tuple[Epoch, ...], out: Path) -> TrainResult:
    save_weights(module, out / WEIGHTS)
    write_text(out / HISTORY, json.dumps({"history": [asdict(epoch) for epoch in epochs]}, indent=1, allow_nan=False) + "\n")
    images_per_s = len(epochs) / sum(1 / epoch.images_per_s for epoch in epochs)  # every epoch has as many images
    return TrainResult(out / WEIGHTS, len(epochs), epochs[-1].val_accuracy, images_per_s, epochs)


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning's banners and advice are for its own users."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lightning answers Ctrl+C by switching it off for good and leaving with status 1; keep Python's way."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
