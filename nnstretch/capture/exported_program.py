"""torch.export itself: making a program without a word on standard error, and what its
nodes are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from nnstretch.errors import CannotCapture

BATCH_ARITHMETIC = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
}
"""What Python does with batch sizes between tensor operators."""
WRAPPER_CALLS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})
"""Calls of a nested graph that change no value when evaluated in float32."""
EXPORT_BATCH = 2
"""torch.export takes 0 and 1 for constants, so a batch that may vary is traced with 2."""


def export_program(module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> Any:
    """Return an ExportedProgram whose batch may vary where the network allows it.

    Raises CannotCapture when torch.export refuses the module.
    """
    varied = tuple(torch.zeros((EXPORT_BATCH, *e.shape[1:]), dtype=e.dtype) for e in examples)
    try:
        # Broad on purpose: torch.export raises dozens of private types, and each means "not with a
        # varying batch".
        return torch.export.export(
            module, varied, dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in varied)
        )
    except Exception:
        pass
    try:
        return torch.export.export(module, examples)
    except Exception as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
        raise CannotCapture(
            f"cannot capture {name} at input {shapes}, torch.export refuses: {reason[:300]}"
        ) from error


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, every module's own mode afterwards."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def inline_wrappers(program: Any) -> torch.fx.Graph:
    """Return the program's nodes, with blocks that only switch autocast or gradients off written
    out in place.
    """
    graph: torch.fx.Graph = program.graph
    for fx_node in list(graph.nodes):
        if (
            fx_node.op != "call_function"
            or getattr(fx_node.target, "_name", fx_node.target.__name__) not in WRAPPER_CALLS
        ):
            continue
        at = next(
            i
            for i, arg in enumerate(fx_node.args)
            if isinstance(arg, torch.fx.Node) and arg.op == "get_attr"
        )
        holder = fx_node.args[at]
        inner = getattr(program.graph_module, holder.target).graph
        places = [n for n in inner.nodes if n.op == "placeholder"]
        with graph.inserting_before(fx_node):
            outputs = graph.graph_copy(
                inner, dict(zip(places, fx_node.args[at + 1 :], strict=True))
            )
        for reader in list(fx_node.users):
            reader.replace_all_uses_with(outputs[reader.args[1]])  # type: ignore[index]
            graph.erase_node(reader)
        graph.erase_node(fx_node)
        if not holder.users:
            graph.erase_node(holder)
    return graph


def operator_name(target: Any) -> tuple[str, bool]:
    """Return PyTorch's name without the namespace `aten` and the overload `default`.

    And whether it wrote in place.

    Raises CannotCapture when the target is no PyTorch operator.
    """
    if target in BATCH_ARITHMETIC:
        return f"py.{BATCH_ARITHMETIC[target]}", False
    if target is operator.getitem:
        return "getitem", False
    if not isinstance(target, torch._ops.OpOverload):
        raise CannotCapture(
            f"cannot capture {target}, it is neither a PyTorch operator nor batch arithmetic"
        )
    namespace, _, base = target._schema.name.partition("::")
    in_place = base.endswith("_") and not base.endswith("__")
    base = base.rstrip("_") if in_place else base
    overload = "" if target._overloadname == "default" else f".{target._overloadname}"
    return ("" if namespace == "aten" else f"{namespace}::") + base + overload, in_place


def is_view(fx_node: Any) -> bool:
    """Return whether the result shows its first argument's memory, or is a piece of one
    that does.
    """
    if fx_node.target is operator.getitem:
        return isinstance(fx_node.args[0].target, torch._ops.OpOverload) and is_view(
            fx_node.args[0]
        )
    if not isinstance(fx_node.target, torch._ops.OpOverload) or not fx_node.target._schema.returns:
        return False
    info = fx_node.target._schema.returns[0].alias_info
    return info is not None and not info.is_write


def is_read_after(fx_node: Any, moment: Any) -> bool:
    """Return whether a later node than `moment` reads the value."""
    return any(reader > moment for reader in fx_node.users)


def is_random(target: Any) -> bool:
    """Return whether the operator draws random numbers."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
    )


def is_assertion(target: Any) -> bool:
    """Return whether a node is a check on types or shapes that export leaves behind."""
    name = (
        target._schema.name.rpartition("::")[2] if isinstance(target, torch._ops.OpOverload) else ""
    )
    return name.startswith(("_assert", "sym_constrain_range"))


def module_path(fx_node: Any) -> str:
    """Return the path of the module that a node comes from, empty where there is none."""
    stack = [path for path, _ in (fx_node.meta.get("nn_module_stack") or {}).values()]
    path = stack[-1] if stack else ""
    return "" if path.startswith("_empty") else str(path).partition("@")[0]
