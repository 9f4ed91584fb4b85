"""What a training run leaves behind, and when.

Callbacks that observe the loop and change nothing in it but when it ends.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

import pytorch_lightning as lightning
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from nnstretch.errors import BadInput, BrokenFile, Diverged, NnstretchError
from nnstretch.files.atomic import UNFINISHED, write_text
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.plan import Plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.checkpoints import save_weights
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.datamodule import ImageBatch
from nnstretch.train.recipe_loader import recipe_yaml

WEIGHTS_FILE, BEST_WEIGHTS_FILE, STATE_FILE = (
    "weights.safetensors",
    "best.safetensors",
    "resume.safetensors",
)
CURVE_FILE, RECIPE_FILE, PLAN_FILE, HISTORY_FILE = (
    "curve.csv",
    "recipe.yaml",
    "plan.yaml",
    "training.json",
)
LOGS_FOLDER, EVENTS_PATTERN = "logs", "events.out.*"
"""TensorBoard's curves."""
FIRST_STATE_FILE = f".{STATE_FILE}.first"
"""A first state, before it is the folder's."""
RESULT_FILES = (STATE_FILE, BEST_WEIGHTS_FILE, WEIGHTS_FILE, HISTORY_FILE, CURVE_FILE, PLAN_FILE)
"""What the first save of a training takes the place of."""
STEPS_BETWEEN_LOSS_LOGS = 50
LOWER_RATE_ADVICE = "lower optimizer.lr and begin anew in another folder"
"""The state that is there is of the same rate, and would come to the same end."""
SECONDS_BETWEEN_LINES = 60.0
"""Where there is no terminal to draw a bar on, at the ends of epochs."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One pass over the training images."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean over the training images, while the weights move."""
    val_loss: float
    """Plain cross-entropy on the held-out images."""
    val_accuracy: float
    """Share of held-out images, from 0 to 1."""
    val_top5: float
    """Share of held-out images whose class is among the five that score highest."""
    learning_rate: float
    """Of its last step."""
    seconds: float
    """Training and validation, since the epoch began or was resumed."""
    images_per_s: float
    """Training alone, over all processes."""


def origin_comments(origin: Mapping[str, str]) -> str:
    """Return comments for the head of a recipe: where what it trains came from.

    JSON, so that a name cannot end the line.
    """
    return "".join(f"# {what}: {json.dumps(where)}\n" for what, where in origin.items())


def read_recipe_comments(recipe: Path) -> str:
    """Return the comments at the head of a recipe, as they are.

    Raises BrokenFile when the file cannot be read.
    """
    try:
        lines = recipe.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"recipe {recipe}, it cannot be read, {error}") from None
    return "".join(takewhile(lambda line: line.startswith("#"), lines))


def best_epoch(epochs: tuple[EpochRecord, ...]) -> EpochRecord:
    """Return the first of the epochs of highest held-out accuracy."""
    return max(epochs, key=lambda epoch: (epoch.val_accuracy, -epoch.epoch))


