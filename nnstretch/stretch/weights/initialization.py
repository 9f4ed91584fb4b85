"""Random weights to start from, of an original and of a branched network alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from nnstretch.capture import capture
from nnstretch.capture.module_layers import attribute_path, paths_by_name, weight_names
from nnstretch.graph import Graph, Node, ValueRef

NORMS = frozenset({"batch_norm", "group_norm"})
GATES = ["dropout", "feature_dropout", "mul"]
SHAPE_CHANGES = ["reshape", "view", "flatten", "permute", "transpose", "contiguous", "clone"]
KEEP_ZERO = frozenset([*GATES, *SHAPE_CHANGES])
"""Operators behind a norm that pass a zero on."""


def initialize_weights(module: nn.Module, seed: int) -> None:
    """Start every layer of `module` anew, in place; the same seed draws the same.

    Convolutions by He et al. 2015 (normal, fan-out over all groups, as torchvision and pycls do),
    other layers as PyTorch does. Weights of no layer (a class token) stay. Attention draws last, as
    PyTorch starts the biases of its projection, a layer of its own, at zero.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            if isinstance(layer, _ConvNd):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
        for layer in module.modules():
            if isinstance(layer, nn.MultiheadAttention):
                layer._reset_parameters()


def zero_residuals(module: nn.Module, example: torch.Tensor) -> tuple[str, ...]:
    """Set the last scale of every residual path to 0, so that each block starts as its shortcut.

    Goyal et al. 2017 ("Accurate, Large Minibatch SGD"), section 5.1; `zero_init_residual` of
    torchvision. `example` is one input of `module`, [batch, ...]. Returns the paths of the scales,
    none where no path ends in a norm of its own. Raises CannotCapture where the network is no fixed
    graph.
    """
    weights = dict(module.named_parameters())
    path_of = paths_by_name({*weights, *dict(module.named_buffers())})
    paths: list[str] = []
    for name in last_scales(capture(module, example)):
        path = path_of.get(name) or path_of.get(attribute_path(name))
        if path in weights:
            paths.append(path)
    with torch.no_grad():
        for path in paths:
            weights[path].zero_()
    return tuple(paths)


def last_scales(graph: Graph) -> tuple[str, ...]:
    """Return weights of the norms that end the residual paths, in order of depth.

    A residual path is the longer of two ways into a sum. It must end in a batch or group norm, with
    nothing behind it that would make something of a zero, and nothing else may read it. The shorter
    way, a projection for instance, stays: with both at 0 nothing would pass. Sums of three and more
    (RepVGG) are no residual blocks.
    """
    paths = ResidualPaths.of(graph)
    return tuple(scale for node in graph.nodes if (scale := paths.last_scale_of_sum(node)))


@dataclass(frozen=True, eq=False)
class ResidualPaths:
    """A graph, and which values are computed from which."""

    outputs: frozenset[str]
    writers: Mapping[str, Node]
    readers: Mapping[str, tuple[Node, ...]]
    sources: Mapping[str, int]
    """Value -> bits of the inputs and values it is computed from, its own too; 0 for weights."""
    bit: Mapping[str, int]
    """Value -> its own bit."""

    @classmethod
    def of(cls, graph: Graph) -> ResidualPaths:
        """Analyze the residual paths of a graph."""
        inputs = graph.input_names
        names = [*inputs, *(node.name for node in graph.nodes)]
        bit = {name: 1 << position for position, name in enumerate(names)}
        sources = {name: bit[name] for name in inputs}
        for node in graph.nodes:
            read = 0
            for name in node.inputs:
                read |= sources.get(name, 0)
            sources[node.name] = read | bit[node.name] if read else 0
        writers = {node.name: node for node in graph.nodes}
        return cls(frozenset(graph.outputs), writers, graph.consumers(), sources, bit)

    def last_scale_of_sum(self, node: Node) -> str:
        """Return the scale that ends the residual path into a sum; empty where there is none."""
        terms = {argument.name for argument in node.args[:2] if isinstance(argument, ValueRef)}
        if not is_sum(node) or len(terms) != 2:
            return ""
        if any(self.continues_as_sum(name) for name in (node.name, *terms)):
            return ""
        shorter, longer = sorted(terms, key=self.length)
        norm = self.norm_at_end(longer)
        if norm is None or not 0 < self.length(shorter) < self.length(longer):
            return ""
        if not self.feeds_only(node, norm, longer):
            return ""
        scale = weight_names(norm)["weight"]
        return scale if scale is not None and len(self.readers[scale]) == 1 else ""

    def length(self, name: str) -> int:
        """Return the number of values that a value is computed from."""
        return self.sources.get(name, 0).bit_count()

    def continues_as_sum(self, name: str) -> bool:
        """Return whether a value is a sum that nothing but a further sum reads."""
        node = self.writers.get(name)
        readers = self.readers.get(name, ())
        if node is None or not is_sum(node) or name in self.outputs:
            return False
        return len(readers) == 1 and is_sum(readers[0])

    def norm_at_end(self, name: str) -> Node | None:
        """Return the norm at the end of a residual path, None where there is none."""
        node = self.writers.get(name)
        if node is None or node.kind in NORMS:
            return node
        if node.kind in KEEP_ZERO:
            for argument in node.args:
                if isinstance(argument, ValueRef):
                    norm = self.norm_at_end(argument.name)
                    if norm is not None:
                        return norm
        return None

    def feeds_only(self, total: Node, norm: Node, longer: str) -> bool:
        """Return whether all that reads `norm`, however far, ends in `longer`, then in `total`."""
        between: set[str] = set()
        for name, bits in self.sources.items():
            if bits & self.bit[norm.name] and self.sources[longer] & self.bit[name]:
                between.add(name)
        if between & self.outputs or self.readers[longer] != (total,):
            return False
        for name in between - {longer}:
            if any(reader.name not in between for reader in self.readers.get(name, ())):
                return False
        return True


def is_sum(node: Node) -> bool:
    """Return whether a node adds two values."""
    return node.kind in ("add", "add_")
