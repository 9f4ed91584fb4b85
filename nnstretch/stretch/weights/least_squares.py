"""Least squares: the last layers of a branch, changed as little as is needed to write what the
original writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nnstretch.stretch.weights.foldable_layers import Term

STEADY = 1e-3
"""Ridge, as a share of the output's power, that keeps a channel's scale at one where its output
says nothing.
"""


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """What the layers at the end of a branch read and write at some positions of some images, in
    float32.
    """

    read: tuple[torch.Tensor | None, ...]
    """Per term [rows, inputs]; None where the layer is not fitted whole."""
    written: tuple[torch.Tensor, ...]
    """Per term [rows, channels]."""
    missing: torch.Tensor
    """[rows, channels]: what the original has and the branch lacks."""


@torch.no_grad()
def scale_terms(terms: Sequence[Term], samples: LayerSamples) -> None:
    """Give every channel of every term the scale, and the sum the shift, that leave the least
    squared error.
    """
    shifting = next((t for t in terms if t.shifts), None)
    written = torch.stack(samples.written).double()  # [terms, rows, channels]
    missing = samples.missing.double()
    if shifting is not None:
        mean, missing_mean = written.mean(1, keepdim=True), missing.mean(0)
        written, missing = written - mean, missing - missing_mean
    gram = torch.einsum("irc,jrc->cij", written, written) / len(missing)
    towards = torch.einsum("irc,rc->ci", written, missing) / len(missing)
    power = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
    ridge = (
        STEADY * power[:, None, None] * torch.eye(len(terms), dtype=gram.dtype, device=gram.device)
    )
    more = torch.linalg.solve(gram + ridge, towards)  # [channels, terms], added to a scale of one
    for i, term in enumerate(terms):
        scale_rows(term.last, 1 + more[:, i])
    if shifting is not None:
        shift_bias(shifting.last, missing_mean - (mean[:, 0] * more.T).sum(0))


def scale_rows(layer: nn.Module, scale: torch.Tensor) -> None:
    """Scale the outputs of a layer."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, torch.Tensor)
    weight.mul_(scale.to(weight.dtype).reshape(-1, *(1,) * (weight.dim() - 1)))
    if isinstance(bias, torch.Tensor):
        bias.mul_(scale.to(bias.dtype))


def shift_bias(layer: nn.Module, by: torch.Tensor) -> None:
    """Add to the bias of a layer."""
    assert isinstance(layer.bias, torch.Tensor)
    layer.bias.add_(by.to(layer.bias.dtype))


class RidgeFit:
    """Ridge regression of what is missing on everything the fitted layers read.

    `apply` it at any strength.
    """

    def __init__(self, terms: Sequence[Term], samples: LayerSamples) -> None:
        self.terms = [t for t in terms if t.layer is not None]
        self.read = [r for r in samples.read if r is not None]
        self.shifting = next((t for t in self.terms if t.shifts), None)
        read, missing = torch.cat(self.read, 1), samples.missing
        centred = self.shifting is not None
        self.mean = read.mean(0) if centred else torch.zeros_like(read[0])
        self.missing_mean = missing.mean(0) if centred else torch.zeros_like(missing[0])
        read, missing = read - self.mean, missing - self.missing_mean
        self.gram = (read.T @ read / len(read)).double()
        self.towards = (read.T @ missing / len(read)).double()

    @torch.no_grad()
    def apply(self, ridge: float) -> None:
        """Fit the layer and fold it in; `ridge` is a share of the mean power of what is read.

        The larger, the nearer to the weights as they were.
        """
        diagonal = self.gram.diagonal()
        damped = self.gram + torch.diag(
            torch.full_like(diagonal, max(1e-12, ridge * float(diagonal.mean())))
        )
        more = torch.cholesky_solve(self.towards, torch.linalg.cholesky(damped)).float()
        parts = more.split([r.shape[1] for r in self.read])
        for term, part, read in zip(self.terms, parts, self.read, strict=True):
            fold_correction(term, part.T, read)
        if self.shifting is not None:
            shift_bias(self.shifting.last, self.missing_mean - self.mean @ more)


def fold_correction(term: Term, more: torch.Tensor, read: torch.Tensor) -> None:
    """Change a layer so that, with the norm behind it, it writes what it wrote plus `more`
    [channels, inputs] times what it reads.

    The norm's statistics become those of the new layer on `read`, so that training, which measures
    them anew, starts from the same function.
    """
    layer, norm = term.layer, term.norm
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
    now = read @ weight.T + bias
    mean, variance = now.mean(0), now.var(0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.weight.copy_(kept * (variance + norm.eps).sqrt())
    norm.bias.copy_(constant + kept * (mean - bias))
