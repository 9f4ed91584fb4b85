"""Random weights to start from, of an original and of a branched network alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from nnstretch.capture import capture
from nnstretch.capture.rebuild_module import attribute_path, weight_names
from nnstretch.graph import Graph, Node, ValueRef

NORMS = frozenset({"batch_norm", "group_norm"})
KEEP_ZERO = frozenset(
    {
        "dropout",
        "feature_dropout",
        "mul",
        "reshape",
        "view",
        "flatten",
        "permute",
        "transpose",
        "contiguous",
        "clone",
    }
)
"""Operators behind a norm that pass a zero on.

Gates of squeeze-and-excitation, drop-out, and mere changes of shape.
"""


def initialize_weights(module: nn.Module, seed: int) -> None:
    """Start every layer of `module` anew, in place.

    Convolutions by He et al. 2015 (normal, fan-out over all groups, as torchvision and pycls do),
    other layers as PyTorch does. Weights of no layer (a class token) stay. The same seed draws the
    same.
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


def zero_residuals(module: nn.Module, example: torch.Tensor) -> tuple[str, ...]:
    """Set the last scale of every residual path to 0, so that each block starts as its shortcut.

    Goyal et al. 2017 ("Accurate, Large Minibatch SGD"), section 5.1; `zero_init_residual` of
    torchvision. `example` is one input of `module`, [batch, ...]. Returns the paths of the scales,
    none where no path ends in a norm of its own. Raises CannotCapture where the network is no fixed
    graph.
    """
    weights = dict(module.named_parameters())
    paths = (
        name if name in weights else attribute_path(name)
        for name in last_scales(capture(module, example))
    )
    names = tuple(path for path in paths if path in weights)
    with torch.no_grad():
        for name in names:
            weights[name].zero_()
    return names


def last_scales(graph: Graph) -> tuple[str, ...]:
    """Return weights of the norms that end the residual paths, in order of depth.

    A residual path is the longer of two ways into a sum. It must end in a batch or group norm, with
    nothing behind it that would make something of a zero, and nobody else may read it. The shorter
    way, a projection for instance, stays: with both at 0 nothing would pass. Sums of three and more
    (RepVGG) are no residual blocks.
    """
    paths = ResidualPaths.of(graph)
    return tuple(scale for node in graph.nodes if (scale := paths.last_scale_of_sum(node)))


@dataclass(frozen=True, eq=False)
class ResidualPaths:
    """A graph, and what leads where in it."""

    outputs: frozenset[str]
    makers: Mapping[str, Node]
    readers: Mapping[str, tuple[Node, ...]]
    behind: Mapping[str, int]
    """By value, a bit for each input and value that it is computed from, and its own.

    0 for weights.
    """
    own: Mapping[str, int]
    """By value, its own bit."""

    @classmethod
    def of(cls, graph: Graph) -> ResidualPaths:
        """Analyze the residual paths of a graph."""
        names = [value.name for value in graph.inputs] + [node.name for node in graph.nodes]
        bits = {name: 1 << position for position, name in enumerate(names)}
        behind = {value.name: bits[value.name] for value in graph.inputs}
        for node in graph.nodes:
            read = 0
            for name in node.inputs:
                read |= behind.get(name, 0)
            behind[node.name] = read | bits[node.name] if read else 0
        return cls(
            frozenset(graph.outputs),
            {node.name: node for node in graph.nodes},
            graph.consumers(),
            behind,
            bits,
        )

    def last_scale_of_sum(self, node: Node) -> str:
        """Return the scale that ends the residual path into a sum; empty where there is none."""
        terms = {argument.name for argument in node.args[:2] if isinstance(argument, ValueRef)}
        if (
            not is_sum(node)
            or len(terms) != 2
            or any(map(self.continues_as_sum, (node.name, *terms)))
        ):
            return ""
        shorter, longer = sorted(terms, key=lambda name: self.behind.get(name, 0).bit_count())
        lengths = [self.behind.get(name, 0).bit_count() for name in (shorter, longer)]
        norm = self.norm_at_end(longer)
        if (
            norm is None
            or not 0 < lengths[0] < lengths[1]
            or not self.feeds_only(node, norm, longer)
        ):
            return ""
        scale = weight_names(norm)["weight"]
        return scale if scale is not None and len(self.readers[scale]) == 1 else ""

    def continues_as_sum(self, name: str) -> bool:
        """Return whether a value is a sum that nothing but a further sum reads."""
        node, readers = self.makers.get(name), self.readers.get(name, ())
        return (
            node is not None
            and is_sum(node)
            and len(readers) == 1
            and is_sum(readers[0])
            and name not in self.outputs
        )

    def norm_at_end(self, name: str) -> Node | None:
        """Return the batch norm at the end of a residual path, None where there is none."""
        node = self.makers.get(name)
        if node is None or node.kind in NORMS:
            return node
        reads = (
            [argument.name for argument in node.args if isinstance(argument, ValueRef)]
            if node.kind in KEEP_ZERO
            else []
        )
        return next((norm for read in reads if (norm := self.norm_at_end(read)) is not None), None)

    def feeds_only(self, total: Node, norm: Node, longer: str) -> bool:
        """Return whether everything that reads `norm`, at whatever distance, ends in `longer`, and
        `longer` in `total`.
        """
        between = {
            name
            for name, bits in self.behind.items()
            if bits & self.own[norm.name] and self.behind[longer] & self.own[name]
        }
        read_by = {
            reader.name for name in between - {longer} for reader in self.readers.get(name, ())
        }
        return (
            read_by <= between and not between & self.outputs and self.readers[longer] == (total,)
        )


def is_sum(node: Node) -> bool:
    """Return whether a node adds two values."""
    return node.kind in ("add", "add_")
