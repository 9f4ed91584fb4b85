"""Statistics of batch norms, measured instead of averaged over a training that has moved on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

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
    evaluation, and over all calls of a norm that is called several times, as PyTorch does with
    `momentum=None`. A norm that is not called and all else stay, and so does one that the module
    keeps in evaluation mode while it trains, as those of a frozen part. Raises BadInput for a batch
    of one image, which has no variance, and where there is no batch.
    """
    with eval_mode(module):
        module.train()
        norms = [norm for norm in norms_with_statistics(module) if norm.training]
    averages = [StatisticsAverage(norm) for norm in norms]
    batches_seen = 0
    with eval_mode(module), batch_statistics_only(norms):
        for batch in batches:
            if len(batch) < 2:
                raise BadInput(
                    f"a batch has {len(batch)} images, statistics of batch norms, at least 2 have"
                    " a variance"
                )
            with ExitStack() as hooks:
                for average in averages:
                    add_call = partial(average.add_call, len(batch))
                    hooks.enter_context(average.norm.register_forward_hook(add_call))
                module(batch)
            batches_seen += 1
    if not batches_seen:
        raise BadInput("there are no images, statistics of batch norms, give at least one batch")
    for average in averages:
        average.write_to_norm()


class StatisticsAverage:
    """Average of a batch norm's mean and variance over the images of all its calls."""

    def __init__(self, norm: _BatchNorm) -> None:
        self.norm = norm
        statistics = running_statistics(norm)
        self.totals = [torch.zeros_like(s, dtype=torch.float64) for s in statistics]
        self.images = 0

    def add_call(self, images: int, *_: object) -> None:
        """Add what the norm keeps of a call; a forward hook, since the next call overwrites it."""
        self.images += images
        for total, statistic in zip(self.totals, running_statistics(self.norm), strict=True):
            total += images * statistic.double()

    def write_to_norm(self) -> None:
        """Give the norm the averages, where it was called."""
        if self.images:
            for total, statistic in zip(self.totals, running_statistics(self.norm), strict=True):
                statistic.copy_(total / self.images)


@contextmanager
def batch_statistics_only(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let norms keep the statistics of their last call alone; restore them afterwards."""
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
