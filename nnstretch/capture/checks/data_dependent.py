"""Tensors whose size depends on numbers: `x[mask]`, nonzero, unique; a graph has none of them."""

from __future__ import annotations

from typing import Any

import torch

from nnstretch.capture.checks.source_lines import line_of_trace
from nnstretch.capture.exported_program import module_path, operator_name
from nnstretch.errors import CannotCapture

DYNAMIC_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def check_operator(fx_node: Any, name: str) -> None:
    """Check that a node is an operator, not Python's arithmetic on a size that data decide.

    Raises CannotCapture with the operator whose size that is, its module and line.
    """
    try:
        operator_name(fx_node.target)
    except CannotCapture:
        source = sizing_node(fx_node)
        if source is None:
            called = getattr(fx_node.target, "__name__", fx_node.target)
            raise CannotCapture(
                f"cannot capture {name}, {called} {place_of(fx_node)} is neither a PyTorch operator"
                " nor batch arithmetic"
            ) from None
        operator = operator_name(source.target)[0].split(".")[0]
        raise CannotCapture(
            f"cannot capture {name}, {operator} ({source.name}) {place_of(source)} makes a tensor"
            " whose size depends on the numbers it reads, a graph has fixed sizes; keep all of it,"
            " and weigh or replace what is not wanted (torch.where, a product with the mask)"
        ) from None


def sizing_node(fx_node: Any) -> Any:
    """Return the operator from whose data a size comes, searched backwards; None for no such."""
    waiting, seen = list(fx_node.all_input_nodes), set[Any]()
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if is_data_dependent(node):
            return node
        waiting.extend(node.all_input_nodes)
    return None


def is_data_dependent(fx_node: Any) -> bool:
    """Return whether numbers decide the size of a node's result, or become a size themselves."""
    target = fx_node.target
    if not isinstance(target, torch._ops.OpOverload) or not DYNAMIC_TAGS & set(target.tags):
        return False
    if target is not torch.ops.aten.index.Tensor:
        return True
    positions = [node.meta.get("val") for node in fx_node.args[1] if node is not None]
    return any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in positions)


def place_of(fx_node: Any) -> str:
    """Return where a node comes from, as `in layer1.0, net.py:12`."""
    line = line_of_trace(fx_node.meta.get("stack_trace"))
    return f"in {module_path(fx_node) or 'forward'}{f', {line},' if line else ''}"
