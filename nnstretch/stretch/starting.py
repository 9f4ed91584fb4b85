"""Random weights to start from, of an original and of a branched network alike."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from nnstretch.capture import capture
from nnstretch.capture.build import safe
from nnstretch.graph import Graph, Node, Ref


def draw(module: nn.Module, seed: int) -> None:
    """Start `module` anew, in place: convolutions by He et al. 2015 (normal, by what each output is read by), other layers as PyTorch does.

    The same seed draws the same weights; no other random number changes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            if isinstance(layer, _ConvNd):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif isinstance(layer, (nn.Linear, _BatchNorm)):
                layer.reset_parameters()


def silence_residuals(module: nn.Module, example: torch.Tensor) -> tuple[str, ...]:
    """Set the scale of the last batch norm of every residual path to 0, so that each block starts as the identity.

    Goyal et al. 2017 ("Accurate, Large Minibatch SGD"), section 5.1. `example` is one input of `module`, [batch, ...].
    Returns the paths of the scales. Raises CannotCapture where the network is no fixed graph.
    """
    weights = dict(module.named_parameters())
    paths = (name if name in weights else safe(name) for name in last_scales(capture(module, example)))
    names = tuple(path for path in paths if path in weights)
    with torch.no_grad():
        for name in names:
            weights[name].zero_()
    return names


def last_scales(graph: Graph) -> tuple[str, ...]:
    """Weights by which the longer way into a sum of two is scaled last, where a batch norm of its own does it; in order of depth.

    The shorter way, a projection for instance, stays: with both at 0 nothing would pass.
    """
    depth: dict[str, int] = {}
    makers = {node.name: node for node in graph.nodes}
    readers = graph.consumers()
    found: list[str] = []
    for node in graph.nodes:
        depth[node.name] = 1 + max((depth.get(name, 0) for name in node.inputs), default=0)
        terms = [argument.name for argument in node.args[:2] if isinstance(argument, Ref)]
        if node.kind in ("add", "add_") and len(set(terms)) == 2:
            shorter, longer = sorted(terms, key=lambda name: depth.get(name, 0))
            scale = scale_of(makers.get(longer))
            if scale and depth.get(shorter, 0) < depth[longer] and len(readers[longer]) == len(readers[scale]) == 1:
                found.append(scale)
    return tuple(found)


def scale_of(node: Node | None) -> str:
    """The weight by which a batch norm scales; empty for anything else."""
    if node is None or node.kind != "batch_norm" or not isinstance(node.args[1], Ref):
        return ""
    return node.args[1].name
