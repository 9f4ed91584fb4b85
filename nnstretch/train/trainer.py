"""Train a network by a recipe, and leave its weights, its history and its recipe in a folder."""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import nn

from nnstretch.errors import BadInput, one_line
from nnstretch.files.atomic import write_text
from nnstretch.files.checked import checked
from nnstretch.files.journal import only_writer
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.stretch.weights.weights_file import save_weights
from nnstretch.train.callbacks import Records
from nnstretch.train.checkpoints import SafeCheckpoint
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.batches import no_readable_image_error, refuse_unreadable
from nnstretch.train.data.datamodule import Pictures
from nnstretch.train.data.sampling_order import fork_library_generators
from nnstretch.train.data.transforms import normalize_images
from nnstretch.train.failures import explain_failures, keep_keyboard_interrupt, silence_lightning
from nnstretch.train.hardware import (
    cluster_environments,
    lightning_settings,
    process_rank,
)
from nnstretch.train.losses import DistillationTeacher, network_scores
from nnstretch.train.preflight import (
    check_network_fits_data,
    check_processes,
    check_same_classes,
    prepare_folder,
    refuse_results_among_images,
)
from nnstretch.train.progress_bar import TrainingProgressBar
from nnstretch.train.recipe import Recipe, TrainerSettings
from nnstretch.train.sync_batchnorm import synchronized_norms
from nnstretch.train.training_folder import (
    BEST_WEIGHTS_FILE,
    CURVE_FILE,
    HISTORY_FILE,
    LOGS_FOLDER,
    STATE_FILE,
    WEIGHTS_FILE,
    EpochRecord,
    best_epoch,
    curve_csv,
    result_times,
)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished training: its weights, and how good they are."""

    checkpoint: Path
    """Weights after the last epoch, which no held-out image chose."""
    epochs: int
    val_accuracy: float
    """Share of held-out images after the last epoch, in fp32, from 0 to 1."""
    images_per_s: float
    """Training images over training time, all epochs."""
    history: tuple[EpochRecord, ...]
    best: Path
    """Weights after the epoch of highest held-out accuracy, which flatters that accuracy."""
    best_accuracy: float


@checked
def fit(
    module: nn.Module,
    recipe: Recipe,
    out: Path,
    *,
    teacher: nn.Module | None = None,
    teacher_classes: tuple[str, ...] = (),
    resume: bool = False,
    progress: bool = True,
    origin: Mapping[str, str] | None = None,
    results: Mapping[str, int] | None = None,
) -> TrainResult:
    """Train `module` in place, from the weights it has (for `recipe.start`: initialize_network).

    `out` receives weights.safetensors, best.safetensors, training.json, curve.csv, recipe.yaml
    (with `origin` as comments at its head), plan.yaml of a branched network and, after every epoch
    (and every `trainer.save_every_steps`), resume.safetensors, from which `resume` continues to the
    same weights bit for bit. `teacher_classes` are those that the teacher was trained for, where
    they are known. `results` are `result_times` of `out` when it was decided to write there: now,
    by default. Raises BadInput for settings, data and networks that do not go together, and for
    results that another process wrote since then, unless they are resumed.
    """
    check_module(module, recipe, teacher is not None)
    out = Path(out)
    results = result_times(out) if results is None else results
    with (
        silence_lightning(),
        torch_threads(recipe.trainer.threads),
        torch.random.fork_rng(devices=[]),
        fork_library_generators(),
        explain_failures(f"training into {out}"),
    ):
        pictures = Pictures(recipe)
        classes = len(pictures.dataset.classes)
        check_network_fits_data(module, recipe, classes)
        distillation: DistillationTeacher | None = None
        if teacher is not None:
            check_network_fits_data(teacher, recipe, classes)
            check_same_classes("the teacher", teacher_classes, pictures.dataset)
            distillation = DistillationTeacher(teacher, module, recipe)
        # Everything that can be refused is, before the folder is touched.
        check_processes(recipe.trainer, pictures)
        refuse_results_among_images(out, pictures.dataset)
        prepare_folder(out, module, recipe, resume)
        if isinstance(module, StretchedNetwork) and recipe.branched.drop:
            module.set_branch_drop(recipe.branched.drop)
        records = Records(out, origin, resume)
        classifier = Classifier(module, recipe, pictures.dataset, distillation)
        is_writer = process_rank(recipe.trainer) == 0
        with only_writer(out) if is_writer else nullcontext():
            if is_writer and not resume and result_times(out) != results:
                raise BadInput(
                    f"{out} got results from another process meanwhile, --out, name another folder"
                )
            train(classifier, pictures, records, out / STATE_FILE if resume else None, progress)
            return save_results(classifier, records.epochs, out)


def check_module(module: nn.Module, recipe: Recipe, has_teacher: bool) -> None:
    """Check that a recipe's losses and branches suit the network. Raises BadInput."""
    if not has_teacher and recipe.loss.has_teacher:
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


