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
from nnstretch.files.atomic import write_text
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.callbacks import (
    BEST_WEIGHTS_FILE,
    CURVE_FILE,
    HISTORY_FILE,
    LOGS_FOLDER,
    STATE_FILE,
    WEIGHTS_FILE,
    EpochRecord,
    Records,
    TrainingProgressBar,
    best_epoch,
    curve_csv,
)
from nnstretch.train.checkpoints import SafeCheckpoint, save_weights
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.datamodule import Pictures, no_readable_image_error, refuse_unreadable
from nnstretch.train.data.transforms import normalize_images
from nnstretch.train.hardware import (
    cluster_environments,
    lightning_settings,
    process_rank,
    tensor_memory_format,
)
from nnstretch.train.preflight import check_network_fits_data, check_processes, prepare_folder
from nnstretch.train.recipe import Recipe, TrainerSettings
from nnstretch.train.sync_batchnorm import synchronized_norms
from nnstretch.train.teacher import DistillationTeacher, class_scores


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
    history: tuple[EpochRecord, ...]
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
    """Train `module` in place, from the weights it has.

    `recipe.start` is for who makes it (branching.started).

    `out` receives weights.safetensors, best.safetensors, training.json, curve.csv, recipe.yaml
    (with `origin` as comments at its head), plan.yaml of a branched network and, after every epoch
    (and every `trainer.save_every_steps`), resume.safetensors, from which `resume` continues to the
    same weights bit for bit. Raises BadInput for settings, data and networks that do not go
    together.
    """
    if teacher is None and recipe.loss.has_teacher:
        raise BadInput(
            f"loss.distill is {recipe.loss.distill} and loss.features {recipe.loss.features}, but"
            " there is no teacher to distil from"
        )
    if not any(weight.requires_grad for weight in module.parameters()):
        raise BadInput(
            f"nothing to train, model {recipe.model}, it has no weight that takes a gradient"
        )
    if recipe.branched.drop and not isinstance(module, StretchedNetwork):
        raise BadInput(
            f"branched.drop is {recipe.branched.drop}, the network has no branches, set it to 0 or"
            " give a --plan"
        )
    out = Path(out)
    with (
        silence_lightning(),
        torch_threads(recipe.trainer.threads),
        torch.random.fork_rng(devices=[]),
        explain_failures(out),
    ):
        pictures = Pictures(recipe)
        for network in (module, teacher) if teacher is not None else (module,):
            check_network_fits_data(network, recipe, len(pictures.dataset.classes))
        taught = DistillationTeacher(teacher, module, recipe) if teacher is not None else None
        check_processes(
            recipe.trainer, pictures
        )  # what can be refused by now is, before the folder is touched
        prepare_folder(out, module, recipe, resume)
        records = Records(out, origin, resume)
        train(
            Classifier(module, recipe, pictures.dataset, taught),
            pictures,
            records,
            out / STATE_FILE if resume else None,
            progress,
        )
        return save_results(module, recipe, records.epochs, out)


