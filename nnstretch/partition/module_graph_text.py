"""A module graph as text in four sections, and as a dictionary."""

from __future__ import annotations

from typing import Any

from nnstretch.partition.module_graph import (
    PIPELINE,
    Endpoint,
    Module,
    ModuleGraph,
    ModuleSettings,
    require_complete,
    topological_order,
)


def to_text(graph: ModuleGraph) -> str:
    """Print parameter groups, inputs, outputs and connections.

    `modN` is the module at place N of the topological order.
    """
    outputs = [f"|output({i}) : {source_text(graph, s)}" for i, s in graph.bound_outputs()]
    sections = {
        "Params": [f"|{s.name}: {target_text(graph, t)}" for s, t in graph.from_pipeline("param")],
        "Inputs": [f"|{s.name}: {target_text(graph, t)}" for s, t in graph.from_pipeline("input")],
        "output": outputs,
        "connections": connection_rows(graph),
    }
    blocks = ["\n  ".join([name, *rows]) for name, rows in sections.items()]
    return "\n\n".join(blocks)


def connection_rows(graph: ModuleGraph) -> list[str]:
    """Return a row for each connection of two modules, in the order of the sources."""
    rows = []
    for source, target in graph.connections:
        if PIPELINE not in (source.owner, target.owner):
            row = f"|{source_text(graph, source)}-> {place_of(graph, target.owner)}.{target.name}"
            places = (index_of(graph, source.owner), output_index(graph, source))
            rows.append((*places, index_of(graph, target.owner), row))
    return [row for *_, row in sorted(rows)]


def place_of(graph: ModuleGraph, module: str) -> str:
    """Return `modN`, the module's place in topological order."""
    return f"mod{index_of(graph, module)}"


def index_of(graph: ModuleGraph, module: str) -> int:
    """Return a module's index in topological order."""
    return [each.name for each in topological_order(graph)].index(module)


def output_index(graph: ModuleGraph, source: Endpoint) -> int:
    """Return the index of a module's output."""
    names = [item.name for item in graph.module(source.owner).outputs]
    return names.index(source.name)


def source_text(graph: ModuleGraph, source: Endpoint) -> str:
    """Return a module's output as text."""
    return f"{place_of(graph, source.owner)}.output({output_index(graph, source)})"


def target_text(graph: ModuleGraph, target: Endpoint) -> str:
    """Return a module's input or its parameters as text."""
    return f"{place_of(graph, target.owner)}:{target.name or 'param'}"


def to_dict(graph: ModuleGraph) -> dict[str, Any]:
    """Return a complete module graph as plain data. Raises BadInput that names what is missing."""
    require_complete(graph)
    modules = topological_order(graph)
    index = {module.name: number for number, module in enumerate(modules)}
    inputs: list[dict[str, Any]] = []
    for source, target in graph.from_pipeline("input"):
        row = {"global_interface_name": source.name, "mod_idx": index[target.owner]}
        inputs.append({**row, "module_interface_name": target.name})
    params: list[dict[str, Any]] = []
    for source, target in graph.from_pipeline("param"):
        params.append({"global_param_name": source.name, "mod_idx": index[target.owner]})
    return {
        "module_connection": {m.name: module_dict(graph, m, index) for m in modules},
        "input_connection": inputs,
        "param_connection": params,
    }


def module_dict(graph: ModuleGraph, module: Module, index: dict[str, int]) -> dict[str, Any]:
    """Return a module's place, settings and connected outputs as plain data."""
    outputs = []
    for number, item in enumerate(module.outputs):
        targets = graph.targets(Endpoint(module.name, "output", item.name))
        dependencies = [target_dict(index, target) for target in targets]
        if dependencies:
            outputs.append({"output_idx": number, "dependencies": dependencies})
    settings = graph.settings.get(module.name, ModuleSettings())
    return {
        "mod_idx": index[module.name],
        **settings_dict(settings),
        "call": module.call,
        "output": outputs,
    }


def settings_dict(settings: ModuleSettings) -> dict[str, Any]:
    """Return a module's settings as plain data."""
    return {
        "processors": list(settings.processors),
        "threads": settings.threads,
        "cores": list(settings.cores),
        "capacity": settings.capacity,
        **({"replicas": settings.replicas} if settings.replicas > 1 else {}),
    }


def target_dict(index: dict[str, int], target: Endpoint) -> dict[str, Any]:
    """Return the target of a connection as plain data."""
    if target.owner == PIPELINE:
        return {"global_output_index": int(target.name)}
    return {"mod_idx": index[target.owner], "input_name": target.name}
