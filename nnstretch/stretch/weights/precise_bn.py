"""Statistics of batch norms, measured instead of averaged over a training that has moved on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput


def norms_with_statistics(module: nn.Module) -> list[_BatchNorm]:
    """Return batch norms with running statistics."""
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    return [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]


def running_statistics(norm: _BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the running mean and variance of a batch norm that has them."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


@torch.no_grad()
def precise_bn(module: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Set every batch norm's mean and variance to their averages over the batches' images.

    As pycls does (`compute_precise_bn_stats`), but with drop-out off, since the statistics are for
    evaluation. Nothing else changes. Raises BadInput for a batch of one image, which has no
    variance, and where there is no batch.
    """
    norms = norms_with_statistics(module)
    sums: list[list[torch.Tensor]] = []
    for norm in norms:
        sums.append([torch.zeros_like(s, dtype=torch.float64) for s in running_statistics(norm)])
    images = 0
    with eval_mode(module), batch_statistics_only(norms):
        for batch in batches:
            if len(batch) < 2:
                raise BadInput(
                    f"a batch has {len(batch)} images, statistics of batch norms, at least 2 have"
                    " a variance"
                )
            module(batch)
            images += len(batch)
            for norm, totals in zip(norms, sums, strict=True):
                for total, statistic in zip(totals, running_statistics(norm), strict=True):
                    total += len(batch) * statistic.double()
    if not images:
        raise BadInput("there are no images, statistics of batch norms, give at least one batch")
    for norm, totals in zip(norms, sums, strict=True):
        for total, statistic in zip(totals, running_statistics(norm), strict=True):
            statistic.copy_(total / images)


@contextmanager
def batch_statistics_only(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let norms keep the statistics of the last batch alone; restore them afterwards."""
    momenta = [norm.momentum for norm in norms]
    states: list[dict[str, torch.Tensor]] = []
    for norm in norms:
        states.append({key: value.clone() for key, value in norm.state_dict().items()})
    try:
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        yield
    finally:
        for norm, momentum, state in zip(norms, momenta, states, strict=True):
            norm.momentum = momentum
            norm.load_state_dict(state)
