"""What a training run leaves behind after each epoch, and the bar that shows how far it is.

Both are Lightning callbacks: they observe the loop and change nothing in it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import pytorch_lightning as lightning
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the training images."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean over the training images, while the weights move."""
    val_loss: float
    """Plain cross-entropy on the held-out images."""
    val_accuracy: float
    """Share of held-out images, from 0 to 1."""
    learning_rate: float
    """Of its last step."""
    seconds: float
    """Training and validation."""
    images_per_s: float
    """Training alone."""


class Records(lightning.Callback):
    """Adds an Epoch and saves the whole state at the end of each one."""

    def __init__(self, state_file: str) -> None:
        self.epochs: tuple[Epoch, ...] = ()
        self._state_file = state_file
        self._started_s = self._trained_s = 0.0
        self._images, self._learning_rate = 0, 0.0

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._started_s, self._images = perf_counter(), 0

    def on_train_batch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule, batch: Any, batch_number: int) -> None:
        self._images += len(batch[1])
        self._learning_rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._trained_s = perf_counter() - self._started_s

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        numbers = {key: float(trainer.callback_metrics[key]) for key in ("train_loss", "val_loss", "val_accuracy")}
        epoch = Epoch(
            epoch=trainer.current_epoch + 1,
            learning_rate=self._learning_rate,
            seconds=perf_counter() - self._started_s,
            images_per_s=self._images / self._trained_s,
            **numbers,
        )
        self.epochs = (*self.epochs, epoch)
        trainer.save_checkpoint(self._state_file)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = tuple(Epoch(**epoch) for epoch in state_dict["epochs"])


class Bar(lightning.Callback):
    """Batches done, time left and the last accuracy, on standard error."""

    def __init__(self, records: Records) -> None:
        self._records = records
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._task = self._progress.add_task("training", total=int(trainer.estimated_stepping_batches), completed=trainer.global_step)
        self._progress.start()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        done = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        best = f", held-out {self._records.epochs[-1].val_accuracy:.2%}" if self._records.epochs else ""
        self._progress.update(self._task, completed=trainer.global_step, description=done + best)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._progress.stop()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception: BaseException) -> None:
        self._progress.stop()
