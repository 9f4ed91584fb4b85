"""torch.export -> Graph: one forward pass, as the operators PyTorch really calls."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import fx, nn

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.capture.checks.operand_types import check_operand_types
from nnstretch.capture.exported_program import eval_mode, export_program
from nnstretch.capture.host_process import silence_python
from nnstretch.capture.module_layers import attribute_path
from nnstretch.capture.program_reader import read_program
from nnstretch.errors import BadInput, CannotCapture
from nnstretch.files.checked import checked
from nnstretch.graph import Graph


@checked
def capture(
    module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network"
) -> Graph:
    """Capture the graph of one evaluation-mode forward pass at the shape of `example_input`.

    Raises BadInput without an example, CannotCapture where the work is no fixed graph of tensors
    (control flow that looks at values). Warns of what the graph does differently by intent.
    """
    captured = trace(module, example_input, name)
    for note in captured.notes:
        warnings.warn(f"{name}: {note}", stacklevel=3)
    return captured.graph


def trace(
    module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network"
) -> CapturedNetwork:
    """Capture together with the weights; see `capture`. Raises BadInput without an example."""
    examples = example_input if isinstance(example_input, tuple) else (example_input,)
    known = recall_captured(module, examples, name)
    if known is not None:
        return known
    if not examples:
        raise BadInput(f"no example input, capture of {name}, a network reads one or more tensors")
    if empty := [tuple(x.shape) for x in examples if isinstance(x, torch.Tensor) and not x.numel()]:
        raise BadInput(f"example input is {empty[0]}, capture of {name}, it holds no number")
    check_hooks(module, name)
    batch = examples[0].shape[0] if examples[0].dim() else 1
    with silence_python(), eval_mode(module), torch.no_grad():
        program = export_program(module, examples, name)
        captured = read_program(program, batch, name)
    if not captured.notes:  # autocast converts by itself
        check_operand_types(captured.graph)
    return replace(captured, notes=(*captured.notes, *batch_notes(program, batch)))


def batch_notes(program: Any, batch: int) -> tuple[str, ...]:
    """Return one note on a program whose batch is fixed; none where it may vary, or is none."""
    names = set(program.graph_signature.user_inputs)
    inputs = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    sizes = [value.shape[0] for value in inputs if value.dim()]
    if not sizes or any(isinstance(size, torch.SymInt) for size in sizes):
        return ()
    return (
        f"the batch is fixed at {batch}, that of the example: at another one the graph may fail or"
        " compute something else",
    )


def check_hooks(module: nn.Module, name: str) -> None:
    """Check that torch.export sees all hooks. Raises CannotCapture for those of a GraphModule."""
    if isinstance(module, fx.GraphModule) and (module._forward_hooks or module._forward_pre_hooks):
        raise CannotCapture(
            f"cannot capture {name}, it is a GraphModule with a hook of its own, which torch.export"
            " leaves out, put the hook on a layer or the network into another module"
        )


def structure_of(module: nn.Module) -> tuple[object, ...]:
    """Return what a module computes apart from its numbers, as far as that can be compared."""
    tensors = chain(module.named_parameters(), module.named_buffers())
    specs = tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors)
    hooks = tuple(
        (name, *map(id, chain(part._forward_hooks, part._forward_pre_hooks)))
        for name, part in module.named_modules()
        if part._forward_hooks or part._forward_pre_hooks
    )
    return str(module), getattr(module, "code", ""), specs, hooks


def recall_captured(
    module: nn.Module, examples: tuple[torch.Tensor, ...], name: str
) -> CapturedNetwork | None:
    """Return the graph a module was built from, with its present weights.

    None where shapes differ, or where the module was changed since: it is then captured as it is.
    """
    graph = getattr(module, "captured_graph", None)
    if not isinstance(graph, Graph) or structure_of(module) != getattr(module, "structure", ()):
        return None
    if [tuple(example.shape) for example in examples] != [v.spec.shape for v in graph.inputs]:
        return None
    current = dict(module.named_parameters()) | dict(module.named_buffers())
    names = [weight.name for weight in graph.weights]
    weights = {weight: current[attribute_path(weight)].detach() for weight in names}
    return CapturedNetwork(replace(graph, name=name), weights)


__all__ = ["CapturedNetwork", "capture", "trace"]