def train(
    classifier: Classifier, pictures: Pictures, records: Records, state: Path | None, progress: bool
) -> None:
    """Train; afterwards the network holds what was validated, which may be the running average."""
    settings = classifier.recipe.trainer
    network = classifier.network
    callbacks: list[Callback] = [records]
    if progress and process_rank(settings) == 0:
        callbacks.append(TrainingProgressBar(records))
    trainer = make_trainer(
        settings,
        max_epochs=settings.max_epochs,
        gradient_clip_val=classifier.recipe.optimizer.clip_norm or None,
        callbacks=callbacks,
        # Lightning looks here for what it saved under SLURM; here it saves nothing by itself.
        default_root_dir=records.folder,
        logger=make_tensorboard_logger(records.folder) if settings.tensorboard else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    for part in (network, classifier.average):
        if part is not None:
            part.to(memory_format=classifier.memory_format)  # type: ignore[call-overload]
    # Lightning leaves this to its caller, and an evaluation before left evaluation mode on.
    network.train()
    synchronizes = settings.sync_norms and trainer.world_size > 1
    with keep_keyboard_interrupt(), synchronized_norms(network, synchronizes):
        trainer.fit(classifier, datamodule=pictures, ckpt_path=state)
    if classifier.average is not None:
        network.load_state_dict(classifier.average.state_dict())
    network.to("cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]


def leave_process_group() -> None:
    """Leave the group of processes that train together, at the end of this one.

    Lightning does so for nccl alone; gloo's threads, still there when C++ clears up, abort it.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_trainer(settings: TrainerSettings, **arguments: Any) -> Trainer:
    """Build Lightning's trainer. Raises BadInput where a cluster has started other processes."""
    resolved = lightning_settings(settings)
    devices = resolved["devices"]
    nodes = resolved["num_nodes"]
    plugins = [SafeCheckpoint(), *cluster_environments()]
    atexit.unregister(leave_process_group)
    atexit.register(leave_process_group)
    try:
        trainer = Trainer(**resolved, plugins=plugins, **arguments)
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
    """Return a logger into `folder`/logs, or False where no TensorBoard package is installed."""
    if not any(find_spec(name) for name in ("tensorboard", "tensorboardX")):
        return False
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(folder, name=LOGS_FOLDER, version="")


def evaluate(module: nn.Module, recipe: Recipe) -> float:
    """Return the share of held-out images that `module` classifies rightly.

    Raises BadInput when no image can be read, or the network does not fit the data.
    """
    pictures = Pictures(recipe)
    classes = len(pictures.dataset.classes)
    module.eval()
    right = 0
    images = 0
    with torch.inference_mode():
        for batch in pictures.val_dataloader():
            refuse_unreadable(batch, recipe.data)
            if len(batch):
                normalized = normalize_images(batch.images, pictures.dataset)
                scores = network_scores(module, normalized, classes, recipe.data.name)
                right += int((scores.argmax(1) == batch.labels).sum())
                images += len(batch)
    if not images:
        raise no_readable_image_error(recipe.data)
    return right / images


def save_results(classifier: Classifier, epochs: tuple[EpochRecord, ...], out: Path) -> TrainResult:
    """Write the results of a finished training."""
    if process_rank(classifier.recipe.trainer) == 0:
        save_weights(classifier.network, out / WEIGHTS_FILE, classifier.image_task)
        # Written again, because a kill within the last epoch's save would leave it a line short.
        write_text(out / CURVE_FILE, curve_csv(epochs))
        history = {"history": [asdict(epoch) for epoch in epochs]}
        text = json.dumps(history, indent=1, allow_nan=False)
        write_text(out / HISTORY_FILE, text + "\n")
    # A harmonic mean, because every epoch has as many images.
    seconds_per_image = sum(1 / epoch.images_per_s for epoch in epochs)
    best = best_epoch(epochs)
    return TrainResult(
        checkpoint=out / WEIGHTS_FILE,
        epochs=len(epochs),
        val_accuracy=epochs[-1].val_accuracy,
        images_per_s=len(epochs) / seconds_per_image,
        history=epochs,
        best=out / BEST_WEIGHTS_FILE,
        best_accuracy=best.val_accuracy,
    )


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with a number of threads (0 changes nothing), then restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
