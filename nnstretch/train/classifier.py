"""The Lightning module: any network that turns images into class scores, and how it learns."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from nnstretch.errors import BadInput, BrokenFile, Diverged
from nnstretch.stretch.weights.precise_bn import norms_with_statistics, precise_bn
from nnstretch.train.checkpoints import first_mismatch
from nnstretch.train.data.datamodule import (
    ImageBatch,
    no_readable_image_error,
    refuse_unreadable,
    report_skipped,
)
from nnstretch.train.data.dataset import Dataset, arrays_digest
from nnstretch.train.data.sampling_order import seed_global_generators
from nnstretch.train.data.transforms import augment_batch, normalize_images
from nnstretch.train.hardware import precision_name, tensor_memory_format
from nnstretch.train.losses import training_loss
from nnstretch.train.optimizers import (
    average_decay,
    is_warming_up,
    learning_rate_factor,
    make_optimizer,
    match_memory_layout,
    pair_tensors,
    update_average,
)
from nnstretch.train.recipe import AugmentSettings, Recipe
from nnstretch.train.sync_batchnorm import unsynchronized_norms
from nnstretch.train.teacher import DistillationTeacher, class_scores

NETWORK_PREFIX = "network."
LOSS_SUM_KEYS = ("train_loss.mean_value", "train_loss.weight")
"""In a saved state: of an epoch that was interrupted."""
STEPS_BETWEEN_CHECKS = 50
"""Asking an accelerator whether a loss is finite makes it wait, so it is asked now and then."""


def make_mixer(augment: AugmentSettings, classes: int) -> Any:
    """Return mixup and CutMix of torchvision, or None."""
    if not (augment.mixup or augment.cutmix):
        return None
    from torchvision.transforms import v2

    ways: list[Any] = [v2.MixUp(alpha=augment.mixup, num_classes=classes)] if augment.mixup else []
    ways += [v2.CutMix(alpha=augment.cutmix, num_classes=classes)] if augment.cutmix else []
    return ways[0] if len(ways) == 1 else v2.RandomChoice(ways)


class Classifier(LightningModule):
    """A network in training. The teacher is kept aside: it is neither trained nor saved."""

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
        self.average = (
            copy.deepcopy(network).requires_grad_(False).eval() if recipe.average.decay else None
        )
        # Metrics that look at what they are given wait for the card; a loss that is not a number
        # must show besides, not be left out.
        self.train_loss = MeanMetric(nan_strategy="disable")
        self.train_loss.persistent(
            True
        )  # so that an epoch which was interrupted still has the loss of all its steps
        self.val_loss = MeanMetric(nan_strategy="disable")
        classes = len(dataset.classes)
        self.top1, self.top5 = (
            MulticlassAccuracy(classes, top_k=min(k, classes), average="micro", validate_args=False)
            for k in (1, 5)
        )
        self.mixer = make_mixer(recipe.augment, classes)
        # Kept in tuples: what is aside of the module's own tree is not saved.
        self._teacher = (teacher,) if teacher is not None else ()
        self._taught_by = weights_digest(teacher.network) if teacher is not None else ""
        self._compared = (
            arrays_digest(*(index.numpy() for index in teacher.compared_channels(network)))
            if teacher is not None
            else ""
        )
        self._told: set[str] = set()
        self._judged = 0
        self._compiled = (torch.compile(network),) if recipe.trainer.compile else ()

    @property
    def evaluated_network(self) -> nn.Module:
        """Return the network that is validated and kept: the running average where there is one."""
        return self.average if self.average is not None else self.network

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, `[image, class]`."""
        return class_scores(self.network(images)).float()

    def on_fit_start(self) -> None:
        """Move the teacher to the device."""
        if (
            self.recipe.trainer.threads
        ):  # of several processes Lightning gives each its share of the cores
            torch.set_num_threads(self.recipe.trainer.threads)
        for teacher in self._teacher:
            teacher.to(self.device, tensor_memory_format(self.recipe.trainer))

    def on_train_start(self) -> None:
        """Lay resumed momenta out as their weights are: a fused step walks all of them as raw
        memory.
        """
        self.first_bad = torch.full((), torch.inf, device=self.device)
        self._pairs = pair_tensors(self.average, self.network) if self.average is not None else []
        for optimizer in self.trainer.optimizers:
            for weight, state in optimizer.state.items():
                state |= {key: match_memory_layout(weight, value) for key, value in state.items()}

    def on_train_batch_start(self, batch: ImageBatch, batch_number: int) -> None:
        """Seed the global generator, on which dropout, mixing and their like draw.

        A resumed run must draw the same, two processes not.
        """
        seed_global_generators(
            self.device, self.recipe.seed, self.current_epoch, batch_number, self.global_rank
        )

    def training_step(self, batch: ImageBatch, batch_number: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = self.prepare_training_images(batch), batch.labels
        if self.mixer is not None:
            images, labels = self.mixer(images, labels)
        loss = self.loss(self.to_memory_format(images), labels)
        self.train_loss.update(loss.detach().expand(len(images)))
        self.first_bad = torch.where(
            torch.isfinite(loss.detach()),
            self.first_bad,
            self.first_bad.clamp(max=self.global_step),
        )
        if loss.device.type == "cpu" or batch_number % STEPS_BETWEEN_CHECKS == 0:
            self.refuse_diverged()
        return loss

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images and labels, with the teacher's parts."""
        settings, network = self.recipe.loss, self._compiled[0] if self._compiled else self.network
        if not self._teacher:
            return training_loss(class_scores(network(images)).float(), labels, None, settings)
        seen = self._teacher[0].compare(network, images)  # type: ignore[arg-type]
        loss = training_loss(seen.student.float(), labels, seen.teacher.float(), settings)
        return loss if seen.distance is None else loss + settings.features * seen.distance

    def to_memory_format(self, images: Tensor) -> Tensor:
        """Return images in the recipe's memory format."""
        return images.contiguous(memory_format=tensor_memory_format(self.recipe.trainer))

    def refuse_diverged(self, together: bool = False) -> None:
        """Refuse to save anything that did not come from finite losses. Raises Diverged.

        `together`, where all processes ask, for all.
        """
        if together and self.trainer.world_size > 1:
            self.first_bad = self.all_gather(self.first_bad).min()  # type: ignore[union-attr]
        if torch.isfinite(self.first_bad):
            step, lr = int(self.first_bad) + 1, self.recipe.optimizer.lr
            defect = f"step {step} in epoch {self.current_epoch + 1}, the loss is not finite"
            raise Diverged(
                f"training diverged, {defect}, lower optimizer.lr {lr} and begin anew in another"
                " folder"
            )

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Make a step of the weights, and of their average."""
        super().optimizer_step(*args, **kwargs)
        if self.average is None:
            return
        rising = is_warming_up(
            self.global_step,
            int(self.trainer.estimated_stepping_batches),
            self.recipe.optimizer.warmup,
        )
        kept = average_decay(self.global_step + 1, rising, self.recipe.average)
        if kept is not None:
            update_average(self._pairs, kept)

    def on_validation_start(self) -> None:
        """Take statistics of batch norms over many images, in place of running ones (precise batch
        norm, as pycls does).
        """
        images = self.recipe.trainer.precise_norm_images
        if not images or not norms_with_statistics(self.evaluated_network):
            return
        batches = self.trainer.datamodule.norm_batches(self.current_epoch, images)  # type: ignore[attr-defined]
        with (
            torch.autocast(self.device.type, enabled=False),
            unsynchronized_norms(self.evaluated_network),
        ):
            precise_bn(
                self.evaluated_network,
                (self.prepare_training_images(batch.to(self.device)) for batch in batches),
            )

    def report_unreadable(self, batch: ImageBatch) -> None:
        """Refuse unreadable images, or say once for every image that it is skipped."""
        refuse_unreadable(batch, self.recipe.data)
        report_skipped(problem for problem in batch.problems if problem not in self._told)
        self._told.update(batch.problems)

    def prepare_training_images(self, batch: ImageBatch) -> Tensor:
        """Return a batch's images on the device, augmented."""
        self.report_unreadable(batch)
        return self.to_memory_format(
            augment_batch(
                batch.images, batch.selection, self.recipe.seed, self.recipe.augment, self.dataset
            )
        )

    def validation_step(self, batch: ImageBatch, batch_number: int) -> None:
        """Validate in fp32, because that is the network which is exported."""
        self.report_unreadable(batch)
        if not len(batch):
            return
        self._judged += len(batch)
        with torch.autocast(self.device.type, enabled=False):
            student = class_scores(
                self.evaluated_network(
                    self.to_memory_format(normalize_images(batch.images, self.dataset))
                )
            ).float()
        self.val_loss.update(functional.cross_entropy(student, batch.labels, reduction="none"))
        self.top1.update(student, batch.labels)
        self.top5.update(student, batch.labels)

    def collect_metrics(self) -> dict[str, float]:
        """Return the epoch's losses and accuracies over all processes; the next epoch begins anew.

        Raises BadInput when no held-out image could be read.
        """
        metrics = {
            "train_loss": self.train_loss,
            "val_loss": self.val_loss,
            "val_accuracy": self.top1,
            "val_top5": self.top5,
        }
        numbers = {name: float(metric.compute()) for name, metric in metrics.items()}
        judged, self._judged = self._judged, 0
        if math.isnan(numbers["val_loss"]) and not judged:
            raise no_readable_image_error(self.recipe.data)
        for metric in metrics.values():
            metric.reset()
        return numbers

    def configure_optimizers(self) -> Any:
        """Return optimizer and learning-rate schedule."""
        optimizer = make_optimizer(
            self.network, self.recipe.optimizer, self.recipe.trainer.precision
        )
        steps, warmup = int(self.trainer.estimated_stepping_batches), self.recipe.optimizer.warmup
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, steps, warmup)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add up sums over processes, as the first process writes for all."""
        checkpoint |= {
            "precision": precision_name(self.trainer.precision),
            "taught_by": self._taught_by,
            "compared": self._compared,
        }
        if self.trainer.world_size > 1:
            for key in LOSS_SUM_KEYS:
                checkpoint["state_dict"][key] = self.all_gather(checkpoint["state_dict"][key]).sum(  # type: ignore[union-attr]
                    0
                )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that saved weights fit. Raises BadInput when they do not."""
        if (before := checkpoint.get("precision")) != (
            now := precision_name(self.trainer.precision)
        ):
            if before is None:
                raise BrokenFile(
                    "training state of another version, it says not which precision it began in,"
                    " begin anew in another folder"
                )
            raise BadInput(
                f"cannot resume, it began in {before}, trainer.precision"
                f" {self.recipe.trainer.precision} is {now} here, ask for {before}"
            )
        if checkpoint.get("taught_by", self._taught_by) != self._taught_by:
            raise BadInput(
                "cannot resume, the weights to distil from are others than before, give the same"
                " --teacher or --weights"
            )
        if checkpoint.get("compared", self._compared) != self._compared:
            raise BadInput(
                "cannot resume, features would be compared with other channels of the original than"
                " before, give the same --weights"
            )
        if self.global_rank:
            for key in LOSS_SUM_KEYS:
                checkpoint["state_dict"][key] = torch.zeros_like(checkpoint["state_dict"][key])
        saved = {
            key.removeprefix(NETWORK_PREFIX): value
            for key, value in checkpoint["state_dict"].items()
            if key.startswith(NETWORK_PREFIX)
        }
        if reason := first_mismatch(self.network, saved):
            raise BadInput(f"cannot resume, the saved training is of another network, {reason}")


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's weights."""
    state = module.state_dict()
    return arrays_digest(
        *(
            state[key].detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            for key in sorted(state)
        )
    )
