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
    return [
        m
        for m in module.modules()
        if isinstance(m, _BatchNorm) and m.track_running_stats and m.running_mean is not None
    ]


@torch.no_grad()
def precise_bn(module: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Set every batch norm's running mean and variance to their averages over the batches, weighted
    by their images.

    As pycls does (`compute_precise_bn_stats`), but with drop-out off, since the statistics are for
    evaluation. Nothing else changes. Raises BadInput for a batch of one image, which has no
    variance, and where there is no batch.
    """
    norms = norms_with_statistics(module)
    means = [torch.zeros_like(norm.running_mean, dtype=torch.float64) for norm in norms]  # type: ignore[arg-type]
    variances = [torch.zeros_like(norm.running_var, dtype=torch.float64) for norm in norms]  # type: ignore[arg-type]
    seen = 0
    with eval_mode(module), batch_statistics_only(norms):
        for images in batches:
            if len(images) < 2:
                raise BadInput(
                    f"a batch has {len(images)} images, statistics of batch norms, at least 2 have"
                    " a variance"
                )
            module(images)
            seen += len(images)
            for norm, mean, variance in zip(norms, means, variances, strict=True):
                mean += len(images) * norm.running_mean.double()  # type: ignore[union-attr]
                variance += len(images) * norm.running_var.double()  # type: ignore[union-attr]
    if not seen:
        raise BadInput("there are no images, statistics of batch norms, give at least one batch")
    for norm, mean, variance in zip(norms, means, variances, strict=True):
        norm.running_mean.copy_(mean / seen)  # type: ignore[union-attr]
        norm.running_var.copy_(variance / seen)  # type: ignore[union-attr]


@contextmanager
def batch_statistics_only(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let norms take every batch's own statistics and remember only the last.

    On an error the old statistics come back.
    """
    before = [
        (n.momentum, {key: value.clone() for key, value in n.state_dict().items()}) for n in norms
    ]
    try:
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        yield
    finally:
        for norm, (momentum, state) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.load_state_dict(state)