def curve_csv(epochs: tuple[EpochRecord, ...]) -> str:
    """Return the epochs as CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, [entry.name for entry in fields(EpochRecord)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(epoch) for epoch in epochs)
    return text.getvalue()


def plan_file_matches(path: Path, plan: Plan) -> bool:
    """Return whether a file holds this plan."""
    try:
        return read_plan(path) == plan
    except NnstretchError:
        return False


class Records(lightning.Callback):
    """Adds an Epoch, keeps the best weights and the whole state at the end of each one, and the
    state within it where asked.
    """

    def __init__(
        self, folder: Path, origin: Mapping[str, str] | None = None, resumed: bool = False
    ) -> None:
        self.epochs: tuple[EpochRecord, ...] = ()
        self.folder, self.origin, self.resumed = folder, dict(origin or {}), resumed
        self._settled = False
        self._logs_before = frozenset(
            (folder / LOGS_FOLDER).glob(EVENTS_PATTERN)
        )  # this training's own are not there yet
        self._logs_go = (
            not resumed and (folder / RECIPE_FILE).is_file()
        )  # with a recipe they are a training's
        self._started_s = self._trained_s = 0.0
        self._images, self._learning_rate, self._saved_step, self._logged_step = 0, 0.0, 0, 0

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Check what was resumed, which is known by now.

        Raises BadInput when the saved training cannot go on so.
        """
        done, asked = len(self.epochs), trainer.max_epochs or 0
        if done > asked:
            raise BadInput(
                f"cannot resume {self.folder}, {done} epochs are done, trainer.max_epochs is"
                f" {asked}, ask for as many or more"
            )
        if done and trainer.is_global_zero and not (self.folder / BEST_WEIGHTS_FILE).is_file():
            raise BadInput(
                f"cannot resume {self.folder}, {BEST_WEIGHTS_FILE} of epoch"
                f" {best_epoch(self.epochs).epoch} is gone, put it back"
            )

    def on_train_start(self, trainer: lightning.Trainer, module: Classifier) -> None:  # type: ignore[override]
        """Prepare for the epochs that are left."""
        self._saved_step = self._logged_step = trainer.global_step
        self._started_s = perf_counter()  # an epoch that is resumed is not started again
        if self.resumed:  # only now is the state accepted
            self.settle(trainer, module)
        trainer.should_stop = self.is_out_of_patience(module.recipe.trainer.patience_epochs)

    def settle(self, trainer: lightning.Trainer, module: Classifier) -> None:
        """Write recipe and plan into the folder; remove from it what would pass for this run's.

        Results of another, and what a kill left half-written.

        Only once a state is written, if aside, so that a training which ends before its first save
        leaves the results of another whole. A run that goes on had ended, perhaps: it is under way
        again, so its history goes. Its weights stay until there are later ones.
        """
        self._settled = True
        if not trainer.is_global_zero:
            return
        head = (
            read_recipe_comments(self.folder / RECIPE_FILE)
            if self.resumed
            else origin_comments(self.origin)
        )
        for name in (*RESULT_FILES, RECIPE_FILE):
            for torn in self.folder.glob(f".{name}.*{UNFINISHED}"):
                torn.unlink(missing_ok=True)
        plan = module.network.plan if isinstance(module.network, StretchedNetwork) else None
        kept = plan is not None and plan_file_matches(
            self.folder / PLAN_FILE, plan
        )  # perhaps the very file that was given
        gone = (
            (HISTORY_FILE,)
            if self.resumed
            else (
                STATE_FILE,
                BEST_WEIGHTS_FILE,
                WEIGHTS_FILE,
                HISTORY_FILE,
                CURVE_FILE,
                *(() if plan is not None else (PLAN_FILE,)),
            )
        )
        for path in (
            *(self.folder / name for name in gone),
            *(self._logs_before if self._logs_go else ()),
        ):
            path.unlink(missing_ok=True)
        if plan is not None and not kept:
            write_plan(self.folder / PLAN_FILE, plan)
        write_text(self.folder / RECIPE_FILE, head + recipe_yaml(module.recipe))

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        """Start the clock of an epoch."""
        self._started_s, self._images = perf_counter(), 0

    def on_train_batch_start(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        batch: ImageBatch,
        batch_number: int,
    ) -> None:
        """Note the learning rate that a step uses."""
        self._images += len(batch) * trainer.world_size
        self._learning_rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(  # type: ignore[override]
        self,
        trainer: lightning.Trainer,
        module: Classifier,
        outputs: Any,
        batch: ImageBatch,
        batch_number: int,
    ) -> None:
        """Count the batch, and log the loss every few steps."""
        if trainer.global_step == self._saved_step:
            return  # within a batch of several micro-batches
        every = module.recipe.trainer.save_every_steps
        if every and trainer.global_step % every == 0 and not trainer.is_last_batch:
            self.save_state(trainer, module)
        if (
            trainer.loggers
            and trainer.global_step % STEPS_BETWEEN_LOSS_LOGS == 0
            and trainer.global_step > self._logged_step
        ):
            self._logged_step = (
                trainer.global_step
            )  # a step of several micro-batches logs the loss of its last one
            loss = (
                float(outputs["loss"]) * trainer.accumulate_grad_batches
            )  # which Lightning has divided
            trainer.logger.log_metrics({"step_loss": loss}, trainer.global_step)  # type: ignore[union-attr]

    def on_validation_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        """Stop the clock of training."""
        if module.device.type == "cuda":
            torch.cuda.synchronize()  # steps that the card has still to do are training, too
        self._trained_s = perf_counter() - self._started_s

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Classifier) -> None:  # type: ignore[override]
        """Stop when accuracy no longer improves.

        Raises Diverged when the loss on held-out images is not finite.
        """
        module.refuse_diverged(together=True)  # first of all: it knows the step
        epoch = EpochRecord(
            epoch=trainer.current_epoch + 1,
            learning_rate=self._learning_rate,
            seconds=perf_counter() - self._started_s,
            images_per_s=self._images / self._trained_s,
            **module.collect_metrics(),
        )
        if not math.isfinite(epoch.val_loss):
            raise Diverged(
                f"training diverged, epoch {epoch.epoch}, the loss on held-out images is"
                f" {epoch.val_loss}, {LOWER_RATE_ADVICE}"
            )
        self.epochs = (*self.epochs, epoch)
        for logger in trainer.loggers:
            logger.log_metrics(
                {key: value for key, value in asdict(epoch).items() if key != "epoch"}, epoch.epoch
            )
        self.save_state(trainer, module, best=best_epoch(self.epochs) is epoch)
        if trainer.is_global_zero:
            write_text(self.folder / CURVE_FILE, curve_csv(self.epochs))
        trainer.should_stop = trainer.should_stop or self.is_out_of_patience(
            module.recipe.trainer.patience_epochs
        )

    def save_state(
        self, trainer: lightning.Trainer, module: Classifier, best: bool = False
    ) -> None:
        """Save the whole state, from which a run is resumed.

        A state that is no good never takes the place of a good one.

        It appears last: best weights of an epoch that is then done again do no harm, a state
        without its best weights or recipe would.

        Raises Diverged when a weight is not finite.
        """
        module.refuse_diverged(together=True)
        if not all(bool(torch.isfinite(weight).all()) for weight in module.network.parameters()):
            raise Diverged(
                f"training diverged, step {trainer.global_step}, a weight is not finite,"
                f" {LOWER_RATE_ADVICE}"
            )
        self._saved_step = trainer.global_step
        best_weights = self.folder / BEST_WEIGHTS_FILE if best and trainer.is_global_zero else None
        if not self._settled:
            self.save_first_state(trainer, module, best_weights)
            return
        if best_weights is not None:
            save_weights(module.evaluated_network, best_weights)
        trainer.save_checkpoint(str(self.folder / STATE_FILE))

    def save_first_state(
        self, trainer: lightning.Trainer, module: Classifier, best_weights: Path | None
    ) -> None:
        """Save aside while the folder may hold the results of another training, which go once this
        is written.
        """
        aside = self.folder / FIRST_STATE_FILE
        try:
            trainer.save_checkpoint(str(aside))
            self.settle(trainer, module)
            if best_weights is not None:
                save_weights(module.evaluated_network, best_weights)
            if trainer.is_global_zero:
                aside.replace(self.folder / STATE_FILE)
        finally:
            if trainer.is_global_zero:
                aside.unlink(missing_ok=True)

    def on_exception(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        exception: BaseException,
    ) -> None:
        """Remove curves of a training that saved nothing: they would lie beside another's."""
        if trainer.is_global_zero and not (self._settled or self.resumed):
            for logger in trainer.loggers:  # what it writes late would make its file anew
                with suppress(OSError):  # a full disk may be why it ends
                    logger.finalize("failed")
            for path in {*(self.folder / LOGS_FOLDER).glob(EVENTS_PATTERN)} - self._logs_before:
                path.unlink(missing_ok=True)

    def is_out_of_patience(self, patience_epochs: int) -> bool:
        """Return whether the best epoch lies too far back."""
        return (
            bool(patience_epochs and self.epochs)
            and self.epochs[-1].epoch - best_epoch(self.epochs).epoch >= patience_epochs
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the epochs of a resumed training. Raises BrokenFile when they are none."""
        try:
            self.epochs = tuple(EpochRecord(**epoch) for epoch in state_dict["epochs"])
        except (TypeError, KeyError) as error:
            raise BrokenFile(
                f"training state {self.folder / STATE_FILE}, its epochs are of another version,"
                f" {error}"
            ) from None


class TrainingProgressBar(lightning.Callback):
    """Batches done, images per second, time left and the last accuracy, on standard error.

    A bar, or now and then a line of a log.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._images, self._since_s, self._told_s, self._began_at = 0, 0.0, 0.0, 0

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Prepare for the epochs that are left."""
        self._task = self._progress.add_task(
            "training", total=int(trainer.estimated_stepping_batches), completed=trainer.global_step
        )
        self._since_s = self._told_s = perf_counter()
        self._began_at = trainer.global_step
        self._progress.start()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs: Any,
        batch: ImageBatch,
        batch_number: int,
    ) -> None:
        """Count the batch, and log the loss every few steps."""
        self._images += len(batch) * trainer.world_size
        speed = self._images / max(1e-9, perf_counter() - self._since_s)
        done = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, {speed:.0f} images/s"
        last = (
            f", held-out {self._records.epochs[-1].val_accuracy:.2%}"
            if self._records.epochs
            else ""
        )
        self._progress.update(self._task, completed=trainer.global_step, description=done + last)

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        """Write what is new, after Records has added its epoch."""
        now, done = perf_counter(), trainer.global_step - self._began_at
        if not self._progress.disable or now - self._told_s < SECONDS_BETWEEN_LINES or not done:
            return
        self._told_s, epoch = now, self._records.epochs[-1]
        left_s = (
            (now - self._since_s)
            / done
            * (int(trainer.estimated_stepping_batches) - trainer.global_step)
        )
        said = (
            f"held-out {epoch.val_accuracy:.2%}, loss {epoch.train_loss:.4f},"
            f" {epoch.images_per_s:.0f} images/s, {timedelta(seconds=round(left_s))} left"
        )
        print(
            f"nnstretch: epoch {epoch.epoch}/{trainer.max_epochs}, {said}",
            file=sys.stderr,
            flush=True,
        )

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Remove the progress bar."""
        self._progress.stop()

    def on_exception(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        exception: BaseException,
    ) -> None:
        """Remove the progress bar."""
        self._progress.stop()
