"""Only some of a network's outputs: by name, or by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.errors import UnknownName, closest
from nnstretch.graph import names_read
from nnstretch.structure.cuts import prune_unread


def choose_graph_outputs(
    captured: CapturedNetwork, wanted: Sequence[str], network: str
) -> CapturedNetwork:
    """Return a captured network that computes only some of its outputs.

    They go by the names that their file gives them, and by those that they have in the graph.
    Raises UnknownName.
    """
    graph = captured.graph
    called = captured.output_names or graph.outputs
    positions = [position_of(name, called, network, graph.outputs) for name in wanted]
    outputs = tuple(graph.outputs[position] for position in positions)
    nodes = prune_unread(graph.nodes, outputs)
    read = {*outputs, *names_read(nodes)}
    weights = tuple(weight for weight in graph.weights if weight.name in read)
    chosen = replace(graph, outputs=outputs, nodes=nodes, weights=weights)
    tensors = {weight.name: captured.weights[weight.name] for weight in weights}
    names = tuple(called[position] for position in positions)
    return replace(captured, graph=chosen, weights=tensors, output_names=names)


def choose_module_outputs(module: nn.Module, wanted: Sequence[str], network: str) -> nn.Module:
    """Let a module return only some of its outputs; refuses at the first call what it lacks."""

    def choose(_: nn.Module, __: Any, result: Any) -> Any:
        tensors = named_outputs(result)
        names = tuple(tensors)
        chosen = tuple(tensors[names[position_of(name, names, network)]] for name in wanted)
        return chosen[0] if len(chosen) == 1 else chosen

    module.register_forward_hook(choose)
    return module


def named_outputs(result: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a result by name; those of lists by position."""
    if isinstance(result, torch.Tensor):
        return {"0": result}
    pairs = result.items() if isinstance(result, Mapping) else enumerate(result)
    named: dict[str, torch.Tensor] = {}
    for key, value in pairs:
        if isinstance(value, torch.Tensor):
            named[str(key)] = value
        elif isinstance(value, Mapping | list | tuple):
            inner = named_outputs(value)
            named.update((f"{key}.{name}", tensor) for name, tensor in inner.items())
    return named


def position_of(
    name: str, names: Sequence[str], network: str, other_names: Sequence[str] = ()
) -> int:
    """Return the position of an output. Raises UnknownName, with the names there are."""
    for known in (names, other_names):
        if name in known:
            return known.index(name)
    if name.isascii() and name.isdecimal() and int(name[:9]) < len(names):
        return int(name)
    raise UnknownName(
        f"unknown output {name!r:.80}, {network}, its outputs are {', '.join(names[:40])} (or their"
        f" numbers, from 0){closest(name, list(names))}"
    )
