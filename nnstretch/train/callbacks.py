"""Records of a training: its epochs, its state after each of them, and its best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import atomic_write, write_text
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.stretch.weights.weights_file import save_weights
from nnstretch.train.checkpoints import UnsavedBuffers
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.batches import ImageBatch
from nnstretch.train.training_folder import (
    BEST_WEIGHTS_FILE,
    CURVE_FILE,
    FIRST_BEST_WEIGHTS_FILE,
    FIRST_STATE_FILE,
    RECIPE_FILE,
    STATE_FILE,
    EpochRecord,
    begin_results,
    best_epoch,
    curve_csv,
    delete_files,
    event_files,
    origin_comments,
    resume_results,
)

STEPS_BETWEEN_LOSS_LOGS = 50


class Records(Callback):
    """Epochs of a training, written to its folder with its state and its best weights."""

    def __init__(
        self, folder: Path, origin: Mapping[str, str] | None = None, resumed: bool = False
    ) -> None:
        self.epochs: tuple[EpochRecord, ...] = ()
        self.folder = folder
        self.origin = dict(origin or {})
        self.resumed = resumed
        self._settled = False
        self._logs_before = event_files(folder)
        # Logs beside a recipe are another training's; without one they may be anybody's and stay.
        replaces_logs = not resumed and (folder / RECIPE_FILE).is_file()
        self._outdated_logs = self._logs_before if replaces_logs else frozenset()
        self._started_s = 0.0
        self._trained_s = 0.0
        self._images = 0
        self._learning_rate = 0.0
        self._saved_step = 0
        self._logged_step = 0
        self._unsaved = UnsavedBuffers()

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Check a resumed training. Raises BadInput when it cannot go on."""
        done = len(self.epochs)
        max_epochs = trainer.max_epochs or 0
        if done > max_epochs:
            raise BadInput(
                f"cannot resume {self.folder}, {done} epochs are done, trainer.max_epochs is"
                f" {max_epochs}, ask for as many or more"
            )
        if done and trainer.is_global_zero and not (self.folder / BEST_WEIGHTS_FILE).is_file():
            raise BadInput(
                f"cannot resume {self.folder}, {BEST_WEIGHTS_FILE} of epoch"
                f" {best_epoch(self.epochs).epoch} is gone, put it back"
            )

    def on_train_start(self, trainer: Trainer, module: Classifier) -> None:  # type: ignore[override]
        """Start the clocks, and take over the folder of a resumed training."""
        self._saved_step = trainer.global_step
        self._logged_step = trainer.global_step
        self._unsaved.refuse_changed(module.network)
        # An epoch that is resumed is not started again.
        self._started_s = perf_counter()
        # Only now has Lightning accepted the state.
        if self.resumed:
            self.settle(trainer, module)
        trainer.should_stop = self.is_out_of_patience(module.recipe.trainer.patience_epochs)

    def settle(self, trainer: Trainer, module: Classifier) -> None:
        """Make the folder this training's: delete outdated results, write recipe and plan."""
        self._settled = True
        if not trainer.is_global_zero:
            return
        plan = module.network.plan if isinstance(module.network, StretchedNetwork) else None
        if self.resumed:
            resume_results(self.folder, module.recipe, plan)
        else:
            head = origin_comments(self.origin)
            begin_results(self.folder, module.recipe, plan, head, self._outdated_logs)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Start the clock of an epoch."""
        self._started_s = perf_counter()
        self._images = 0

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: ImageBatch, batch_idx: int
    ) -> None:
        """Count images, and note the learning rate of the step."""
        self._images += len(batch) * trainer.world_size
        self._learning_rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, module: Classifier, outputs: Any, batch: ImageBatch, batch_idx: int
    ) -> None:
        """Save the state and log the loss, each every few steps."""
        step = trainer.global_step
        if batch_idx == 0:
            # Soon, so that no epoch is computed in vain.
            self._unsaved.refuse_changed(module.network)
        # Within a step of several micro-batches.
        if step == self._saved_step:
            return
        save_every = module.recipe.trainer.save_every_steps
        if save_every and step % save_every == 0 and not trainer.is_last_batch:
            self.save_state(trainer, module)
        is_logged_step = step % STEPS_BETWEEN_LOSS_LOGS == 0 and step > self._logged_step
        if trainer.loggers and is_logged_step:
            self._logged_step = step
            # Of the last micro-batch; Lightning has divided it by their number.
            loss = float(outputs["loss"]) * trainer.accumulate_grad_batches
            trainer.logger.log_metrics({"step_loss": loss}, step)  # type: ignore[union-attr]

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop the clock of training, once the card has finished its steps."""
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        self._trained_s = perf_counter() - self._started_s

    def on_train_epoch_end(self, trainer: Trainer, module: Classifier) -> None:  # type: ignore[override]
        """Record the epoch, save the state, and stop where accuracy no longer improves.

        Raises Diverged when a loss is not finite.
        """
        # Checked first of all, because this error names the step.
        module.refuse_diverged(together=True)
        epoch = EpochRecord(
            epoch=trainer.current_epoch + 1,
            learning_rate=self._learning_rate,
            seconds=perf_counter() - self._started_s,
            images_per_s=self._images / self._trained_s,
            **module.collect_metrics(),
        )
        if not math.isfinite(epoch.val_loss):
            fault = f"the loss on held-out images is {epoch.val_loss}"
            raise module.divergence_error(f"epoch {epoch.epoch}", fault)
        self.epochs = (*self.epochs, epoch)
        metrics = asdict(epoch)
        del metrics["epoch"]
        for logger in trainer.loggers:
            logger.log_metrics(metrics, epoch.epoch)
        self.save_state(trainer, module, best=best_epoch(self.epochs) is epoch)
        if trainer.is_global_zero:
            write_text(self.folder / CURVE_FILE, curve_csv(self.epochs))
        if self.is_out_of_patience(module.recipe.trainer.patience_epochs):
            trainer.should_stop = True

    def save_state(self, trainer: Trainer, module: Classifier, best: bool = False) -> None:
        """Save the state from which a run is resumed, and the best weights that belong to it.

        Raises Diverged when a loss or weight is not finite, BadInput when a buffer would be lost,
        and keeps the state before.
        """
        module.refuse_diverged(together=True)
        self._unsaved.refuse_changed(module.network)
        if not all(bool(torch.isfinite(weight).all()) for weight in module.network.parameters()):
            raise module.divergence_error(f"step {trainer.global_step}", "a weight is not finite")
        self._saved_step = trainer.global_step
        if not self._settled:
            self.save_first_state(trainer, module, best)
            return
        best_weights = self.folder / BEST_WEIGHTS_FILE if best else None
        write_state(trainer, module, self.folder / STATE_FILE, best_weights)

    def save_first_state(self, trainer: Trainer, module: Classifier, best: bool) -> None:
        """Save aside, and only then replace the results of another training in the folder."""
        state = self.folder / FIRST_STATE_FILE
        best_weights = self.folder / FIRST_BEST_WEIGHTS_FILE
        try:
            write_state(trainer, module, state, best_weights if best else None)
            self.settle(trainer, module)
            if trainer.is_global_zero:
                if best:
                    best_weights.replace(self.folder / BEST_WEIGHTS_FILE)
                state.replace(self.folder / STATE_FILE)
        finally:
            if trainer.is_global_zero:
                delete_files([state, best_weights])

    def on_exception(
        self, trainer: Trainer, module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the logs of a training that saved nothing: they would lie beside another's."""
        if not trainer.is_global_zero or self._settled or self.resumed:
            return
        # A logger that still holds lines would make its file anew; a full disk may be the reason.
        for logger in trainer.loggers:
            with suppress(OSError):
                logger.finalize("failed")
        delete_files(event_files(self.folder) - self._logs_before)

    def is_out_of_patience(self, patience_epochs: int) -> bool:
        """Return whether the best epoch lies too far back."""
        if not patience_epochs or not self.epochs:
            return False
        return self.epochs[-1].epoch - best_epoch(self.epochs).epoch >= patience_epochs

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the epochs of a resumed training. Raises BrokenFile when they are none."""
        try:
            self.epochs = tuple(EpochRecord(**epoch) for epoch in state_dict["epochs"])
        except (TypeError, KeyError) as error:
            raise BrokenFile(
                f"training state {self.folder / STATE_FILE}, its epochs are of another version,"
                f" {error}"
            ) from None


def write_state(
    trainer: Trainer, module: Classifier, state: Path, best_weights: Path | None
) -> None:
    """Write the state, and the best weights where a path is given: neither, where one fails.

    Killed between both, a training goes on from the state before, to the same best weights.
    """
    if not trainer.is_global_zero:
        # What is gathered from all processes goes into it; the first one writes.
        trainer.save_checkpoint(str(state))
        return
    with atomic_write(state) as aside:
        trainer.save_checkpoint(str(aside))
        if best_weights is not None:
            save_weights(module.evaluated_network, best_weights, module.image_task)
