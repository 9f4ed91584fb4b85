"""The last layers of a branch that a fit to the original's features can be folded into.

A branch ends in a layer (convolution or linear, with or without batch norm) or in a sum of such
layers and a shortcut, possibly behind activations and pooling. In front of those the original's
tensor is the target: for an activation that is the same in both, agreement before it is agreement
behind it, and there the layers are linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from nnstretch.structure.cuts import ACTIVATIONS, PASSING

POOLING = frozenset({"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"})
MAX_FIT_INPUTS = 4608
"""Inputs of one output channel, window included, that a full fit is worth: 512 channels of 3x3."""


@dataclass(frozen=True, eq=False)
class Term:
    """One layer of the sum at the end of a branch."""

    layer: nn.Conv2d | nn.Linear | None
    """Layer that may be fitted whole; None where only its output's scale and shift may change."""
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
    """The last layers of a branch, and the activations and pooling behind them."""

    values: tuple[str, ...]
    """Names of the values from the branch's end back to the layers' sum."""
    terms: tuple[Term, ...]
    behind: tuple[str, ...]
    """Activations and pooling between these values, from the end backwards."""

    @property
    def total(self) -> str:
        """Return the name of the layers' sum."""
        return self.values[-1]

    def value_before(self, behind: tuple[str, ...]) -> str | None:
        """Return the value that exactly these operators follow; None where others do."""
        return self.values[len(behind)] if self.behind[: len(behind)] == behind else None


class RecordingInterpreter(fx.Interpreter):
    """Runs a graph and keeps some of its values."""

    def __init__(self, module: fx.GraphModule, names: frozenset[str]) -> None:
        super().__init__(module)
        self.names = names
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        """Run a node and keep its value when it is watched."""
        value = super().run_node(n)
        if n.name in self.names:
            self.values[n.name] = value
        return value


def record_values(
    module: fx.GraphModule, x: torch.Tensor, names: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Run a module and return the values of the named nodes."""
    interpreter = RecordingInterpreter(module, names)
    interpreter.run(x)
    return interpreter.values


def branch_tail(module: fx.GraphModule) -> BranchTail:
    """Return the tail of a branch, without terms where nothing at its end can be folded into."""
    node = next(n for n in module.graph.nodes if n.op == "output").args[0]
    assert isinstance(node, fx.Node)
    behind: list[str] = []
    values = [node.name]
    while (kind := operator_of(node, module)) in ACTIVATIONS | POOLING | PASSING:
        sources = node.all_input_nodes
        if len(sources) != 1 or len(sources[0].users) > 1:
            break
        if kind in PASSING:
            values[-1] = sources[0].name
        else:
            behind.append(f"{kind} {node.args[1:]}")
            values.append(sources[0].name)
        node = sources[0]
    return BranchTail(tuple(values), tuple(terms_at(node, module)), tuple(behind))


def operator_of(node: fx.Node, module: fx.GraphModule) -> str:
    """Return the ATen operator of a node, `dropout` for such layers, empty for others."""
    if node.op == "call_module":
        return "dropout" if isinstance(module.get_submodule(str(node.target)), _DropoutNd) else ""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else ""


def terms_at(node: fx.Node, module: fx.GraphModule) -> Iterator[Term]:
    """Yield layers whose outputs add up to a value, without other summands such as shortcuts."""
    if operator_of(node, module) == "add" and len(node.all_input_nodes) == 2 and not node.kwargs:
        for summand in node.all_input_nodes:
            if len(summand.users) == 1:
                yield from terms_at(summand, module)
    elif (term := term_at(node, module)) is not None:
        yield term


def term_at(node: fx.Node, module: fx.GraphModule) -> Term | None:
    """Return the term of a sum that a node computes, None when a fit cannot be folded into it."""
    if node.op != "call_module":
        return None
    last = module.get_submodule(str(node.target))
    source = node.all_input_nodes[0]
    if isinstance(last, _BatchNorm):
        return normed_term(node, last, source, module) if last.affine else None
    if not isinstance(last, (nn.modules.conv._ConvNd, nn.Linear)):
        return None
    if may_fit_whole(last):
        return Term(last, None, source.name, node.name)
    return Term(None, last, source.name, node.name)


def normed_term(node: fx.Node, norm: nn.Module, source: fx.Node, module: fx.GraphModule) -> Term:
    """Return the term of a batch norm, with the layer in front of it where that may be fitted."""
    if source.op == "call_module" and len(source.users) == 1:
        layer = module.get_submodule(str(source.target))
        if may_fit_whole(layer):
            return Term(layer, norm, source.all_input_nodes[0].name, node.name)
    return Term(None, norm, source.name, node.name)


def may_fit_whole(layer: nn.Module) -> TypeGuard[nn.Conv2d | nn.Linear]:
    """Return whether every output channel reads every input channel, and the fit is affordable."""
    if isinstance(layer, nn.Linear):
        return layer.in_features <= MAX_FIT_INPUTS
    if not isinstance(layer, nn.Conv2d) or layer.groups > 1:
        return False
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    return layer.weight[0].numel() <= MAX_FIT_INPUTS


def input_rows(term: Term, x: torch.Tensor) -> torch.Tensor:
    """Return [samples and positions, inputs of one output channel] of a layer to fit whole."""
    layer = term.layer
    if isinstance(layer, nn.Linear):
        return x.float().flatten(0, -2)
    assert isinstance(layer, nn.Conv2d)
    patches = functional.unfold(
        x.float(),
        layer.kernel_size,
        layer.dilation,
        layer.padding,  # type: ignore[arg-type]
        layer.stride,
    )
    return patches.transpose(1, 2).flatten(0, 1)
