"""Batch norms over the images of all processes, on CPUs, too (PyTorch's need an accelerator).

The mean, and then the mean square of the differences from it, are averaged over the processes, as
are their gradients; every process must have as many images as any other. (The mean square less the
square of the mean would take one exchange, but loses every digit where a channel hardly varies.)
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
    centered = wide - mean.view(shape)
    variance = ProcessMean.apply(centered.square().mean(axes))
    count = images.numel() // images.shape[1] * dist.get_world_size()
    update_running_statistics(norm, mean.detach(), variance.detach(), count)
    out = centered * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    out = out.to(images.dtype)
    if type(norm).forward is _BatchNorm.forward:
        return out  # type: ignore[no-any-return]
    return norm.act(norm.drop(out))  # type: ignore[no-any-return, operator]


def update_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update running statistics; the variance is the unbiased one, as in torch.nn.BatchNorm2d."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    share = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * count / max(1, count - 1), share)


@contextmanager
def synchronized_norms(network: nn.Module, wanted: bool) -> Iterator[None]:
    """Let batch norms within see the images of all processes, if `wanted`.

    Raises BadInput for norms with a forward pass other than PyTorch's or timm's BatchNormAct2d.
    """
    norms: list[_BatchNorm] = []
    for name, module in network.named_modules():
        if wanted and isinstance(module, _BatchNorm):
            check_forward_is_known(name, module)
            norms.append(module)
    try:
        for norm in norms:
            norm.forward = partial(sync_batch_norm, norm)  # type: ignore[method-assign]
        yield
    finally:
        for norm in norms:
            del norm.forward


def check_forward_is_known(name: str, norm: _BatchNorm) -> None:
    """Check that `sync_batch_norm` computes what a norm does. Raises BadInput."""
    activates = callable(getattr(norm, "act", None)) and callable(getattr(norm, "drop", None))
    if type(norm).forward is not _BatchNorm.forward and not activates:
        raise BadInput(
            f"trainer.sync_norms is true, {name} is a {type(norm).__name__} with a forward pass"
            " of its own, set it to false"
        )


@contextmanager
def unsynchronized_norms(network: nn.Module) -> Iterator[None]:
    """Suspend `synchronized_norms`, for images that all processes have."""
    forwards: dict[_BatchNorm, Any] = {}
    for norm in network.modules():
        if isinstance(norm, _BatchNorm) and "forward" in norm.__dict__:
            forwards[norm] = norm.__dict__.pop("forward")
    try:
        yield
    finally:
        for norm, forward in forwards.items():
            norm.forward = forward  # type: ignore[method-assign]
