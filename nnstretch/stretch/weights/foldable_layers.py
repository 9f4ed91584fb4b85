"""The last layers of a branch that something can be folded into, and fits of them to what the
original computes there.

A branch ends in a layer (convolution or linear, with or without batch norm) or in a sum of such
layers and a shortcut, possibly behind activations and pooling. In front of those the original's
tensor is the target: for an activation that is the same in both, agreement before it is agreement
behind it, and there the layers are linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from nnstretch.structure.cuts import ACTIVATIONS, PASSING

POOLING = frozenset({"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"})
SUMS = frozenset({"add"})
MOST_READ = 4608
"""Inputs of one output channel, window included, beyond which a full fit costs more than it is
worth: 512 channels of 3x3.
"""


@dataclass(frozen=True, eq=False)
class Term:
    """One layer of the sum at the end of a branch."""

    layer: nn.Conv2d | nn.Linear | None
    """What may be fitted whole; None where only the scale and shift of its output may change."""
    norm: nn.Module | None
    """The batch norm behind it, or the layer that is scaled where there is no whole fit."""
    reads: str
    """Name of the value that the layer reads."""
    writes: str

    @property
    def last(self) -> nn.Module:
        """Return the module of the last layer."""
        module = self.norm or self.layer
        assert module is not None
        return module

    @property
    def shifts(self) -> bool:
        """Return whether the layer has a bias to fold into."""
        return getattr(self.last, "bias", None) is not None


@dataclass(frozen=True, eq=False)
class BranchTail:
    """Where a branch ends, before activations and pooling."""

    places: tuple[str, ...]
    """Names of the values from the end backwards, one more than there is behind."""
    terms: tuple[Term, ...]
    behind: tuple[str, ...]
    """Activations and pooling after it, from the end backwards."""

    @property
    def place(self) -> str:
        """Return the name of the value behind the layer."""
        return self.places[-1]

    def value_before(self, behind: tuple[str, ...]) -> str | None:
        """Return the value that exactly these follow; None where others do."""
        return self.places[len(behind)] if self.behind[: len(behind)] == behind else None


class RecordingInterpreter(fx.Interpreter):
    """Runs a graph and keeps some of its values."""

    def __init__(self, module: fx.GraphModule, names: frozenset[str]) -> None:
        super().__init__(module)
        self.names = names
        self.seen: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        """Run a node and keep its value when it is watched."""
        value = super().run_node(n)
        if n.name in self.names:
            self.seen[n.name] = value
        return value


def record_values(
    module: fx.GraphModule, x: torch.Tensor, names: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Run a module and return the values of the named nodes."""
    watch = RecordingInterpreter(module, names)
    watch.run(x)
    return watch.seen


def branch_tail(module: fx.GraphModule) -> BranchTail:
    """Return the tail of a branch, without terms where the end is nothing that can be folded
    into.
    """
    node = next(n for n in module.graph.nodes if n.op == "output").args[0]
    assert isinstance(node, fx.Node)
    behind: list[str] = []
    places = [node.name]
    while (kind := layer_kind(node, module)) in ACTIVATIONS | POOLING | PASSING:
        sources = node.all_input_nodes
        if len(sources) != 1 or len(sources[0].users) > 1:
            break
        if kind in PASSING:
            places[-1] = sources[0].name
        else:
            behind.append(f"{kind} {node.args[1:]}")
            places.append(sources[0].name)
        node = sources[0]
    return BranchTail(tuple(places), tuple(terms_at(node, module)), tuple(behind))


def layer_kind(node: fx.Node, module: fx.GraphModule) -> str:
    """Return the operator's name of a layer, empty when it has none."""
    if node.op == "call_module":
        return "dropout" if isinstance(module.get_submodule(str(node.target)), _DropoutNd) else ""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else ""


def terms_at(node: fx.Node, module: fx.GraphModule) -> Iterator[Term]:
    """Yield layers whose outputs add up to a value; other summands, such as shortcuts, are left
    alone.
    """
    if layer_kind(node, module) in SUMS and len(node.all_input_nodes) == 2 and not node.kwargs:
        for summand in node.all_input_nodes:
            if len(summand.users) == 1:
                yield from terms_at(summand, module)
    elif (term := term_at(node, module)) is not None:
        yield term


def term_at(node: fx.Node, module: fx.GraphModule) -> Term | None:
    """Return the term of a sum that a node computes, None when a fit cannot be folded into it."""
    if node.op != "call_module":
        return None
    last, source = module.get_submodule(str(node.target)), node.all_input_nodes[0]
    if not isinstance(last, _BatchNorm):
        if not isinstance(last, (nn.modules.conv._ConvNd, nn.Linear)):
            return None
        return Term(
            is_full_layer(last),
            last if is_full_layer(last) is None else None,
            source.name,
            node.name,
        )
    if not last.affine:
        return None
    if source.op == "call_module" and len(source.users) == 1:
        layer = is_full_layer(module.get_submodule(str(source.target)))
        if layer is not None:
            return Term(layer, last, source.all_input_nodes[0].name, node.name)
    return Term(None, last, source.name, node.name)


def is_full_layer(layer: nn.Module) -> nn.Conv2d | nn.Linear | None:
    """Return the layer, if every output channel reads every input channel and the fit is not too
    large.
    """
    if isinstance(layer, nn.Linear):
        return layer if layer.in_features <= MOST_READ else None
    if (
        not isinstance(layer, nn.Conv2d)
        or layer.groups > 1
        or layer.padding_mode != "zeros"
        or isinstance(layer.padding, str)
    ):
        return None
    return layer if layer.weight[0].numel() <= MOST_READ else None


def input_rows(term: Term, x: torch.Tensor) -> torch.Tensor:
    """Return [samples and positions, inputs of one output channel] of a layer that may be fitted
    whole.
    """
    layer = term.layer
    if isinstance(layer, nn.Linear):
        return x.float().flatten(0, -2)
    assert isinstance(layer, nn.Conv2d)
    patches = functional.unfold(
        x.float(),
        layer.kernel_size,
        layer.dilation,
        layer.padding,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
    )  # type: ignore[arg-type]
    return patches.transpose(1, 2).flatten(0, 1)
