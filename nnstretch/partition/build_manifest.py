"""Module graph and files -> the manifest of one bundle.

A connection becomes one tensor name on both sides, a module becomes a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.bundle.archive import digest
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.errors import BadInput
from nnstretch.partition.module_graph import (
    Endpoint,
    Module,
    ModuleGraph,
    ModuleSettings,
    require_complete,
    spec_of,
    topological_order,
)
from nnstretch.pipeline import Parameter, ParameterGroup, PipelineSpec, PipelineStage, TensorDecl

DEFAULT_PROCESSOR = "cpu"
"""Where a module runs that no processor was named for."""


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A network module's ONNX file, with its predicted times."""

    data: bytes
    inputs: tuple[Port, ...]
    """As the file names them, in the module's order."""
    outputs: tuple[Port, ...]
    predicted_us: dict[str, float] = field(default_factory=dict)
    """By processor, copies and contention included; empty where no chip was given."""
    error_us: dict[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    copy_in_us: dict[str, float] = field(default_factory=dict)
    """Part of the predicted time, by processor that copies beside its compute."""
    copy_out_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundModule:
    """A module and the pipeline's names of what it reads and writes."""

    module: Module
    settings: ModuleSettings
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def build_manifest(
    graph: ModuleGraph,
    files: Mapping[str, ModuleFile],
    model: str,
    soc: str | None,
    error: float = 0.0,
) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and the bundle's files by name.

    Raises BadInput where modules and files do not fit.
    """
    require_complete(graph)
    names = tensor_names(graph)
    stages: list[PipelineStage] = []
    subgraphs: list[Subgraph] = []
    contents: dict[str, bytes] = {}
    for number, bound in enumerate(bind_modules(graph, names)):
        if bound.module.call:
            stages.append(python_stage(bound))
            continue
        file = file_of(bound.module, files)
        stages.append(network_stage(bound, file))
        subgraph, data = subgraph_of(bound, file, number)
        subgraphs.append(subgraph)
        contents[subgraph.file] = data
    groups = parameter_groups(graph, {sub.name: contents[sub.file] for sub in subgraphs})
    inputs = pipeline_inputs(graph, names)
    outputs = tuple(names[source] for _, source in graph.bound_outputs())
    pipeline = PipelineSpec(tuple(stages), inputs, outputs, groups)
    return manifest_of(pipeline, tuple(subgraphs), model, soc, error), contents


def tensor_names(graph: ModuleGraph) -> dict[Endpoint, str]:
    """Name every tensor: pipeline inputs keep theirs, and so do outputs of modules where free."""
    names = {source: source.name for source, _ in graph.from_pipeline("input")}
    for module in topological_order(graph):
        for item in module.outputs:
            end = Endpoint(module.name, "output", item.name)
            names[end] = free_name(module.name, item.name, set(names.values()))
    return names


def free_name(module: str, output: str, taken: set[str]) -> str:
    """Return OUTPUT, MODULE.OUTPUT or MODULE.OUTPUT.N, the first that is not taken."""
    numbered = [f"{module}.{output}.{number}" for number in range(len(taken) + 1)]
    candidates = [output, f"{module}.{output}", *numbered]
    return next(name for name in candidates if name not in taken)


def bind_modules(graph: ModuleGraph, names: Mapping[Endpoint, str]) -> list[BoundModule]:
    """Return all modules in topological order with the names of their tensors."""
    sources = graph.sources()
    bound = []
    for module in topological_order(graph):
        settings = graph.settings.get(module.name, ModuleSettings())
        targets = [Endpoint(module.name, "input", item.name) for item in module.inputs]
        reads = tuple(names[sources[target]] for target in targets)
        outputs = [Endpoint(module.name, "output", item.name) for item in module.outputs]
        writes = tuple(names[output] for output in outputs)
        bound.append(BoundModule(module, settings, reads, writes))
    return bound


def file_of(module: Module, files: Mapping[str, ModuleFile]) -> ModuleFile:
    """Return a network module's file.

    Raises BadInput when it is missing or has other inputs and outputs.
    """
    if module.name not in files:
        raise BadInput(
            f"module {module.name} has no file, pipeline, a network needs one and a Python stage a"
            " function"
        )
    file = files[module.name]
    check_ports("inputs", module.name, module.inputs, file.inputs)
    check_ports("outputs", module.name, module.outputs, file.outputs)
    return file


def check_ports(what: str, module: str, items: Sequence[TensorDecl], ports: Sequence[Port]) -> None:
    """Check that a module and its file have equal tensors. Raises BadInput."""
    declared = [(item.name, item.spec) for item in items]
    stored = [(port.name, port.spec) for port in ports]
    if declared != stored:
        raise BadInput(
            f"{what} of module {module} are {describe_tensors(declared)}, pipeline, its file"
            f" has {describe_tensors(stored)}"
        )


def describe_tensors(tensors: Sequence[tuple[str, object]]) -> str:
    """Return names, shapes and types for messages."""
    return ", ".join(f"{name} {spec} {getattr(spec, 'dtype', '')}" for name, spec in tensors)[:200]


def plain_stage(bound: BoundModule) -> PipelineStage:
    """Return a stage with the settings that networks and Python stages share."""
    settings = bound.settings
    return PipelineStage(
        bound.module.name,
        threads=settings.threads,
        cores=settings.cores,
        capacity=settings.capacity,
    )


def python_stage(bound: BoundModule) -> PipelineStage:
    """Return the stage of a Python function."""
    inputs = zip(bound.reads, bound.module.inputs, strict=True)
    outputs = zip(bound.writes, bound.module.outputs, strict=True)
    replicas = bound.settings.replicas
    return replace(
        plain_stage(bound),
        call=bound.module.call,
        inputs=tuple(TensorDecl(name, item.spec) for name, item in inputs),
        outputs=tuple(TensorDecl(name, item.spec) for name, item in outputs),
        replicas=replicas if replicas > 1 else (),
    )


def network_stage(bound: BoundModule, file: ModuleFile) -> PipelineStage:
    """Return the stage of a network module."""
    processors = bound.settings.processors
    return replace(
        plain_stage(bound),
        subgraphs=(bound.module.name,),
        replicas=processors if len(processors) > 1 else (),
        copy_in_us=file.copy_in_us,
        copy_out_us=file.copy_out_us,
    )


def subgraph_of(bound: BoundModule, file: ModuleFile, number: int) -> tuple[Subgraph, bytes]:
    """Return a network module as a sub-graph, and its file with the pipeline's tensor names."""
    name = bound.module.name
    data = rename_ports(file, bound.reads, bound.writes)
    inputs = zip(bound.reads, file.inputs, strict=True)
    outputs = zip(bound.writes, file.outputs, strict=True)
    # a tensor that a module reads at several inputs is one input of its sub-graph
    entering = {tensor: replace(port, name=tensor) for tensor, port in inputs}
    subgraph = Subgraph(
        name=name,
        processor=bound.settings.processors[0] if bound.settings.processors else DEFAULT_PROCESSOR,
        file=f"subgraphs/{name}.onnx",
        sha256=digest(data),
        size_bytes=len(data),
        inputs=tuple(entering.values()),
        outputs=tuple(replace(port, name=tensor) for tensor, port in outputs),
        segment=number,
        predicted_us=file.predicted_us,
        error_us=file.error_us,
        max_abs_error=file.max_abs_error,
    )
    return subgraph, data


def rename_ports(file: ModuleFile, reads: Sequence[str], writes: Sequence[str]) -> bytes:
    """Return the ONNX file with inputs and outputs renamed, unchanged where they fit already."""
    if [*reads, *writes] == [port.name for port in (*file.inputs, *file.outputs)]:
        return file.data
    import onnx

    from nnstretch.export.onnx.rename_io import rename_io

    model = rename_io(onnx.load_from_string(file.data), reads, writes)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def pipeline_inputs(graph: ModuleGraph, names: Mapping[Endpoint, str]) -> tuple[TensorDecl, ...]:
    """Return the declared inputs of the pipeline."""
    entering = dict.fromkeys(source for source, _ in graph.from_pipeline("input"))
    return tuple(TensorDecl(names[end], spec_of(graph, end)) for end in entering)


def parameter_groups(graph: ModuleGraph, files: Mapping[str, bytes]) -> tuple[ParameterGroup, ...]:
    """Return all parameter groups with the places of their parameters in files.

    Raises BadInput where a file does not hold a parameter as it is.
    """
    groups = []
    for group, target in graph.from_pipeline("param"):
        owner = target.owner
        parameters = locate_parameters(owner, files[owner], graph.module(owner).params)
        groups.append(ParameterGroup(group.name, owner, parameters))
    return tuple(groups)


def locate_parameters(
    module: str, data: bytes, params: Sequence[TensorDecl]
) -> tuple[Parameter, ...]:
    """Return a module's parameters with their places in its file. Raises BadInput."""
    from nnstretch.export.onnx.rename_io import weight_offsets

    offsets = weight_offsets(data, [item.name for item in params])
    for item in params:
        if item.name not in offsets or item.spec != offsets[item.name][0]:
            raise BadInput(
                f"parameter {item.name} of module {module}, pipeline, its file has no plain weight"
                f" {item.name} {item.spec}"
            )
    return tuple(Parameter(item.name, *offsets[item.name]) for item in params)


def manifest_of(
    pipeline: PipelineSpec, subs: tuple[Subgraph, ...], model: str, soc: str | None, error: float
) -> Manifest:
    """Return the manifest; its inputs and outputs are those of all sub-graphs together.

    Inputs are what no sub-graph writes, outputs what the caller or a Python stage reads.
    """
    written: dict[str, Port] = {}
    read: dict[str, Port] = {}
    for sub in subs:
        written |= {port.name: port for port in sub.outputs}
        read |= {port.name: port for port in sub.inputs}
    entering = tuple(port for name, port in read.items() if name not in written)
    leaving = dict.fromkeys(pipeline.outputs)
    for stage in pipeline.stages:
        leaving |= dict.fromkeys(item.name for item in stage.inputs)
    outputs = tuple(written[name] for name in leaving if name in written)
    return Manifest(model, soc, entering, outputs, subs, error, pipeline=pipeline)
