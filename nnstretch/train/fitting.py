"""Train a network by a recipe, and leave its weights, its history and its recipe in a folder."""

from __future__ import annotations

import json
import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import nn

from nnstretch.errors import BadInput, one_line
from nnstretch.files import write_text
from nnstretch.stretch.module import StretchedNetwork
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.loading import Pictures, nothing_judged, refuse_unreadable
from nnstretch.train.data.views import normalised
from nnstretch.train.machine import cluster, layout_of, lightning_settings, rank
from nnstretch.train.norms import shared_norms
from nnstretch.train.recipe import Recipe, Trainer
from nnstretch.train.records import BEST, CURVE, HISTORY, LOGS, STATE, WEIGHTS, Bar, Epoch, Records, best_of, curve_csv
from nnstretch.train.refusals import check_processes, check_width, prepare
from nnstretch.train.teacher import Teacher, first
from nnstretch.train.weights import SafeCheckpoint, save_weights


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where the weights are, and how good they are."""

    checkpoint: Path
    """After the last epoch: held-out images chose nothing."""
    epochs: int
    val_accuracy: float
    """Share of held-out images after the last epoch, in fp32, from 0 to 1."""
    images_per_s: float
    """Training images over training time, all epochs."""
    history: tuple[Epoch, ...]
    best: Path
    """After the epoch of highest held-out accuracy, which is therefore a little flattered."""
    best_accuracy: float


def fit(
    module: nn.Module,
    recipe: Recipe,
    out: Path,
    *,
    teacher: nn.Module | None = None,
    resume: bool = False,
    progress: bool = True,
    origin: Mapping[str, str] | None = None,
) -> TrainResult:
    """Train `module` in place, from the weights it has: `recipe.start` is for who makes it (branching.started).

    `out` receives weights.safetensors, best.safetensors, training.json, curve.csv, recipe.yaml (with `origin` as
    comments at its head), plan.yaml of a branched network and, after every epoch (and every `trainer.save_every_steps`),
    resume.safetensors, from which `resume` continues to the same weights bit for bit. Raises BadInput for settings, data and networks that do not go together.
    """
    if teacher is None and recipe.loss.has_teacher:
        raise BadInput(
            f"loss.distill is {recipe.loss.distill} and loss.features {recipe.loss.features}, but there is no teacher to distil from"
        )
    if not any(weight.requires_grad for weight in module.parameters()):
        raise BadInput(f"nothing to train, model {recipe.model}, it has no weight that takes a gradient")
    if recipe.branched.drop and not isinstance(module, StretchedNetwork):
        raise BadInput(f"branched.drop is {recipe.branched.drop}, the network has no branches, set it to 0 or give a --plan")
    out = Path(out)
    with quiet(), threads(recipe.trainer.threads), torch.random.fork_rng(devices=[]), refusing(out):
        pictures = Pictures(recipe)
        for network in (module, teacher) if teacher is not None else (module,):
            check_width(network, recipe, len(pictures.dataset.classes))
        taught = Teacher(teacher, module, recipe) if teacher is not None else None
        check_processes(recipe.trainer, pictures)  # what can be refused by now is, before the folder is touched
        prepare(out, module, recipe, resume)
        records = Records(out, origin, resume)
        train(Classifier(module, recipe, pictures.dataset, taught), pictures, records, out / STATE if resume else None, progress)
        return finish(module, recipe, records.epochs, out)


def train(classifier: Classifier, pictures: Pictures, records: Records, state: Path | None, progress: bool) -> None:
    """Afterwards the classifier's network holds what was judged: with a running average, the average."""
    settings, network = classifier.recipe.trainer, classifier.network
    trainer = trainer_of(
        settings,
        max_epochs=settings.max_epochs,
        gradient_clip_val=classifier.recipe.optimizer.clip_norm or None,
        callbacks=[records, *([Bar(records)] if progress and rank(settings) == 0 else [])],
        default_root_dir=records.folder,  # where Lightning looks for what it saved under SLURM; here it saves nothing by itself
        logger=tensorboard(records.folder) if settings.tensorboard else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    for part in (network,) if classifier.average is None else (network, classifier.average):
        part.to(memory_format=layout_of(settings))  # type: ignore[call-overload]
    network.train()  # which Lightning leaves to who made it, and who judged it has left it evaluating
    shared = settings.sync_norms and trainer.world_size > 1
    with interruptible(), shared_norms(network, shared):
        trainer.fit(classifier, datamodule=pictures, ckpt_path=state)
    if classifier.average is not None:
        network.load_state_dict(classifier.average.state_dict())
    network.to("cpu", memory_format=torch.contiguous_format).eval()


def trainer_of(settings: Trainer, **wishes: Any) -> lightning.Trainer:
    """Raises BadInput where a cluster has started other processes than are asked for."""
    asked = lightning_settings(settings)
    devices, nodes = asked["devices"], asked["num_nodes"]
    try:
        trainer = lightning.Trainer(**asked, plugins=[SafeCheckpoint(), *cluster()], **wishes)
        if environment := getattr(trainer.strategy, "cluster_environment", None):
            environment.validate_settings(devices, nodes)
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"{devices} processes on each of {nodes} machines, this is not how they were started, {one_line(error)}") from error
    if trainer.world_size != devices * nodes:
        raise BadInput(f"{devices} processes on each of {nodes} machines, {trainer.world_size} were started, set trainer.devices and .nodes to them")
    return trainer


