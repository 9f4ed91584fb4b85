"""Constants of an exported program, computed while it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from nnstretch.capture.checks.random_operators import is_random
from nnstretch.capture.memory.views import changes_shape
from nnstretch.errors import CannotCapture

MAX_CONSTANT_ELEMENTS = 2**28
"""A constant larger than this (1 GiB of float32) is a mistake or an attack, not a mask."""
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

    def __init__(self, network: str) -> None:
        self.network = network
        self.tensors: dict[str, torch.Tensor] = {}
        """Name of an exported node -> its value."""

    def try_fold(self, fx_node: Any) -> bool:
        """Compute a node now where it reads only constants; return whether it did.

        Raises CannotCapture when the constant is too large.
        """
        if not self.is_foldable(fx_node):
            return False
        values: dict[Any, torch.Tensor] = {}
        for node in fx_node.all_input_nodes:
            if node.name in self.tensors:
                values[node] = self.tensors[node.name]
            else:
                values[node] = torch.empty(0, dtype=node.meta["val"].dtype)
        args, kwargs = torch.fx.map_arg((fx_node.args, fx_node.kwargs), lambda node: values[node])
        elements = max(fx_node.meta["val"].numel(), count_elements(fx_node.target, args, kwargs))
        if elements > MAX_CONSTANT_ELEMENTS:
            raise CannotCapture(
                f"cannot capture {self.network}, {fx_node.name} is a constant of {elements}"
                f" elements, at most {MAX_CONSTANT_ELEMENTS} are computed"
            )
        if changes_shape(fx_node.target):
            args = (args[0].detach(), *args[1:])  # Its argument keeps the shape it had.
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


def count_elements(operator: Any, args: Any, kwargs: Any) -> int:
    """Return how many elements an operator would write, without computing or allocating any.

    A file may say another size beside the call. 0 where only computing tells.
    """
    mode = FakeTensorMode()
    try:
        # All tensors are fake: of real ones alone, sums and products would really be computed.
        args, kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        with mode:
            value = operator(*args, **kwargs)
        return int(value.numel())
    except Exception:
        # Broad on purpose: an operator whose size depends on numbers raises several types, and one
        # that is called wrongly raises the same ones again when it is computed.
        return 0
