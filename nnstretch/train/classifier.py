"""The Lightning module: any network that turns images into class scores, and how it learns."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.errors import BadInput
from nnstretch.train.recipe import Loss, Optimizer, Recipe
from nnstretch.train.weights import unfit

PREFIX = "network."


def scores(output: Any) -> Tensor:
    """Class scores; networks with auxiliary heads return a tuple that begins with them."""
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak: a straight line up to it, then half a cosine down to zero."""
    rising = max(1.0, warmup * steps)
    if step + 1 < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising + 1) / max(1.0, steps - rising + 1))))


def make_optimizer(module: nn.Module, optimizer: Optimizer) -> torch.optim.Optimizer:
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": optimizer.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if optimizer.name == "adamw":
        return torch.optim.AdamW(groups, lr=optimizer.lr, fused=True)
    return torch.optim.SGD(groups, lr=optimizer.lr, momentum=optimizer.momentum, nesterov=optimizer.momentum > 0, fused=True)


def training_loss(student: Tensor, labels: Tensor, teacher: Tensor | None, loss: Loss) -> Tensor:
    """Cross-entropy, mixed with the divergence from the teacher's softened opinion where there is one."""
    truth = functional.cross_entropy(student, labels, label_smoothing=loss.label_smoothing)
    if teacher is None:
        return truth
    softness = loss.temperature
    soft_student = functional.log_softmax(student / softness, dim=1)
    soft_teacher = functional.log_softmax(teacher / softness, dim=1)
    opinion = functional.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
    # Gradients of the softened term shrink with the square of the softness; the factor keeps the mix.
    return (1 - loss.distill) * truth + loss.distill * softness**2 * opinion


def laid_out_as(weight: Tensor, value: Any) -> Any:
    """The same numbers in the memory order of `weight`; what is not of its shape stays as it is."""
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        return value
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def takes_bf16(precision: str) -> bool:
    """`auto` is bf16 only where matrix units compute it: elsewhere it is emulated and slower than fp32."""
    if precision == "auto":
        return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
    return precision == "bf16"


class Classifier(LightningModule):
    """A network in training. The teacher is kept aside: it is neither trained nor saved."""

    def __init__(self, network: nn.Module, recipe: Recipe, teacher: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        self.bf16 = takes_bf16(recipe.trainer.precision)
        self._teacher = (teacher.eval(),) if teacher is not None else ()

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.network(images)).float()

    def on_train_start(self) -> None:
        """A fused step walks weights, gradients and momenta as raw memory, so resumed momenta must be laid out as their weights are."""
        for optimizer in self.trainer.optimizers:
            for weight, state in optimizer.state.items():
                state |= {key: laid_out_as(weight, value) for key, value in state.items()}

    def on_train_epoch_start(self) -> None:
        """Dropout and its like draw on the global generator; a resumed epoch must draw the same."""
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.current_epoch)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_number: int) -> Tensor:
        images, labels = batch
        images = images.contiguous(memory_format=torch.channels_last)
        with self.arithmetic():
            student = self(images)
            teacher = self.teacher_scores(images)
        loss = training_loss(student, labels, teacher, self.recipe.loss)
        if not torch.isfinite(loss):
            where = f"epoch {self.current_epoch + 1} batch {batch_number + 1}"
            raise BadInput(f"training diverged, {where}, loss is {float(loss)} at optimizer.lr {self.recipe.optimizer.lr}, lower it")
        self.log("train_loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def teacher_scores(self, images: Tensor) -> Tensor | None:
        with torch.no_grad():
            return scores(self._teacher[0](images)).float() if self._teacher else None

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_number: int) -> None:
        """In fp32, because that is the network which is exported."""
        images, labels = batch
        student = self(images)
        self.log("val_loss", functional.cross_entropy(student, labels), batch_size=len(labels))
        self.log("val_accuracy", (student.argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.network, self.recipe.optimizer)
        steps, warmup = int(self.trainer.estimated_stepping_batches), self.recipe.optimizer.warmup
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def arithmetic(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.bf16)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = {key.removeprefix(PREFIX): value for key, value in checkpoint["state_dict"].items()}
        if reason := unfit(self.network, saved):
            raise BadInput(f"cannot resume, the saved training is of another network, {reason}")
