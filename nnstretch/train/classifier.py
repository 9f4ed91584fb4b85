"""The Lightning module: a network that turns images into class scores, and how it is trained."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from nnstretch.errors import BadInput, Diverged
from nnstretch.stretch.weights.precise_bn import norms_with_statistics, precise_bn
from nnstretch.stretch.weights.weights_file import first_mismatch
from nnstretch.train.checkpoints import (
    check_same_precision,
    check_same_scores,
    check_same_teacher,
    probe_scores,
    saved_scores,
    weights_digest,
)
from nnstretch.train.data.batches import (
    ImageBatch,
    image_task_of,
    no_readable_image_error,
    refuse_unreadable,
    report_skipped,
)
from nnstretch.train.data.dataset import Dataset, arrays_digest
from nnstretch.train.data.sampling_order import seed_global_generators, seed_library_generators
from nnstretch.train.data.transforms import augment_batch, make_mixer, normalize_images
from nnstretch.train.hardware import precision_name, tensor_memory_format
from nnstretch.train.losses import DistillationTeacher, class_scores, network_scores, training_loss
from nnstretch.train.optimizers import (
    WeightAverage,
    average_decay,
    is_warming_up,
    learning_rate_factor,
    make_optimizer,
    match_resumed_state,
)
from nnstretch.train.recipe import Recipe
from nnstretch.train.sync_batchnorm import unsynchronized_norms

NETWORK_PREFIX = "network."
LOSS_SUM_KEYS = ("train_loss.mean_value", "train_loss.weight")
"""Sums of an interrupted epoch in a saved state."""
STEPS_BETWEEN_CHECKS = 50
"""Interval of checks on an accelerator, which waits to tell whether a loss is finite."""


class TopKAccuracy(MulticlassAccuracy):
    """A top-k accuracy that does not check its inputs, as that would wait for the card."""

    def __init__(self, classes: int, top_k: int) -> None:
        super().__init__(classes, min(top_k, classes), "micro", validate_args=False)

    def compute(self) -> Tensor:
        """Return the share of images in double: in float32, equal differences are not equal."""
        right, wrong = int(self.tp.sum()), int(self.fn.sum())  # type: ignore[union-attr]
        return torch.tensor(right / max(1, right + wrong), dtype=torch.float64)


class Classifier(LightningModule):
    """A network in training."""

    def __init__(
        self,
        network: nn.Module,
        recipe: Recipe,
        dataset: Dataset,
        teacher: DistillationTeacher | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        self.dataset = dataset
        self.memory_format = tensor_memory_format(recipe.trainer, network)
        self.average: nn.Module | None = None
        if recipe.average.decay:
            self.average = copy.deepcopy(network).requires_grad_(False).eval()
        # A loss that is not a number must show, not be left out.
        self.train_loss = MeanMetric(nan_strategy="disable")
        # Saved, so that an epoch that was interrupted has the loss of all its steps.
        self.train_loss.persistent(True)
        self.val_loss = MeanMetric(nan_strategy="disable")
        self.image_task = image_task_of(dataset, recipe.data)
        self.top1 = TopKAccuracy(len(dataset.classes), 1)
        self.top5 = TopKAccuracy(len(dataset.classes), 5)
        self.mixer = make_mixer(recipe.augment, len(dataset.classes))
        # In tuples, because a module that is an attribute would be trained and saved.
        self._teacher = (teacher,) if teacher is not None else ()
        self._compiled = (torch.compile(network),) if recipe.trainer.compile else ()
        self._teacher_digest = ""
        self._compared_digest = ""
        if teacher is not None:
            channels = teacher.compared_channels(network)
            self._teacher_digest = weights_digest(teacher.network)
            self._compared_digest = arrays_digest(*(index.numpy() for index in channels))
        self._scores = partial(network_scores, classes=len(dataset.classes), data=recipe.data.name)
        self._reported: set[str] = set()
        self._validated_images = 0
        self._saved_scores: list[float] = []
        """Of a state that is resumed."""

    @property
    def evaluated_network(self) -> nn.Module:
        """Return the network that is validated and kept: the running average where there is one."""
        return self.average if self.average is not None else self.network

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, `[image, class]`."""
        return class_scores(self.network(images)).float()

    def on_fit_start(self) -> None:
        """Set the number of threads, and move the teacher to the device."""
        # Of several processes Lightning gives each its share of the cores.
        if self.recipe.trainer.threads:
            torch.set_num_threads(self.recipe.trainer.threads)
        for teacher in self._teacher:
            teacher.to(self.device, self.memory_format)
        if self._saved_scores:
            check_same_scores(self._saved_scores, self.probe_scores())

    def probe_scores(self) -> list[float]:
        """Return the network's scores of one drawn image, which its code and weights decide."""
        return probe_scores(self.network, self.recipe.data.validation_px)

    def on_train_start(self) -> None:
        """Match what was resumed to this machine's layout and to this recipe's schedule."""
        self.first_bad = torch.full((), torch.inf, device=self.device)
        if self.average is not None:
            self._average = WeightAverage(self.average, self.network)
        for config in self.trainer.lr_scheduler_configs:
            match_resumed_state(config.scheduler)  # type: ignore[arg-type]

    def on_train_batch_start(self, batch: ImageBatch, batch_number: int) -> None:
        """Seed dropout and mixing: alike in a resumed run, differently in each process."""
        numbers = self.recipe.seed, self.current_epoch, batch_number, self.global_rank
        seed_global_generators(self.device, *numbers)
        seed_library_generators(*numbers)

    def training_step(self, batch: ImageBatch, batch_number: int) -> Tensor:
        """Return the loss of a batch."""
        images = self.prepare_training_images(batch)
        labels = batch.labels
        if self.mixer is not None:
            images, labels = self.mixer(images, labels)
        loss = self.loss(self.to_memory_format(images), labels)
        self.train_loss.update(loss.detach().expand(len(images)))
        first_bad = self.first_bad.clamp(max=self.global_step)
        self.first_bad = torch.where(torch.isfinite(loss.detach()), self.first_bad, first_bad)
        if loss.device.type == "cpu" or batch_number % STEPS_BETWEEN_CHECKS == 0:
            self.refuse_diverged()
        return loss

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images and labels, with the teacher's parts."""
        settings = self.recipe.loss
        network = self._compiled[0] if self._compiled else self.network
        score = partial(self._scores, self.network, compiled=network)
        if not self._teacher:
            return training_loss(score(images).float(), labels, None, settings)
        # Features are a branched network's, which is called within.
        student = network if settings.features > 0 else score
        comparison = self._teacher[0].compare(student, images)
        scores = comparison.student.float()
        loss = training_loss(scores, labels, comparison.teacher.float(), settings)
        if comparison.distance is None:
            return loss
        return loss + settings.features * comparison.distance

    def to_memory_format(self, images: Tensor) -> Tensor:
        """Return images in the recipe's memory format."""
        return images.contiguous(memory_format=self.memory_format)

    def refuse_diverged(self, together: bool = False) -> None:
        """Check the losses, of all processes if `together`. Raises Diverged for one not finite."""
        if together and self.trainer.world_size > 1:
            self.first_bad = self.all_gather(self.first_bad).min()  # type: ignore[union-attr]
        if torch.isfinite(self.first_bad):
            where = f"step {int(self.first_bad) + 1} in epoch {self.current_epoch + 1}"
            raise self.divergence_error(where, "the loss is not finite")

    def divergence_error(self, where: str, fault: str) -> Diverged:
        """Return the error of a training that diverged."""
        return Diverged(
            f"training diverged, {where}, {fault}, lower optimizer.lr {self.recipe.optimizer.lr}"
            " and begin anew in another folder"
        )

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, and their running average."""
        super().optimizer_step(*args, **kwargs)
        if self.average is None:
            return
        steps = int(self.trainer.estimated_stepping_batches)
        rising = is_warming_up(self.global_step, steps, self.recipe.optimizer.warmup)
        decay = average_decay(self.global_step + 1, rising, self.recipe.average)
        if decay is not None:
            self._average.update(decay)

    def on_validation_start(self) -> None:
        """Take the statistics of batch norms over many images (precise batch norm of pycls)."""
        network = self.evaluated_network
        images = self.recipe.trainer.precise_norm_images
        if not images or not norms_with_statistics(network):
            return
        batches = self.trainer.datamodule.norm_batches(self.current_epoch, images)  # type: ignore[attr-defined]
        prepared = (self.prepare_training_images(batch.to(self.device)) for batch in batches)
        with torch.autocast(self.device.type, enabled=False), unsynchronized_norms(network):
            precise_bn(network, prepared)

    def report_unreadable(self, batch: ImageBatch) -> None:
        """Refuse unreadable images, or print once for each that it is skipped."""
        refuse_unreadable(batch, self.recipe.data)
        report_skipped(problem for problem in batch.problems if problem not in self._reported)
        self._reported.update(batch.problems)

    def prepare_training_images(self, batch: ImageBatch) -> Tensor:
        """Return a batch's images on the device, augmented."""
        self.report_unreadable(batch)
        images = augment_batch(
            batch.images, batch.selection, self.recipe.seed, self.recipe.augment, self.dataset
        )
        return self.to_memory_format(images)

    def validation_step(self, batch: ImageBatch, batch_number: int) -> None:
        """Validate in fp32, because that is the network which is exported."""
        self.report_unreadable(batch)
        if not len(batch):
            return
        self._validated_images += len(batch)
        images = self.to_memory_format(normalize_images(batch.images, self.dataset))
        with torch.autocast(self.device.type, enabled=False):
            scores = self._scores(self.evaluated_network, images).float()
        self.val_loss.update(functional.cross_entropy(scores, batch.labels, reduction="none"))
        self.top1.update(scores, batch.labels)
        self.top5.update(scores, batch.labels)

    def collect_metrics(self) -> dict[str, float]:
        """Return the epoch's losses and accuracies over all processes, and reset them.

        Raises BadInput when no held-out image could be read.
        """
        losses = {"train_loss": self.train_loss, "val_loss": self.val_loss}
        metrics = losses | {"val_accuracy": self.top1, "val_top5": self.top5}
        numbers = {name: float(metric.compute()) for name, metric in metrics.items()}
        validated_images, self._validated_images = self._validated_images, 0
        if math.isnan(numbers["val_loss"]) and not validated_images:
            raise no_readable_image_error(self.recipe.data)
        for metric in metrics.values():
            metric.reset()
        return numbers

    def configure_optimizers(self) -> Any:
        """Return optimizer and learning-rate schedule."""
        settings = self.recipe.optimizer
        optimizer = make_optimizer(self.network, settings, precision_name(self.trainer.precision))
        steps = int(self.trainer.estimated_stepping_batches)
        # A lambda, because a callable object would become part of the saved state.
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, steps, settings.warmup)
        )
        schedule = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add sums over all processes, for which the first one writes, and what must stay equal."""
        checkpoint |= {
            "precision": precision_name(self.trainer.precision),
            "taught_by": self._teacher_digest,
            "compared": self._compared_digest,
            "scores": self.probe_scores(),
        }
        if self.trainer.world_size > 1:
            state = checkpoint["state_dict"]
            for key in LOSS_SUM_KEYS:
                state[key] = self.all_gather(state[key]).sum(0)  # type: ignore[union-attr]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a saved state fits. Raises BadInput when it does not."""
        now, asked = precision_name(self.trainer.precision), self.recipe.trainer.precision
        check_same_precision(checkpoint.get("precision"), now, asked)
        check_same_teacher(checkpoint, self._teacher_digest, self._compared_digest)
        state = checkpoint["state_dict"]
        if self.global_rank:
            for key in LOSS_SUM_KEYS:
                state[key] = torch.zeros_like(state[key])
        keys = [key for key in state if key.startswith(NETWORK_PREFIX)]
        weights = {key.removeprefix(NETWORK_PREFIX): state[key] for key in keys}
        if reason := first_mismatch(self.network, weights):
            raise BadInput(f"cannot resume, the saved training is of another network, {reason}")
        self._saved_scores = saved_scores(checkpoint)
