"""Batch norms that see the images of every process, on CPUs, too.

PyTorch's SyncBatchNorm computes on accelerators only. Here the mean, and then the mean square of
what differs from it, are averaged over the processes, through which gradients flow as well; each
process must hold as many images as any other. (The mean square less the square of the mean would
take one exchange, but loses every digit where a channel hardly varies.)
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

from nnstretch.errors import BadInput


class ProcessMean(torch.autograd.Function):
    """The mean over processes; its gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """Return the mean over all processes."""
        return all_reduce_mean(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradients' mean over all processes."""
        return all_reduce_mean(gradients[0])


def all_reduce_mean(value: Tensor) -> Tensor:
    """Return a tensor's mean over all processes."""
    total = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()


def sync_batch_norm(norm: _BatchNorm, images: Tensor) -> Tensor:
    """Return the forward pass of a batch norm over the images of all processes."""
    if not (norm.training and dist.is_initialized()):
        return type(norm).forward(norm, images)
    axes = [axis for axis in range(images.ndim) if axis != 1]
    shape = (1, -1, *(1,) * (images.ndim - 2))
    wide = images.float()
    mean = ProcessMean.apply(wide.mean(axes))
    centred = wide - mean.view(shape)
    variance = ProcessMean.apply(centred.square().mean(axes))
    update_running_statistics(
        norm,
        mean.detach(),
        variance.detach(),
        images.numel() // images.shape[1] * dist.get_world_size(),
    )
    out = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    out = out.to(images.dtype)
    return out if type(norm).forward is _BatchNorm.forward else norm.act(norm.drop(out))  # type: ignore[no-any-return, operator]


def update_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update running statistics, of which the variance is the unbiased one (as torch.nn.BatchNorm2d
    keeps it).
    """
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    share = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * count / max(1, count - 1), share)


@contextmanager
def synchronized_norms(network: nn.Module, wanted: bool) -> Iterator[None]:
    """Let batch norms of `network` within see the images of all processes.

    Their class, weights and names stay.

    timm's norms that also activate (BatchNormAct2d) do so. Raises BadInput for norms with another
    forward pass of their own.
    """
    norms = (
        {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
        if wanted
        else {}
    )
    for name, norm in norms.items():
        activates = callable(getattr(norm, "act", None)) and callable(getattr(norm, "drop", None))
        if type(norm).forward is not _BatchNorm.forward and not activates:
            raise BadInput(
                f"trainer.sync_norms is true, {name} is a {type(norm).__name__} with a forward pass"
                " of its own, set it to false"
            )
    try:
        for norm in norms.values():
            norm.forward = partial(sync_batch_norm, norm)  # type: ignore[method-assign]
        yield
    finally:
        for norm in norms.values():
            del norm.forward


@contextmanager
def unsynchronized_norms(network: nn.Module) -> Iterator[None]:
    """Let norms within shared_norms see their own process's images again, for statistics of images
    that all processes have.
    """
    taken = [
        (norm, norm.__dict__.pop("forward"))
        for norm in network.modules()
        if isinstance(norm, _BatchNorm) and "forward" in norm.__dict__
    ]
    try:
        yield
    finally:
        for norm, forward in taken:
            norm.forward = forward  # type: ignore[method-assign]
