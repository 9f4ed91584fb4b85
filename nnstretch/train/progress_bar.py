"""The progress of a training on standard error."""

from __future__ import annotations

import sys
from datetime import timedelta
from time import perf_counter
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from nnstretch.train.callbacks import Records
from nnstretch.train.data.batches import ImageBatch

SECONDS_BETWEEN_LINES = 60.0
"""Interval of the lines that take the place of a bar where there is no terminal."""


class TrainingProgressBar(Callback):
    """A bar on a terminal, elsewhere a line of a log now and then."""

    def __init__(self, records: Records) -> None:
        self._records = records
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._images = 0
        self._started_s = 0.0
        self._printed_s = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Show the bar."""
        steps = int(trainer.estimated_stepping_batches)
        self._first_step = trainer.global_step
        self._task = self._progress.add_task("training", total=steps, completed=self._first_step)
        self._started_s = perf_counter()
        self._printed_s = self._started_s
        self._progress.start()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: ImageBatch,
        batch_idx: int,
    ) -> None:
        """Move the bar, and show images per second and the last accuracy."""
        self._images += len(batch) * trainer.world_size
        speed = self._images / max(1e-9, perf_counter() - self._started_s)
        text = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, {speed:.0f} images/s"
        if self._records.epochs:
            text += f", held-out {self._records.epochs[-1].val_accuracy:.2%}"
        self._progress.update(self._task, completed=trainer.global_step, description=text)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Print the epoch where there is no bar, after Records has added it."""
        now_s = perf_counter()
        steps = trainer.global_step - self._first_step
        is_too_early = now_s - self._printed_s < SECONDS_BETWEEN_LINES
        if not self._progress.disable or is_too_early or not steps:
            return
        self._printed_s = now_s
        epoch = self._records.epochs[-1]
        remaining_steps = int(trainer.estimated_stepping_batches) - trainer.global_step
        remaining_s = (now_s - self._started_s) / steps * remaining_steps
        print(
            f"nnstretch: epoch {epoch.epoch}/{trainer.max_epochs},"
            f" held-out {epoch.val_accuracy:.2%}, loss {epoch.train_loss:.4f},"
            f" {epoch.images_per_s:.0f} images/s, {timedelta(seconds=round(remaining_s))} left",
            file=sys.stderr,
            flush=True,
        )

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Remove the bar."""
        self._progress.stop()

    def on_exception(
        self, trainer: Trainer, module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the bar."""
        self._progress.stop()
