"""Layers and operators in the order in which `forward` calls them, with the edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.export.cpp.layer_lists.attributes import (
    Record,
    chain_record,
    is_chain,
    is_layer,
    layer_record,
    operator_record,
    record_name,
)
from nnstretch.export.cpp.layer_lists.variable_names import variable_names
from nnstretch.export.cpp.translate import Placement
from nnstretch.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Step:
    """Operators that form one entry: a layer, a Sequential of layers, or one operator."""

    path: str
    """Of the module; empty for an operator that no layer calls."""
    nodes: tuple[Node, ...]

    @property
    def value(self) -> str:
        """Return the name of what it computes."""
        return self.nodes[-1].name


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that one entry reads from another."""

    value: str
    source: str
    """Name of the entry that computes it; empty for an input of the network."""
    target: str
    size_bytes: int


def forward_order(
    module: nn.Module, captured: CapturedNetwork, placement: Placement
) -> list[Record]:
    """List what a forward pass calls; `next` names every entry that reads the result."""
    graph = captured.graph
    modules = dict(module.named_modules())
    steps = steps_of(graph, modules)
    names = entry_names(steps)
    edges = edges_of(graph, steps, names)
    labels = variable_names(captured.stack_traces, graph.input_names)
    records: list[Record] = []
    for step, name in zip(steps, names, strict=True):
        arriving = [edge for edge in edges if edge.target == name]
        leaving = [edge for edge in edges if edge.source == name]
        reads = [labels.get(edge.value, edge.value) for edge in arriving]
        record: Record = {
            "name": name,
            "input": reads[0] if len(reads) == 1 else reads,
            "output": labels.get(step.value, step.value),
            "next": list(dict.fromkeys(edge.target for edge in leaving)),
            **described(step, modules, graph),
            "input_bytes": [edge.size_bytes for edge in arriving],
            "next_bytes": [edge.size_bytes for edge in leaving],
        }
        if step.value in graph.outputs:
            record["returned"] = True
        if processor := placement(step.nodes[0].module):
            record["processor"] = processor
        records.append(record)
    return records


def described(step: Step, modules: Mapping[str, nn.Module], graph: Graph) -> Record:
    """Return what an entry says of its layer or operator, and of its work."""
    node = step.nodes[-1]
    module = modules[step.path] if step.path else None
    if module is None:
        record: Record = {"sequential": "no", **operator_record(node)}
        specs = {weight.name: list(weight.spec.shape) for weight in graph.weights}
        if weights := {name: specs[name] for name in node.inputs if name in specs}:
            record["parameters"] = weights
    elif is_chain(module):
        record = {"sequential": "yes", **chain_record(module, step.path)}
    else:
        record = {"sequential": "no", **layer_record(module)}
    return {
        **record,
        "module": step.path or node.module,
        "output_shape": list(node.output.shape),
        "macs": sum(called.macs for called in step.nodes),
    }


def steps_of(graph: Graph, modules: Mapping[str, nn.Module]) -> list[Step]:
    """Put operators into entries: those of one call of a layer, or of a Sequential, are one."""
    steps: list[Step] = []
    for node in graph.nodes:
        path = entry_path(node, modules)
        if path and steps and steps[-1].path == path and continues(steps[-1], node, modules[path]):
            steps[-1] = Step(path, (*steps[-1].nodes, node))
        else:
            steps.append(Step(path, (node,)))
    return steps


def entry_path(node: Node, modules: Mapping[str, nn.Module]) -> str:
    """Return the path of the layer or Sequential whose entry an operator belongs to."""
    module = modules.get(node.module)
    if not node.module or module is None or not is_layer(module):
        return ""
    container = node.module.rpartition(".")[0]
    return container if container and is_chain(modules[container]) else node.module


def continues(step: Step, node: Node, owner: nn.Module) -> bool:
    """Return whether a node belongs to the call that a step has begun, not to the next call."""
    if node.module != step.nodes[-1].module:
        children = list(owner._modules)
        before, at = (children.index(n.module.rpartition(".")[2]) for n in (step.nodes[-1], node))
        return before < at
    return all((called.module, called.kind) != (node.module, node.kind) for called in step.nodes)


def entry_names(steps: Sequence[Step]) -> list[str]:
    """Name every entry: layers by their path, operators by their value, each name once."""
    taken: set[str] = set()
    names = [""] * len(steps)
    layers_first = sorted(range(len(steps)), key=lambda number: not steps[number].path)
    for number in layers_first:
        plain = record_name(steps[number].path) or steps[number].value
        name, repeat = plain, 2
        while name in taken:
            name, repeat = f"{plain}_{repeat}", repeat + 1
        taken.add(name)
        names[number] = name
    return names


def edges_of(graph: Graph, steps: Sequence[Step], names: Sequence[str]) -> list[Edge]:
    """Return every tensor that an entry reads from outside, once, in the order of reading."""
    sizes = {value.name: value.spec.size_bytes for value in graph.inputs}
    sizes |= {node.name: sum(spec.size_bytes for spec in node.outputs) for node in graph.nodes}
    sources = {value.name: "" for value in graph.inputs}
    edges: list[Edge] = []
    for step, name in zip(steps, names, strict=True):
        sources |= {node.name: name for node in step.nodes}
        read: dict[str, int] = {}
        for node in step.nodes:
            for value in node.inputs:
                if value in sources and sources[value] != name:
                    # Of several tensors, getitem takes one.
                    part = node.output.size_bytes if node.kind == "getitem" else sizes[value]
                    read[value] = max(read.get(value, 0), part)
        edges += [Edge(value, sources[value], name, size) for value, size in read.items()]
    return edges
