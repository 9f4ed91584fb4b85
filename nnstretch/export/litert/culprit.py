"""Which operator of a module the converter refuses, and where in the module it is.

The converter names neither in most of its complaints, so after one each operator is tried alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from nnstretch.capture.exported_program import module_path, operator_name

LONGEST_S = 30.0
"""A refusal comes later by little more than this."""
ORDINARY = ("conv2d", "relu", "linear", "add", "cat", "batch_norm", "flatten")
"""Operators that are hardly ever refused: tried last, since each takes a second."""
Call = tuple[Node, tuple[Any, ...], dict[str, Any]]
"""An operator of the module, and what it was called with."""


def refused_operator(
    module: nn.Module,
    examples: Sequence[torch.Tensor],
    convert: Callable[[nn.Module, tuple[torch.Tensor, ...]], object],
    named: str | None,
) -> str:
    """Return `OPERATOR in MODULE.PATH` of the operator that `convert` refuses alone, or of the one
    that the converter has `named`; the name alone, or nothing, where none is found.
    """
    until_s = perf_counter() + LONGEST_S
    try:
        calls = list(calls_of(module, examples))
        for node, args, kwargs in sorted(calls, key=lambda call: operator(call[0]) in ORDINARY):
            if named is not None and operator(node) == named:
                return place(node)
            if (
                named is None
                and perf_counter() < until_s
                and is_refused(node, args, kwargs, convert)
            ):
                return place(node)
    except Exception:  # the module's or the converter's own: the refusal is told without a place
        return named or ""
    return named or ""


def calls_of(module: nn.Module, examples: Sequence[torch.Tensor]) -> Iterator[Call]:
    """Yield the operators of a module that differ in more than their numbers."""
    graph = torch.export.export(module, tuple(examples)).module()
    calls: list[Call] = []

    class CallRecorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            if n.op == "call_function":
                calls.append((n, *self.fetch_args_kwargs_from_env(n)))
            return super().run_node(n)

    CallRecorder(graph).run(*examples)
    seen = set()
    for node, args, kwargs in calls:
        described = (node.target, repr(pytree.tree_map_only(torch.Tensor, kind_of, (args, kwargs))))
        if described not in seen:
            seen.add(described)
            yield node, args, kwargs


def kind_of(tensor: torch.Tensor) -> int:
    """Return what of a tensor tells operators apart."""
    return tensor.dim()


class Alone(nn.Module):
    """An operator of which one tensor is the input; all others are constants."""

    def __init__(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.target = node.target
        self.values, self.form = pytree.tree_flatten((args, kwargs))
        tensors = [at for at, value in enumerate(self.values) if isinstance(value, torch.Tensor)]
        self.first, *others = tensors
        for at in others:
            self.register_buffer(f"t{at}", self.values[at].detach())
        self.others = others

    def forward(self, x: torch.Tensor) -> Any:
        """Call the operator."""
        values = list(self.values)
        values[self.first] = x
        for at in self.others:
            values[at] = self.get_buffer(f"t{at}")
        args, kwargs = pytree.tree_unflatten(values, self.form)
        return self.target(*args, **kwargs)  # type: ignore[operator]


def is_refused(
    node: Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convert: Callable[[nn.Module, tuple[torch.Tensor, ...]], object],
) -> bool:
    """Return whether the converter refuses an operator of tensors alone."""
    if not any(isinstance(value, torch.Tensor) for value in pytree.tree_leaves((args, kwargs))):
        return False
    alone = Alone(node, args, kwargs).eval()
    read = alone.values[alone.first].detach()
    try:
        convert(alone, (read,))
    except Exception:  # whatever it complains of
        return True
    return False


def operator(node: Node) -> str:
    """Return the name of an operator without its overload."""
    return operator_name(node.target)[0].split(".")[0]


def place(node: Node) -> str:
    """Return an operator with the path of its module."""
    return f"{operator(node)} in {module_path(node) or 'forward'}"
