"""Optimizers, the learning rate, and the running average of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nnstretch.train.recipe import AverageSettings, OptimizerSettings


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the share of the peak: linear up to it, then half a cosine down to zero."""
    rising_steps = max(1.0, warmup * steps)
    if step + 1 < rising_steps:
        return (step + 1) / rising_steps
    progress = (step - rising_steps + 1) / max(1.0, steps - rising_steps + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def is_warming_up(step: int, steps: int, warmup: float) -> bool:
    """Return whether a step belongs to the warm-up."""
    return step + 1 < max(1.0, warmup * steps)


def make_optimizer(
    module: nn.Module, optimizer: OptimizerSettings, precision: str = "fp32"
) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe, for the precision that this machine computes in."""
    # A fused step may unscale gradients within itself, too late to clip them: in mixed precision
    # Lightning clips for no such optimizer.
    fused = None if precision != "fp32" and optimizer.clip_norm else True
    groups = weight_decay_groups(module, optimizer)
    lr = optimizer.lr
    if optimizer.name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, fused=fused)
    if optimizer.name == "lamb":
        from timm.optim.lamb import Lamb

        # Lightning clips, by optimizer.clip_norm.
        return Lamb(groups, lr=lr, max_grad_norm=None)
    momentum = optimizer.momentum
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused)


def weight_decay_groups(module: nn.Module, optimizer: OptimizerSettings) -> list[dict[str, Any]]:
    """Return the trained weights in groups with and without decay; an empty group is left out."""
    decayed: list[Tensor] = []
    undecayed: list[Tensor] = []
    for weight in module.parameters():
        if weight.requires_grad:
            decays = optimizer.decay_all or weight.ndim > 1
            (decayed if decays else undecayed).append(weight)
    groups: list[dict[str, Any]] = []
    if decayed:
        groups.append({"params": decayed, "weight_decay": optimizer.weight_decay})
    if undecayed:
        groups.append({"params": undecayed, "weight_decay": 0.0})
    return groups


def match_memory_layout(weight: Tensor, value: Any) -> Any:
    """Return a tensor in the memory order of `weight`; anything of another shape as it is."""
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        return value
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def match_resumed_state(scheduler: torch.optim.lr_scheduler.LambdaLR) -> None:
    """Match resumed momenta to their weights' layout, and rates to a schedule that may be new."""
    optimizer = scheduler.optimizer
    for weight, state in optimizer.state.items():
        # Fused steps need one layout.
        state |= {key: match_memory_layout(weight, value) for key, value in state.items()}
    factors = scheduler.lr_lambdas
    for group, lr, factor in zip(optimizer.param_groups, scheduler.base_lrs, factors, strict=True):
        group["lr"] = lr * factor(scheduler.last_epoch)


def average_decay(done: int, rising: bool, average: AverageSettings) -> float | None:
    """Return the share of the average that an update keeps; None between updates.

    0 while the learning rate rises (as pycls has it) and up to the first update, then at most
    (1 + n) / (10 + n) at the n-th (as TensorFlow has it), so that short runs leave their start.
    """
    updates, between = divmod(done, average.every_steps)
    if updates and between:
        return None
    return 0.0 if rising or not updates else min(average.decay, (1 + updates) / (10 + updates))


@dataclass
class WeightAverage:
    """A running average of a network's weights and statistics, in a copy of the network.

    Valid until one of them is moved to a device.
    """

    average: nn.Module
    network: nn.Module

    def __post_init__(self) -> None:
        pairs = zip(self.average.parameters(), self.network.parameters(), strict=True)
        self.weights = [(average.detach(), latest.detach()) for average, latest in pairs]
        self.buffers: list[tuple[nn.Module, nn.Module, str]] = []
        """Both modules that have a saved buffer of a name; what it is may be assigned anew."""
        modules = zip(self.average.modules(), self.network.modules(), strict=True)
        for averages, moving in modules:
            for name, _ in moving.named_buffers(recurse=False):
                if name not in moving._non_persistent_buffers_set:
                    self.buffers.append((averages, moving, name))

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move the average towards the network, keeping the share `decay`; copy what counts.

        What is not finite in a buffer, as in a mask, is copied, too.
        """
        pairs, counts = list(self.weights), list[tuple[Tensor, Tensor]]()
        masks: list[tuple[Tensor, Tensor]] = []
        for averages, moving, name in self.buffers:
            average, latest = getattr(averages, name), getattr(moving, name)
            if (average.shape, average.dtype) != (latest.shape, latest.dtype):
                setattr(averages, name, latest.clone())
                continue
            (pairs if average.is_floating_point() else counts).append((average, latest))
            if average.is_floating_point() and not isinstance(moving, _BatchNorm):
                masks.append((average, latest))
        # What a network holds under several names would be averaged several times.
        once = {(pair[0].data_ptr(), pair[0].shape): pair for pair in pairs}
        averages_of, latest_of = zip(*once.values(), strict=True)
        torch._foreach_lerp_(averages_of, latest_of, 1 - decay)
        for average, latest in masks:
            average.copy_(torch.where(torch.isfinite(average), average, latest))
        if counts:
            counts_of, latest_of = zip(*counts, strict=True)
            torch._foreach_copy_(counts_of, latest_of)
