"""Optimisers, the learning rate, and the running average of weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nnstretch.train.recipe import AverageSettings, OptimizerSettings


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return share of the peak: a straight line up to it, then half a cosine down to zero."""
    rising = max(1.0, warmup * steps)
    if step + 1 < rising:
        return (step + 1) / rising
    return 0.5 * (
        1 + math.cos(math.pi * min(1.0, (step - rising + 1) / max(1.0, steps - rising + 1)))
    )


def is_warming_up(step: int, steps: int, warmup: float) -> bool:
    """Return whether a step belongs to the warm-up."""
    return step + 1 < max(1.0, warmup * steps)


def make_optimizer(
    module: nn.Module, optimizer: OptimizerSettings, precision: str = "fp32"
) -> torch.optim.Optimizer:
    """Build the optimizer; a fused one unscales fp16 gradients within its step, too late to clip
    them.

    There, with `clip_norm`, another.
    """
    fused = None if precision == "fp16" and optimizer.clip_norm else True
    trained = [p for p in module.parameters() if p.requires_grad]
    few = [] if optimizer.decay_all else [p for p in trained if p.ndim <= 1]
    kept = {id(p) for p in few}
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in trained if id(p) not in kept],
            "weight_decay": optimizer.weight_decay,
        },
        {"params": few, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if optimizer.name == "adamw":
        return torch.optim.AdamW(groups, lr=optimizer.lr, fused=fused)
    if optimizer.name == "lamb":
        from timm.optim.lamb import Lamb

        return Lamb(
            groups, lr=optimizer.lr, max_grad_norm=None
        )  # optimizer.clip_norm clips, or nobody
    return torch.optim.SGD(
        groups,
        lr=optimizer.lr,
        momentum=optimizer.momentum,
        nesterov=optimizer.momentum > 0,
        fused=fused,
    )


def match_memory_layout(weight: Tensor, value: Any) -> Any:
    """Return the numbers in the memory order of `weight`; other shapes stay as they are."""
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        return value
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def average_decay(done: int, rising: bool, average: AverageSettings) -> float | None:
    """Return share of the running average that is kept after `done` steps; None where it stays as
    it is.

    A copy while the learning rate rises, as pycls does, and up to the first update. At the n-th
    update at most (1 + n) / (10 + n), as TensorFlow's ExponentialMovingAverage has it with
    `num_updates`: a decay that suits a long run would keep a short one at its start.
    """
    updates, between = divmod(done, average.every_steps)
    if updates and between:
        return None
    return 0.0 if rising or not updates else min(average.decay, (1 + updates) / (10 + updates))


TensorPairs = list[tuple[Tensor, Tensor]]


def pair_tensors(average: nn.Module, network: nn.Module) -> TensorPairs:
    """Return every weight and statistic of `average` with that of `network`.

    Holds until one of them is moved to another device.
    """
    return list(zip(average.state_dict().values(), network.state_dict().values(), strict=True))


@torch.no_grad()
def update_average(pairs: TensorPairs, decay: float) -> None:
    """Move the first of every pair towards the second, and keep the share `decay` of it.

    Counts are copied.
    """
    moved = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_([mine for mine, _ in moved], [theirs for _, theirs in moved], 1 - decay)
    counted = [pair for pair in pairs if not pair[0].is_floating_point()]
    if counted:
        torch._foreach_copy_([mine for mine, _ in counted], [theirs for _, theirs in counted])