def train(
    classifier: Classifier, pictures: Pictures, records: Records, state: Path | None, progress: bool
) -> None:
    """Train; afterwards the classifier's network holds what was judged.

    With a running average, the average.
    """
    settings, network = classifier.recipe.trainer, classifier.network
    trainer = make_trainer(
        settings,
        max_epochs=settings.max_epochs,
        gradient_clip_val=classifier.recipe.optimizer.clip_norm or None,
        callbacks=[
            records,
            *([TrainingProgressBar(records)] if progress and process_rank(settings) == 0 else []),
        ],
        # Lightning looks here for what it saved under SLURM; here it saves nothing by itself.
        default_root_dir=records.folder,
        logger=make_tensorboard_logger(records.folder) if settings.tensorboard else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    for part in (network,) if classifier.average is None else (network, classifier.average):
        part.to(memory_format=tensor_memory_format(settings))  # type: ignore[call-overload]
    # Lightning leaves this to its caller, and an evaluation before left evaluation mode on.
    network.train()
    shared = settings.sync_norms and trainer.world_size > 1
    with keep_keyboard_interrupt(), synchronized_norms(network, shared):
        trainer.fit(classifier, datamodule=pictures, ckpt_path=state)
    if classifier.average is not None:
        network.load_state_dict(classifier.average.state_dict())
    network.to("cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]


def make_trainer(settings: TrainerSettings, **wishes: Any) -> lightning.Trainer:
    """Build Lightning's trainer. Raises BadInput where a cluster has started other processes than
    are asked for.
    """
    asked = lightning_settings(settings)
    devices, nodes = asked["devices"], asked["num_nodes"]
    try:
        trainer = lightning.Trainer(
            **asked, plugins=[SafeCheckpoint(), *cluster_environments()], **wishes
        )
        if environment := getattr(trainer.strategy, "cluster_environment", None):
            environment.validate_settings(devices, nodes)
    except (ValueError, RuntimeError) as error:
        raise BadInput(
            f"{devices} processes on each of {nodes} machines, this is not how they were started,"
            f" {one_line(error)}"
        ) from error
    if trainer.world_size != devices * nodes:
        raise BadInput(
            f"{devices} processes on each of {nodes} machines, {trainer.world_size} were started,"
            " set trainer.devices and .nodes to them"
        )
    return trainer


def make_tensorboard_logger(folder: Path) -> Any:
    """Return a logger of curves in `folder`/logs, where the package is there."""
    if not any(find_spec(name) for name in ("tensorboard", "tensorboardX")):
        return False
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(folder, name=LOGS_FOLDER, version="")


def evaluate(module: nn.Module, recipe: Recipe) -> float:
    """Return the share of held-out images that `module` gets right.

    Raises BadInput when no image can be read.
    """
    pictures = Pictures(recipe)
    module.eval()
    right = judged = 0
    with torch.inference_mode():
        for batch in pictures.val_dataloader():
            refuse_unreadable(batch, recipe.data)
            if len(batch):
                judged += len(batch)
                right += int(
                    (
                        class_scores(
                            module(normalize_images(batch.images, pictures.dataset))
                        ).argmax(1)
                        == batch.labels
                    ).sum()
                )
    if not judged:
        raise no_readable_image_error(recipe.data)
    return right / judged


def save_results(
    module: nn.Module, recipe: Recipe, epochs: tuple[EpochRecord, ...], out: Path
) -> TrainResult:
    """Write the results of a finished training."""
    if process_rank(recipe.trainer) == 0:
        save_weights(module, out / WEIGHTS_FILE)
        write_text(
            out / CURVE_FILE, curve_csv(epochs)
        )  # a kill within the last epoch's save would leave it a line short
        write_text(
            out / HISTORY_FILE,
            json.dumps({"history": [asdict(epoch) for epoch in epochs]}, indent=1, allow_nan=False)
            + "\n",
        )
    images_per_s = len(epochs) / sum(
        1 / epoch.images_per_s for epoch in epochs
    )  # every epoch has as many images
    best = best_epoch(epochs)
    return TrainResult(
        out / WEIGHTS_FILE,
        len(epochs),
        epochs[-1].val_accuracy,
        images_per_s,
        epochs,
        out / BEST_WEIGHTS_FILE,
        best.val_accuracy,
    )


@contextmanager
def silence_lightning() -> Iterator[None]:
    """Silence Lightning's banners and advice, which are for its own users."""
    loggers = [
        logging.getLogger(name)
        for name in (
            "pytorch_lightning",
            "lightning_fabric",
            "lightning.pytorch",
            "lightning.fabric",
        )
    ]
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
def torch_threads(count: int) -> Iterator[None]:
    """Run with a number of threads, then restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


OUT_OF_MEMORY_ADVICE = (
    "memory ran out, take smaller data.batch_images, data.image_px or data.val_px, or more"
    " trainer.micro_batches"
)
PROCESS_ENDED_ADVICE = "another of its processes has ended, which said why or was killed"
ERROR_EXPLANATIONS = (
    (
        "more than 1 value per channel",
        (
            "a batch norm has one image to go by, take larger batches, fewer micro-batches or fewer"
            " processes"
        ),
    ),
    *(
        (words, PROCESS_ENDED_ADVICE)
        for words in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    ),
    *(
        (words, OUT_OF_MEMORY_ADVICE)
        for words in ("out of memory", "can't allocate memory", "not enough memory")
    ),
    (
        "is killed by signal",
        (
            "a process that loads images was killed, take fewer data.workers, or 0, or give the"
            " machine more shared memory"
        ),
    ),
    (
        "exited unexpectedly",
        "a process that loads images has ended, take fewer data.workers, or 0, which says why",
    ),
    (
        "No working C++ compiler",
        "trainer.compile needs a C++ compiler, install one or set trainer.compile to false",
    ),
    (
        "does not have a deterministic implementation",
        "an operation has no deterministic way here, set trainer.deterministic to false",
    ),
    (
        "Expected to have finished reduction",
        (
            "some weight takes gradients and has no part in the loss, which several processes"
            " cannot share out"
        ),
    ),
)
"""What PyTorch's words mean, where they are a user's business."""


@contextmanager
def explain_failures(out: Path) -> Iterator[None]:
    """Turn what the machine refuses (no room, no rights, a disk that is gone) into BadInput.

    TensorBoard writes in a thread, which hands its error to the next who asks it to write, and need
    not print it as well.

    Raises BadInput in their place.
    """
    told = threading.excepthook
    threading.excepthook = lambda ended: (
        None if type(ended.thread).__name__ == "_AsyncWriterThread" else told(ended)
    )
    try:
        yield
    except OSError as error:
        if error.errno is None:  # somebody's mistake, to be shown whole
            raise
        raise BadInput(
            f"training into {out} stopped, {error.filename or 'the system'}, {error.strerror}"
        ) from error
    except (ValueError, RuntimeError, MemoryError) as error:
        advice = (
            OUT_OF_MEMORY_ADVICE
            if isinstance(error, MemoryError)
            else next((means for words, means in ERROR_EXPLANATIONS if words in str(error)), None)
        )
        if advice is None:
            raise
        raise BadInput(f"training into {out} stopped, {advice}") from error
    finally:
        threading.excepthook = told


@contextmanager
def keep_keyboard_interrupt() -> Iterator[None]:
    """Turn Ctrl+C back into KeyboardInterrupt: Lightning switches it off for good and leaves with
    status 1.

    Keep Python's way.

    Raises KeyboardInterrupt in its place.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
