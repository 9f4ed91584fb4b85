"""Links and files -> the manifest of one bundle.

Connections become tensors of one name, modules become stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.bundle.archive import digest
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.errors import BadInput
from nnstretch.graph import Graph
from nnstretch.partition.module_graph import (
    PIPELINE,
    Endpoint,
    Module,
    ModuleGraph,
    ModuleSettings,
    require_complete,
    spec_of,
    topological_order,
    with_connection,
)
from nnstretch.pipeline import Parameter, ParameterGroup, PipelineSpec, PipelineStage, TensorDecl

HOST = "cpu"
"""Where a module runs that no processor was named for."""
BEFORE, AFTER = "before", "after"
ITEM, RESULT = "item", "result"


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """What a network module computes with."""

    data: bytes
    inputs: tuple[Port, ...]
    """As the file names them, in the module's order."""
    outputs: tuple[Port, ...]
    predicted_us: dict[str, float] = field(default_factory=dict)
    """By processor, copies and contention included; empty where no chip was given."""
    error_us: dict[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    copy_in_us: dict[str, float] = field(default_factory=dict)
    """Of the predicted time, by processor that copies beside its compute."""
    copy_out_us: dict[str, float] = field(default_factory=dict)


def chain_module_graph(subgraphs: Sequence[Graph], outputs: Sequence[str]) -> ModuleGraph:
    """Return the links of a network's own stages.

    Who writes a value feeds everyone who reads it, and `outputs` leave in their order.

    Raises BadInput when no stage writes an output.
    """
    links = ModuleGraph(
        modules=tuple(
            module_from_graph(f"s{number}", subgraph) for number, subgraph in enumerate(subgraphs)
        )
    )
    writer = {
        item.name: Endpoint(module.name, "output", item.name)
        for module in links.modules
        for item in module.outputs
    }
    for module in links.modules:
        for item in module.inputs:
            links = with_connection(
                links,
                writer.get(item.name, Endpoint(PIPELINE, "input", item.name)),
                Endpoint(module.name, "input", item.name),
            )
    for index, name in enumerate(dict.fromkeys(outputs)):
        if name not in writer:
            raise BadInput(
                f"output {name} is an input, pipeline of {len(subgraphs)} stages, no stage"
                " writes it"
            )
        links = with_connection(links, writer[name], Endpoint(PIPELINE, "output", str(index)))
    return links


def module_from_graph(name: str, graph: Graph, params: Sequence[TensorDecl] = ()) -> Module:
    """Return a graph as a module: its inputs and outputs under their own names."""
    specs = graph.specs()
    inputs = tuple(TensorDecl(value.name, value.spec) for value in graph.inputs)
    return Module(
        name,
        inputs,
        tuple(TensorDecl(output, specs[output]) for output in graph.outputs),
        tuple(params),
    )


def with_parameter_groups(
    links: ModuleGraph, params: Mapping[str, Sequence[TensorDecl]]
) -> ModuleGraph:
    """Return a parameter group for each module that has parameters left, called as the module."""
    modules = tuple(
        replace(module, params=tuple(params.get(module.name, ()))) for module in links.modules
    )
    links = replace(links, modules=modules)
    for module in modules:
        if module.params:
            links = with_connection(
                links, Endpoint(PIPELINE, "param", module.name), Endpoint(module.name, "param")
            )
    return links


def add_python_stages(links: ModuleGraph, before: str = "", after: str = "") -> ModuleGraph:
    """Add Python stages around a pipeline.

    One takes an item of any kind and feeds all inputs, one makes all outputs a result of any kind.
    """
    inputs = {s.name: s for s, _ in links.connections if s.owner == PIPELINE and s.kind == "input"}
    outputs = sorted(
        (t for _, t in links.connections if t.owner == PIPELINE), key=lambda end: int(end.name)
    )
    sources, modules, extended = (
        links.sources(),
        list(links.modules),
        ModuleGraph(settings=links.settings),
    )
    if before:
        items = tuple(TensorDecl(name, spec_of(links, end)) for name, end in inputs.items())
        modules.insert(0, Module(BEFORE, (TensorDecl(ITEM),), items, call=before))
    if after:
        items = tuple(
            TensorDecl(sources[end].name, spec_of(links, sources[end])) for end in outputs
        )
        modules.append(Module(AFTER, items, (TensorDecl(RESULT),), call=after))
    extended = replace(extended, modules=tuple(modules), specs=() if before else links.specs)
    if before:
        extended = with_connection(
            extended, Endpoint(PIPELINE, "input", ITEM), Endpoint(BEFORE, "input", ITEM)
        )
    for source, target in links.connections:
        if before and source.owner == PIPELINE and source.kind == "input":
            source = Endpoint(BEFORE, "output", source.name)
        if after and target.owner == PIPELINE:
            target = Endpoint(AFTER, "input", source.name)
        extended = with_connection(extended, source, target)
    return (
        with_connection(
            extended, Endpoint(AFTER, "output", RESULT), Endpoint(PIPELINE, "output", "0")
        )
        if after
        else extended
    )


def tensor_names(links: ModuleGraph) -> dict[Endpoint, str]:
    """Return a name for everything that flows.

    Pipeline inputs keep theirs, outputs of modules too where it is free.
    """
    names = {s: s.name for s, _ in links.connections if s.owner == PIPELINE and s.kind == "input"}
    for module in topological_order(links):
        for item in module.outputs:
            taken = set(names.values())
            tries = (
                item.name,
                f"{module.name}.{item.name}",
                *(f"{module.name}.{item.name}.{i}" for i in range(len(taken) + 1)),
            )
            names[Endpoint(module.name, "output", item.name)] = next(
                name for name in tries if name not in taken
            )
    return names


def build_manifest(
    links: ModuleGraph,
    files: Mapping[str, ModuleFile],
    model: str,
    soc: str | None,
    error: float = 0.0,
) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and its files by their names in the bundle.

    Raises BadInput where links and files do not fit.
    """
    require_complete(links)
    names, sources = tensor_names(links), links.sources()
    stages: list[PipelineStage] = []
    subs: list[Subgraph] = []
    contents: dict[str, bytes] = {}
    for number, module in enumerate(topological_order(links)):
        settings = links.settings.get(module.name, ModuleSettings())
        feeds = [
            names[sources[Endpoint(module.name, "input", item.name)]] for item in module.inputs
        ]
        makes = [names[Endpoint(module.name, "output", item.name)] for item in module.outputs]
        stages.append(stage_of(module, settings, files.get(module.name), feeds, makes))
        if not module.call:
            sub, data = subgraph_of(module, settings, files.get(module.name), feeds, makes, number)
            subs.append(sub)
            contents[sub.file] = data
    groups = parameter_groups(links, {sub.name: contents[sub.file] for sub in subs})
    pipeline = PipelineSpec(
        tuple(stages), inputs_of(links, names), outputs_of(links, names), groups
    )
    return manifest_of(pipeline, tuple(subs), model, soc, error), contents


def stage_of(
    module: Module,
    settings: ModuleSettings,
    file: ModuleFile | None,
    feeds: Sequence[str],
    makes: Sequence[str],
) -> PipelineStage:
    """Build the pipeline stage of a module."""
    plain = PipelineStage(
        module.name, threads=settings.threads, cores=settings.cores, capacity=settings.capacity
    )
    if module.call:
        inputs = tuple(
            TensorDecl(name, item.spec) for name, item in zip(feeds, module.inputs, strict=True)
        )
        outputs = tuple(
            TensorDecl(name, item.spec) for name, item in zip(makes, module.outputs, strict=True)
        )
        return replace(
            plain,
            call=module.call,
            inputs=inputs,
            outputs=outputs,
            replicas=settings.replicas if settings.replicas > 1 else (),
        )
    replicas = settings.processors if len(settings.processors) > 1 else ()
    copies = ({}, {}) if file is None else (file.copy_in_us, file.copy_out_us)
    return replace(
        plain,
        subgraphs=(module.name,),
        replicas=replicas,
        copy_in_us=copies[0],
        copy_out_us=copies[1],
    )


def subgraph_of(
    module: Module,
    settings: ModuleSettings,
    file: ModuleFile | None,
    feeds: Sequence[str],
    makes: Sequence[str],
    number: int,
) -> tuple[Subgraph, bytes]:
    """Return a module's file with its ends named as the pipeline's tensors.

    Raises BadInput when the file is missing, or has other inputs and outputs.
    """
    if file is None:
        raise BadInput(
            f"module {module.name} has no file, pipeline, a network needs one and a Python stage a"
            " function"
        )
    for what, items, ports in (
        ("inputs", module.inputs, file.inputs),
        ("outputs", module.outputs, file.outputs),
    ):
        mine, theirs = (
            [(item.name, item.spec) for item in items],
            [(port.name, port.spec) for port in ports],
        )
        if mine != theirs:
            raise BadInput(
                f"{what} of module {module.name} are {describe_endpoints(mine)}, pipeline, its file"
                f" has {describe_endpoints(theirs)}"
            )
    data = file.data
    if [*feeds, *makes] != [port.name for port in (*file.inputs, *file.outputs)]:
        import onnx

        from nnstretch.export.onnx.rename_io import rename_io

        data = rename_io(onnx.load_from_string(data), feeds, makes).SerializeToString(
            deterministic=True
        )
    inputs = {name: replace(port, name=name) for name, port in zip(feeds, file.inputs, strict=True)}
    outputs = tuple(
        replace(port, name=name) for name, port in zip(makes, file.outputs, strict=True)
    )
    sub = Subgraph(
        name=module.name,
        processor=settings.processors[0] if settings.processors else HOST,
        file=f"subgraphs/{module.name}.onnx",
        sha256=digest(data),
        size_bytes=len(data),
        inputs=tuple(inputs.values()),
        outputs=outputs,
        segment=number,
        predicted_us=file.predicted_us,
        error_us=file.error_us,
        max_abs_error=file.max_abs_error,
    )
    return sub, data


def describe_endpoints(ends: Sequence[tuple[str, object]]) -> str:
    """Return names, shapes and types for messages."""
    return ", ".join(f"{name} {spec} {getattr(spec, 'dtype', '')}" for name, spec in ends)[:200]


def inputs_of(links: ModuleGraph, names: Mapping[Endpoint, str]) -> tuple[TensorDecl, ...]:
    """Return the declared inputs of the pipeline."""
    entering = dict.fromkeys(
        s for s, _ in links.connections if s.owner == PIPELINE and s.kind == "input"
    )
    return tuple(TensorDecl(names[end], spec_of(links, end)) for end in entering)


def outputs_of(links: ModuleGraph, names: Mapping[Endpoint, str]) -> tuple[str, ...]:
    """Return the names of the pipeline's outputs."""
    bound = sorted(
        ((int(t.name), names[s]) for s, t in links.connections if t.owner == PIPELINE),
        key=lambda pair: pair[0],
    )
    return tuple(name for _, name in bound)


def parameter_groups(links: ModuleGraph, files: Mapping[str, bytes]) -> tuple[ParameterGroup, ...]:
    """Find the parameters of groups in files. Raises BadInput where a file does not hold a
    parameter as it is.
    """
    fed = [
        (s.name, t.owner) for s, t in links.connections if s.owner == PIPELINE and s.kind == "param"
    ]
    return tuple(
        ParameterGroup(
            name, owner, locate_parameter(owner, files[owner], links.module(owner).params)
        )
        for name, owner in fed
    )


def locate_parameter(
    module: str, data: bytes, params: Sequence[TensorDecl]
) -> tuple[Parameter, ...]:
    """Return a module's parameters with their places in its file. Raises BadInput."""
    from nnstretch.export.onnx.rename_io import weight_offsets

    at = weight_offsets(data, [item.name for item in params])
    for item in params:
        if item.name not in at or item.spec != at[item.name][0]:
            raise BadInput(
                f"parameter {item.name} of module {module}, pipeline, its file has no plain weight"
                f" {item.name} {item.spec}"
            )
    return tuple(Parameter(item.name, *at[item.name]) for item in params)


def manifest_of(
    pipeline: PipelineSpec, subs: tuple[Subgraph, ...], model: str, soc: str | None, error: float
) -> Manifest:
    """Return the manifest of several modules; its inputs and outputs are those of the sub-graphs
    together.

    What enters them from elsewhere, and what someone else needs.
    """
    written = {port.name: port for sub in subs for port in sub.outputs}
    entering = {port.name: port for sub in subs for port in sub.inputs if port.name not in written}
    wanted = [*pipeline.outputs, *(item.name for stage in pipeline.stages for item in stage.inputs)]
    leaving = tuple(written[name] for name in dict.fromkeys(wanted) if name in written)
    return Manifest(model, soc, tuple(entering.values()), leaving, subs, error, pipeline=pipeline)