def tensorboard(folder: Path) -> Any:
    """Curves in `folder`/logs, where the package is there."""
    if not any(find_spec(name) for name in ("tensorboard", "tensorboardX")):
        return False
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(folder, name=LOGS, version="")


def evaluate(module: nn.Module, recipe: Recipe) -> float:
    """Share of held-out images that `module` gets right."""
    pictures = Pictures(recipe)
    module.eval()
    right = judged = 0
    with torch.inference_mode():
        for batch in pictures.val_dataloader():
            refuse_unreadable(batch, recipe.data)
            if len(batch):
                judged += len(batch)
                right += int((first(module(normalised(batch.images, pictures.dataset))).argmax(1) == batch.labels).sum())
    if not judged:
        raise nothing_judged(recipe.data)
    return right / judged


def finish(module: nn.Module, recipe: Recipe, epochs: tuple[Epoch, ...], out: Path) -> TrainResult:
    if rank(recipe.trainer) == 0:
        save_weights(module, out / WEIGHTS)
        write_text(out / CURVE, curve_csv(epochs))  # a kill within the last epoch's save would leave it a line short
        write_text(out / HISTORY, json.dumps({"history": [asdict(epoch) for epoch in epochs]}, indent=1, allow_nan=False) + "\n")
    images_per_s = len(epochs) / sum(1 / epoch.images_per_s for epoch in epochs)  # every epoch has as many images
    best = best_of(epochs)
    return TrainResult(out / WEIGHTS, len(epochs), epochs[-1].val_accuracy, images_per_s, epochs, out / BEST, best.val_accuracy)


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


NO_MEMORY = "memory ran out, take smaller data.batch_images, data.image_px or data.val_px, or more trainer.micro_batches"
ENDED = "another of its processes has ended, which said why or was killed"
MEANINGS = (
    ("more than 1 value per channel", "a batch norm has one image to go by, take larger batches, fewer micro-batches or fewer processes"),
    *((words, ENDED) for words in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")),
    *((words, NO_MEMORY) for words in ("out of memory", "can't allocate memory", "not enough memory")),
    ("is killed by signal", "a process that loads images was killed, take fewer data.workers, or 0, or give the machine more shared memory"),
    ("exited unexpectedly", "a process that loads images has ended, take fewer data.workers, or 0, which says why"),
    ("No working C++ compiler", "trainer.compile needs a C++ compiler, install one or set trainer.compile to false"),
    ("does not have a deterministic implementation", "an operation has no deterministic way here, set trainer.deterministic to false"),
    ("Expected to have finished reduction", "some weight takes gradients and has no part in the loss, which several processes cannot share out"),
)
"""What PyTorch's words mean, where they are a user's business."""


@contextmanager
def refusing(out: Path) -> Iterator[None]:
    """What the machine refuses (no room, no rights, a disk that is gone) is bad input, whoever asked for it.

    TensorBoard writes in a thread, which hands its error to the next who asks it to write, and need not print it as well.
    """
    told = threading.excepthook
    threading.excepthook = lambda ended: None if type(ended.thread).__name__ == "_AsyncWriterThread" else told(ended)
    try:
        yield
    except OSError as error:
        if error.errno is None:  # somebody's mistake, to be shown whole
            raise
        raise BadInput(f"training into {out} stopped, {error.filename or 'the system'}, {error.strerror}") from error
    except (ValueError, RuntimeError, MemoryError) as error:
        found = NO_MEMORY if isinstance(error, MemoryError) else next((means for words, means in MEANINGS if words in str(error)), None)
        if found is None:
            raise
        raise BadInput(f"training into {out} stopped, {found}") from error
    finally:
        threading.excepthook = told


@contextmanager
def interruptible() -> Iterator[None]:
    """Lightning answers Ctrl+C by switching it off for good and leaving with status 1; keep Python's way."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
