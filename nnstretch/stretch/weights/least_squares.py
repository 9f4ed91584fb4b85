"""Least squares: last layers of a branch, changed no more than the original's features need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nnstretch.stretch.weights.foldable_layers import Term

SCALE_RIDGE = 1e-3
"""Ridge, as a share of the output's power, that keeps the scale of a silent channel at one."""


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """What the layers at the end of a branch read and write at some positions, in float32."""

    read: tuple[torch.Tensor | None, ...]
    """Per term [rows, inputs]; None where the layer is not fitted whole."""
    written: tuple[torch.Tensor, ...]
    """Per term [rows, channels]."""
    missing: torch.Tensor
    """[rows, channels]: what the original has and the branch lacks."""


@torch.no_grad()
def scale_terms(terms: Sequence[Term], samples: LayerSamples) -> None:
    """Give each channel of each term a scale, and the sum a shift, with the least squared error."""
    shifting = next((term for term in terms if term.shifts), None)
    written = torch.stack(samples.written).double()  # [terms, rows, channels]
    missing = samples.missing.double()
    if shifting is not None:
        mean = written.mean(1, keepdim=True)
        missing_mean = missing.mean(0)
        written = written - mean
        missing = missing - missing_mean
    gram = torch.einsum("irc,jrc->cij", written, written) / len(missing)
    towards = torch.einsum("irc,rc->ci", written, missing) / len(missing)
    power = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
    identity = torch.eye(len(terms), dtype=gram.dtype, device=gram.device)
    ridge = SCALE_RIDGE * power[:, None, None] * identity
    more = torch.linalg.solve(gram + ridge, towards)  # [channels, terms], added to a scale of one
    for i, term in enumerate(terms):
        scale_rows(term.last, 1 + more[:, i])
    if shifting is not None:
        shift_bias(shifting.last, missing_mean - (mean[:, 0] * more.T).sum(0))


def scale_rows(layer: nn.Module, scale: torch.Tensor) -> None:
    """Scale the outputs of a layer."""
    weight = layer.weight
    bias = layer.bias
    assert isinstance(weight, torch.Tensor)
    weight.mul_(scale.to(weight.dtype).reshape(-1, *(1,) * (weight.dim() - 1)))
    if isinstance(bias, torch.Tensor):
        bias.mul_(scale.to(bias.dtype))


def shift_bias(layer: nn.Module, shift: torch.Tensor) -> None:
    """Add to the bias of a layer."""
    assert isinstance(layer.bias, torch.Tensor)
    layer.bias.add_(shift.to(layer.bias.dtype))


class RidgeFit:
    """Ridge regression of what is missing on all that the fitted layers read."""

    def __init__(self, terms: Sequence[Term], samples: LayerSamples) -> None:
        self.terms = [term for term in terms if term.layer is not None]
        self.read = [read for read in samples.read if read is not None]
        self.shifting = next((term for term in self.terms if term.shifts), None)
        read = torch.cat(self.read, 1)
        missing = samples.missing
        self.mean = torch.zeros_like(read[0])
        self.missing_mean = torch.zeros_like(missing[0])
        if self.shifting is not None:
            self.mean = read.mean(0)
            self.missing_mean = missing.mean(0)
        read = read - self.mean
        missing = missing - self.missing_mean
        self.gram = (read.T @ read / len(read)).double()
        self.towards = (read.T @ missing / len(read)).double()

    @torch.no_grad()
    def apply(self, ridge: float) -> None:
        """Fit the layers and fold the fits in; `ridge` is a share of the mean power of the inputs.

        The larger, the nearer to the weights as they were.
        """
        diagonal = self.gram.diagonal()
        damping = max(1e-12, ridge * float(diagonal.mean()))
        damped = self.gram + torch.diag(torch.full_like(diagonal, damping))
        more = torch.cholesky_solve(self.towards, torch.linalg.cholesky(damped)).float()
        parts = more.split([read.shape[1] for read in self.read])
        for term, part, read in zip(self.terms, parts, self.read, strict=True):
            fold_correction(term, part.T, read)
        if self.shifting is not None:
            shift_bias(self.shifting.last, self.missing_mean - self.mean @ more)


def fold_correction(term: Term, more: torch.Tensor, read: torch.Tensor) -> None:
    """Add `more` [channels, inputs] to what a layer, with the norm behind it, does to its inputs.

    The norm's statistics become those of the new layer on `read`, so that training, which measures
    them anew, starts from the same function.
    """
    layer = term.layer
    norm = term.norm
    assert layer is not None
    if norm is None:
        layer.weight.add_(more.reshape_as(layer.weight).to(layer.weight.dtype))
        return
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    # A norm that passes nothing on leaves no scale to write the layer in; one is as good as any.
    kept = torch.where(scale.abs() > 1e-3 * scale.abs().mean(), scale, torch.ones_like(scale))
    bias = layer.bias if layer.bias is not None else torch.zeros_like(scale)
    constant = norm.bias - scale * norm.running_mean + scale * bias
    weight = (scale[:, None] * layer.weight.flatten(1) + more) / kept[:, None]
    layer.weight.copy_(weight.reshape_as(layer.weight))
    written = read @ weight.T + bias
    mean = written.mean(0)
    variance = written.var(0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.weight.copy_(kept * (variance + norm.eps).sqrt())
    norm.bias.copy_(constant + kept * (mean - bias))
