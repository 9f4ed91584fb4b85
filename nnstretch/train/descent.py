"""Optimisers, the learning rate, and the running average of weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nnstretch.train.recipe import Optimizer


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak: a straight line up to it, then half a cosine down to zero."""
    rising = max(1.0, warmup * steps)
    if step + 1 < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising + 1) / max(1.0, steps - rising + 1))))


def rises(step: int, steps: int, warmup: float) -> bool:
    return step + 1 < max(1.0, warmup * steps)


def make_optimizer(module: nn.Module, optimizer: Optimizer) -> torch.optim.Optimizer:
    trained = [p for p in module.parameters() if p.requires_grad]
    few = [] if optimizer.decay_all else [p for p in trained if p.ndim <= 1]
    kept = {id(p) for p in few}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) not in kept], "weight_decay": optimizer.weight_decay},
        {"params": few, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if optimizer.name == "adamw":
        return torch.optim.AdamW(groups, lr=optimizer.lr, fused=True)
    if optimizer.name == "lamb":
        from timm.optim.lamb import Lamb

        return Lamb(groups, lr=optimizer.lr, max_grad_norm=None)  # optimizer.clip_norm clips, or nobody
    return torch.optim.SGD(groups, lr=optimizer.lr, momentum=optimizer.momentum, nesterov=optimizer.momentum > 0, fused=True)


def laid_out_as(weight: Tensor, value: Any) -> Any:
    """The same numbers in the memory order of `weight`; what is not of its shape stays as it is."""
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        return value
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Move every weight and statistic of `average` towards that of `network`, of which it keeps the share `decay`."""
    pairs = list(zip(average.state_dict().values(), network.state_dict().values(), strict=True))
    lerped = [(mine, theirs) for mine, theirs in pairs if mine.is_floating_point()]
    torch._foreach_lerp_([mine for mine, _ in lerped], [theirs for _, theirs in lerped], 1 - decay)
    for mine, theirs in pairs:
        if not mine.is_floating_point():
            mine.copy_(theirs)
