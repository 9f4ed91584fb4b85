"""Constants of an exported program, computed while it is read."""

from __future__ import annotations

from typing import Any

import torch

from nnstretch.capture.checks.random_operators import is_random

TYPE_ONLY_OPERATORS = frozenset(
    {
        torch.ops.aten.new_zeros.default,
        torch.ops.aten.new_ones.default,
        torch.ops.aten.new_full.default,
    }
)
"""They read a tensor for its type only."""


class ConstantFolder:
    """Tensors that depend on no input and no parameter: masks, index tables, coordinate grids.

    They are built by writing into views, which a graph of pure operators could not repeat.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """Name of an exported node -> its value."""

    def try_fold(self, fx_node: Any) -> bool:
        """Compute a node now where it reads only constants; return whether it did."""
        if not self.is_foldable(fx_node):
            return False
        values: dict[Any, torch.Tensor] = {}
        for node in fx_node.all_input_nodes:
            if node.name in self.tensors:
                values[node] = self.tensors[node.name]
            else:
                values[node] = torch.empty(0, dtype=node.meta["val"].dtype)
        args, kwargs = torch.fx.map_arg((fx_node.args, fx_node.kwargs), lambda node: values[node])
        self.tensors[fx_node.name] = fx_node.target(*args, **kwargs)
        return True

    def is_foldable(self, fx_node: Any) -> bool:
        """Return whether a node is a function of constants, of a size that is known."""
        target = fx_node.target
        value = fx_node.meta.get("val")
        if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
            return False
        inputs = fx_node.all_input_nodes
        reads = inputs[1:] if target in TYPE_ONLY_OPERATORS else inputs
        if any(node.name not in self.tensors for node in reads) or is_random(target):
            return False
        if any(isinstance(size, torch.SymInt) for size in value.shape):
            return False
        return not (target._schema.is_mutable and inputs[0].op == "placeholder")
