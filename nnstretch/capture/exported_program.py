"""torch.export itself: making a program, and what its nodes are."""

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
    """Return an ExportedProgram whose batch may vary where network and examples allow it.

    Raises CannotCapture when torch.export refuses the module.
    """
    if len({e.shape[0] for e in examples if e.dim()}) > 1:
        return export_fixed(module, examples, name)  # Not every first axis is the batch.
    varied = tuple(
        torch.zeros((EXPORT_BATCH, *e.shape[1:]) if e.dim() else (), dtype=e.dtype)
        for e in examples
    )
    dynamic = tuple({0: torch.export.Dim.AUTO} if e.dim() else None for e in varied)
    try:
        # Broad on purpose: torch.export raises dozens of private types, and each means "not with a
        # varying batch".
        return torch.export.export(module, varied, dynamic_shapes=dynamic)
    except Exception:
        return export_fixed(module, examples, name)


def export_fixed(module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> Any:
    """Return an ExportedProgram at the shapes of the examples.

    Raises CannotCapture when torch.export refuses the module.
    """
    try:
        return torch.export.export(module, examples)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines or [type(error).__name__])[0][:300]
        shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
        raise CannotCapture(
            f"cannot capture {name} at input {shapes}, torch.export refuses: {reason}"
        ) from error


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, each module's previous mode afterwards."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def inline_wrappers(program: Any) -> torch.fx.Graph:
    """Write blocks that only switch autocast or gradients out in place, and return the nodes."""
    graph: torch.fx.Graph = program.graph
    for fx_node in list(graph.nodes):
        if fx_node.op == "call_function":
            name = getattr(fx_node.target, "_name", fx_node.target.__name__)
            if name in WRAPPER_CALLS:
                inline_call(program, fx_node)
    return graph


def inline_call(program: Any, fx_node: Any) -> None:
    """Write the nested graph that a node calls out in its place."""
    graph = program.graph
    at = [isinstance(a, torch.fx.Node) and a.op == "get_attr" for a in fx_node.args].index(True)
    holder = fx_node.args[at]
    inner = getattr(program.graph_module, holder.target).graph
    parameters = [node for node in inner.nodes if node.op == "placeholder"]
    values = dict(zip(parameters, fx_node.args[at + 1 :], strict=True))
    with graph.inserting_before(fx_node):
        outputs = graph.graph_copy(inner, values)
    for reader in list(fx_node.users):
        reader.replace_all_uses_with(outputs[reader.args[1]])
        graph.erase_node(reader)
    graph.erase_node(fx_node)
    if not holder.users:
        graph.erase_node(holder)


def operator_name(target: Any) -> tuple[str, bool]:
    """Return an operator's name without `aten::` and `.default`, and whether it writes in place.

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


def is_random(target: Any) -> bool:
    """Return whether the operator draws random numbers."""
    seeded = torch.Tag.nondeterministic_seeded
    return isinstance(target, torch._ops.OpOverload) and seeded in target.tags


def is_assertion(target: Any) -> bool:
    """Return whether a node is a check on types or shapes that export leaves behind."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.rpartition("::")[2]
    return name.startswith(("_assert", "sym_constrain_range"))


def module_path(fx_node: Any) -> str:
    """Return the path of the module that a node comes from, empty where there is none."""
    stack = [path for path, _ in (fx_node.meta.get("nn_module_stack") or {}).values()]
    path = stack[-1] if stack else ""
    return "" if path.startswith("_empty") else str(path).partition("@")[0]
