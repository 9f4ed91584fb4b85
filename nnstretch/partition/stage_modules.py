"""A network's stages as connected modules, with parameter groups and Python stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nnstretch.errors import BadInput
from nnstretch.graph import Graph
from nnstretch.partition.module_graph import (
    PIPELINE,
    Connection,
    Endpoint,
    Module,
    ModuleGraph,
    spec_of,
    with_connection,
    with_connections,
)
from nnstretch.pipeline import TensorDecl

BEFORE, AFTER = "before", "after"
"""Names of the Python stages in front of a network and behind it."""
ITEM, RESULT = "item", "result"
"""Input of the stage in front and output of the stage behind: any Python object."""


def chain_module_graph(subgraphs: Sequence[Graph], outputs: Sequence[str]) -> ModuleGraph:
    """Connect a network's stages by the names of their values; `outputs` leave in their order.

    Raises BadInput when no stage writes an output.
    """
    modules = [module_from_graph(f"s{number}", graph) for number, graph in enumerate(subgraphs)]
    producers = {}
    for module in modules:
        for item in module.outputs:
            producers[item.name] = Endpoint(module.name, "output", item.name)
    connections = []
    for module in modules:
        for item in module.inputs:
            source = producers.get(item.name, Endpoint(PIPELINE, "input", item.name))
            connections.append((source, Endpoint(module.name, "input", item.name)))
    for index, name in enumerate(dict.fromkeys(outputs)):
        if name not in producers:
            raise BadInput(
                f"output {name} is an input, pipeline of {len(subgraphs)} stages, no stage"
                " writes it"
            )
        connections.append((producers[name], Endpoint(PIPELINE, "output", str(index))))
    return with_connections(ModuleGraph(tuple(modules)), connections)


def module_from_graph(name: str, graph: Graph) -> Module:
    """Return a graph as a module: its inputs and outputs under their own names."""
    specs = graph.specs()
    inputs = tuple(TensorDecl(value.name, value.spec) for value in graph.inputs)
    return Module(
        name, inputs, tuple(TensorDecl(output, specs[output]) for output in graph.outputs)
    )


def with_parameter_groups(
    graph: ModuleGraph, params: Mapping[str, Sequence[TensorDecl]]
) -> ModuleGraph:
    """Add a parameter group, named as the module, for each module with parameters."""
    modules = tuple(replace(m, params=tuple(params.get(m.name, ()))) for m in graph.modules)
    graph = replace(graph, modules=modules)
    for module in modules:
        if module.params:
            group = Endpoint(PIPELINE, "param", module.name)
            graph = with_connection(graph, group, Endpoint(module.name, "param"))
    return graph


def add_python_stages(graph: ModuleGraph, before: str = "", after: str = "") -> ModuleGraph:
    """Add a Python stage that feeds all inputs and one that reads all outputs.

    Each is named as `module:function`; empty for none.
    """
    modules = list(graph.modules)
    connections = list(graph.connections)
    if before:
        modules.insert(0, stage_before(graph, before))
        connections = [feed_from_stage(connection) for connection in connections]
        item = Endpoint(PIPELINE, "input", ITEM)
        connections.insert(0, (item, Endpoint(BEFORE, "input", ITEM)))
    if after:
        modules.append(stage_after(graph, after))
        connections = [bind_to_stage(connection) for connection in connections]
        result = Endpoint(AFTER, "output", RESULT)
        connections.append((result, Endpoint(PIPELINE, "output", "0")))
    specs = () if before else graph.specs
    extended = ModuleGraph(modules=tuple(modules), specs=specs, settings=graph.settings)
    return with_connections(extended, connections)


def stage_before(graph: ModuleGraph, call: str) -> Module:
    """Return the Python stage that makes all inputs of the pipeline."""
    inputs = dict.fromkeys(source for source, _ in graph.from_pipeline("input"))
    items = tuple(TensorDecl(source.name, spec_of(graph, source)) for source in inputs)
    return Module(BEFORE, (TensorDecl(ITEM),), items, call=call)


def stage_after(graph: ModuleGraph, call: str) -> Module:
    """Return the Python stage that reads all outputs of the pipeline."""
    sources = [source for _, source in graph.bound_outputs()]
    items = tuple(TensorDecl(source.name, spec_of(graph, source)) for source in sources)
    return Module(AFTER, items, (TensorDecl(RESULT),), call=call)


def feed_from_stage(connection: Connection) -> Connection:
    """Return the connection with the Python stage in front instead of a pipeline input."""
    source, target = connection
    if source.owner == PIPELINE and source.kind == "input":
        return Endpoint(BEFORE, "output", source.name), target
    return connection


def bind_to_stage(connection: Connection) -> Connection:
    """Return the connection with the Python stage behind instead of a pipeline output."""
    source, target = connection
    if target.owner == PIPELINE:
        return source, Endpoint(AFTER, "input", source.name)
    return connection
