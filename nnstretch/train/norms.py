"""Batch norms that see the images of every process, on CPUs, too.

PyTorch's SyncBatchNorm computes on accelerators only. Here the mean, and then the mean square of what differs from
it, are averaged over the processes, through which gradients flow as well; each process must hold as many images as
any other. (The mean square less the square of the mean would take one exchange, but loses every digit where a channel
hardly varies.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm


class Mean(torch.autograd.Function):
    """The mean over processes; its gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return averaged(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return averaged(gradients[0])


def averaged(value: Tensor) -> Tensor:
    total = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()


def shared(norm: _BatchNorm, images: Tensor) -> Tensor:
    """The forward pass of a batch norm over the images of all processes.

    Without gradients nobody learns: statistics are measured (precise batch norm), of images that every process has.
    """
    if not (norm.training and torch.is_grad_enabled() and dist.is_initialized()):
        return type(norm).forward(norm, images)
    axes = [axis for axis in range(images.ndim) if axis != 1]
    shape = (1, -1, *(1,) * (images.ndim - 2))
    wide = images.float()
    mean = Mean.apply(wide.mean(axes))
    centred = wide - mean.view(shape)
    variance = Mean.apply(centred.square().mean(axes))
    remember(norm, mean.detach(), variance.detach(), images.numel() // images.shape[1] * dist.get_world_size())
    out = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    return out.to(images.dtype)


def remember(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics, of which the variance is the unbiased one (as torch.nn.BatchNorm2d keeps it)."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    share = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * count / max(1, count - 1), share)


@contextmanager
def shared_norms(network: nn.Module, wanted: bool) -> Iterator[None]:
    """Within, batch norms of `network` see the images of all processes. Their class, weights and names stay."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)] if wanted else []
    try:
        for norm in norms:
            norm.forward = partial(shared, norm)  # type: ignore[method-assign]
        yield
    finally:
        for norm in norms:
            del norm.forward
