"""A pipeline: stages through which items stream one behind the other, each stage on processors or
host threads of its own.

Stages are connected by the names of tensors, as sub-graphs are: who writes a tensor feeds everyone
who reads it, and one tensor may feed several stages, or one stage in several places. A stage is
sub-graphs of the bundle (several where it is itself branched), or a Python function that the bundle
names and the user passes; a bundle holds no code.

Order: items enter in order and carry a number. A stage with replicas hands item i to replica i
modulo their number and its results are taken in the same turn, so every queue is first in, first
out, and results leave in the order of their inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnstretch.errors import BadInput, UnknownName
from nnstretch.graph import ELEMENT_BYTES, TensorSpec

if TYPE_CHECKING:
    from nnstretch.bundle.manifest import Manifest, Port, Subgraph

CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_CAPACITY, MAX_THREADS, MAX_CORE = 4096, 1024, 4095
MAX_STAGES, MAX_REPLICAS = 256, 64
"""Each replica of each stage is a thread: what asks for more is no pipeline but an attack."""
DEFAULT_CAPACITY = 2
"""One item at work behind the queue, one that waits.

Enough where stages are balanced, and the bound on memory.
"""


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """What enters or leaves a pipeline, a module or a Python stage."""

    name: str
    """Of the tensor, in the whole pipeline."""
    spec: TensorSpec | None = None
    """Shape and type in PyTorch's order; None for any Python object, which nothing checks."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One step of a pipeline: sub-graphs, or a Python function."""

    name: str
    subgraphs: tuple[str, ...] = ()
    """Names of sub-graphs, in the manifest's order; several where the stage is branched."""
    call: str = ""
    """`module:function` of a Python stage.

    It takes its inputs and returns its outputs in their order.
    """
    inputs: tuple[TensorDecl, ...] = ()
    """Of a Python stage; a sub-graph's ports say their own."""
    outputs: tuple[TensorDecl, ...] = ()
    replicas: tuple[str, ...] | int = ()
    """Processors that hold a copy each, items in turn.

    Empty where every sub-graph runs where it says. A number for a Python stage.
    """
    threads: int = 1
    """Of each of its backends."""
    cores: tuple[int, ...] = ()
    """CPU cores its threads are bound to; empty for any."""
    capacity: int = DEFAULT_CAPACITY
    """Items that may wait in front of it."""
    copy_in_us: dict[str, float] = field(default_factory=dict)
    """By processor, how much of its predicted time is copying inputs there, which goes on beside
    its compute of other items.
    """
    copy_out_us: dict[str, float] = field(default_factory=dict)
    """The same of outputs, with its synchronisation."""

    @property
    def replica_names(self) -> tuple[str, ...]:
        """Who takes its items in turn: processors, or NAME.0, NAME.1, ... of a Python stage.

        Empty where it has no replicas.
        """
        if isinstance(self.replicas, int):
            return (
                tuple(f"{self.name}.{n}" for n in range(self.replicas)) if self.replicas > 1 else ()
            )
        return self.replicas


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight that stands in a sub-graph's file as it is.

    Little-endian, in the order of its shape.
    """

    name: str
    spec: TensorSpec
    offset_bytes: int
    """Where it begins in the file, so that it can be replaced without reading the file's format."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Weights of one stage that may be replaced between items."""

    name: str
    subgraph: str
    """Whose file holds them."""
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Stages in an order in which they can run, and what enters and leaves."""

    stages: tuple[PipelineStage, ...]
    inputs: tuple[TensorDecl, ...]
    """By the tensor each of them is; one may feed several stages."""
    outputs: tuple[str, ...]
    """Tensors, by the index of the output."""
    groups: tuple[ParameterGroup, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class PipelineEdge:
    """A tensor on its way: from a stage to a stage; empty names for the caller's side."""

    tensor: str
    source: str
    target: str


def stage_inputs(stage: PipelineStage, manifest: Manifest) -> tuple[str, ...]:
    """Tensors that enter a stage, each once."""
    subs = subgraphs_of_stage(stage, manifest)
    own = {port.name for sub in subs for port in sub.outputs}
    ports = (port.name for sub in subs for port in sub.inputs if port.name not in own)
    return tuple(dict.fromkeys([*ports, *(item.name for item in stage.inputs)]))


def stage_outputs(stage: PipelineStage, manifest: Manifest) -> tuple[str, ...]:
    """Every tensor that a stage makes, also those that only its own sub-graphs read."""
    return (
        *(port.name for sub in subgraphs_of_stage(stage, manifest) for port in sub.outputs),
        *(item.name for item in stage.outputs),
    )


def subgraphs_of_stage(stage: PipelineStage, manifest: Manifest) -> tuple[Subgraph, ...]:
    """The sub-graphs of a stage."""
    wanted = set(stage.subgraphs)
    return tuple(sub for sub in manifest.subgraphs if sub.name in wanted)


def edges(pipeline: PipelineSpec, manifest: Manifest) -> tuple[PipelineEdge, ...]:
    """Who hands which tensor to whom, in the order of the readers; the caller's side last."""
    writer = {item.name: "" for item in pipeline.inputs}
    writer |= {
        name: stage.name for stage in pipeline.stages for name in stage_outputs(stage, manifest)
    }
    found = [
        PipelineEdge(name, writer[name], stage.name)
        for stage in pipeline.stages
        for name in stage_inputs(stage, manifest)
    ]
    return (*found, *(PipelineEdge(name, writer[name], "") for name in pipeline.outputs))


def check_pipeline(pipeline: PipelineSpec, manifest: Manifest) -> None:
    """Raise ValueError unless stages, tensors and parameter groups fit the manifest and
    each other.
    """
    _once("stage", [stage.name for stage in pipeline.stages])
    if not (pipeline.stages and pipeline.inputs and pipeline.outputs):
        raise ValueError("pipeline, it needs stages, inputs and outputs")
    if len(pipeline.stages) > MAX_STAGES:
        raise ValueError(f"pipeline, {len(pipeline.stages)} stages, at most {MAX_STAGES}")
    ports = {port.name: port for sub in manifest.subgraphs for port in (*sub.inputs, *sub.outputs)}
    _check_members(pipeline, manifest)
    for stage in pipeline.stages:
        _check_stage(stage, manifest)
    for item in (
        *pipeline.inputs,
        *(item for stage in pipeline.stages for item in (*stage.inputs, *stage.outputs)),
    ):
        _check_item(item, ports)
    _check_flow(pipeline, manifest)
    _check_groups(pipeline, manifest)


def _once(what: str, names: list[str]) -> None:
    if "" in names:
        raise ValueError(f"pipeline, a {what} without a name")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"pipeline, {what} {twice[0][:80]!r} is there {names.count(twice[0])} times"
        )


def _check_members(pipeline: PipelineSpec, manifest: Manifest) -> None:
    held, known = (
        [name for stage in pipeline.stages for name in stage.subgraphs],
        {sub.name for sub in manifest.subgraphs},
    )
    _once("sub-graph", held)
    if unknown := sorted(set(held) - known):
        raise ValueError(
            f"pipeline, sub-graph {unknown[0][:80]!r}, the manifest has none of this name"
        )
    if missing := sorted(known - set(held)):
        raise ValueError(f"pipeline, sub-graph {missing[0][:80]!r} is in no stage")


def _check_stage(stage: PipelineStage, manifest: Manifest) -> None:
    where = f"pipeline, stage {stage.name[:80]!r}"
    if bool(stage.subgraphs) == bool(stage.call):
        raise ValueError(f"{where}, it needs either sub-graphs or a Python function")
    if stage.call and not CALL.fullmatch(stage.call):
        raise ValueError(f"{where}, function {stage.call[:80]!r}, write module:function")
    if stage.call and (not stage.inputs or not stage.outputs):
        raise ValueError(f"{where}, a Python function needs inputs and outputs")
    if stage.subgraphs and (stage.inputs or stage.outputs):
        raise ValueError(f"{where}, its sub-graphs say what they read and write, it must not")
    if not (1 <= stage.capacity <= MAX_CAPACITY and 1 <= stage.threads <= MAX_THREADS):
        raise ValueError(
            f"{where}, {stage.threads} threads and capacity {stage.capacity}, at least 1, at most"
            f" {MAX_THREADS} and {MAX_CAPACITY}"
        )
    if len(set(stage.cores)) != len(stage.cores) or not all(
        0 <= core <= MAX_CORE for core in stage.cores
    ):
        raise ValueError(
            f"{where}, cores {str(stage.cores)[:80]}, each once and from 0 to {MAX_CORE}"
        )
    if not stage_inputs(stage, manifest):
        raise ValueError(f"{where}, nothing enters it, so nothing would drive it")
    if stage.replicas != ():
        _check_replicas(stage, manifest, where)


def _check_replicas(stage: PipelineStage, manifest: Manifest, where: str) -> None:
    if isinstance(stage.replicas, int):
        if not stage.call or not 1 <= stage.replicas <= MAX_REPLICAS:
            raise ValueError(
                f"{where}, {stage.replicas} replicas, a Python function has from 1 to"
                f" {MAX_REPLICAS}, sub-graphs name their processors"
            )
        return
    if stage.call:
        raise ValueError(
            f"{where}, replicas on {str(stage.replicas)[:80]}, a Python function has a number of"
            " them"
        )
    if len(stage.replicas) > MAX_REPLICAS:
        raise ValueError(f"{where}, {len(stage.replicas)} replicas, at most {MAX_REPLICAS}")
    if len(set(stage.replicas)) != len(stage.replicas) or "" in stage.replicas:
        raise ValueError(
            f"{where}, replicas on {str(stage.replicas)[:80]}, each processor holds one"
        )
    for sub in subgraphs_of_stage(stage, manifest):
        if sub.processor != stage.replicas[0]:
            raise ValueError(
                f"{where}, sub-graph {sub.name[:80]!r} on {sub.processor[:40]}, replicas begin with"
                f" {stage.replicas[0][:40]}"
            )
        if sub.predicted_us and (
            missing := [name for name in stage.replicas if name not in sub.predicted_us]
        ):
            raise ValueError(
                f"{where}, sub-graph {sub.name[:80]!r} has no predicted time of its replica on"
                f" {missing[0][:40]}"
            )


def _check_item(item: TensorDecl, ports: Mapping[str, Port]) -> None:
    spec = item.spec
    if spec is None:
        return
    if spec.dtype not in ELEMENT_BYTES or min(spec.shape, default=1) < 1:
        raise ValueError(
            f"pipeline, tensor {item.name[:80]!r} of impossible shape {spec} or type"
            f" {spec.dtype[:40]!r}"
        )
    port = ports.get(item.name)
    if port is not None and spec not in (port.spec, torch_spec(port)):
        raise ValueError(
            f"pipeline, tensor {item.name[:80]!r} is {spec} {spec.dtype}, sub-graphs have it as"
            f" {port.spec} {port.spec.dtype}"
        )


def torch_spec(port: Port) -> TensorSpec:
    """A port as PyTorch has it: real numbers, channels first."""
    shape = port.spec.shape
    return TensorSpec(
        tuple(shape[i] for i in (0, 3, 1, 2)) if port.layout == "NHWC" else shape,
        "float32" if port.scale else port.spec.dtype,
    )


def _check_flow(pipeline: PipelineSpec, manifest: Manifest) -> None:
    """Every tensor is written once, before it is read, and nothing is made for nobody."""
    outside = [item.name for item in pipeline.inputs]
    made = [name for stage in pipeline.stages for name in stage_outputs(stage, manifest)]
    _once("tensor", outside + made)
    known, read = set(outside), set(pipeline.outputs)
    for stage in pipeline.stages:
        for name in stage_inputs(stage, manifest):
            if name not in known:
                why = (
                    "before it is written, a cycle or a wrong order"
                    if name in made
                    else "which nothing feeds"
                )
                raise ValueError(f"pipeline, stage {stage.name[:80]!r} reads {name[:80]!r}, {why}")
        known.update(stage_outputs(stage, manifest))
        read.update(stage_inputs(stage, manifest))
    _once("output", list(pipeline.outputs))
    if lost := [name for name in pipeline.outputs if name not in known]:
        raise ValueError(f"pipeline, output {lost[0][:80]!r}, which nothing writes")
    if idle := [name for name in outside if name not in read]:
        raise ValueError(f"pipeline, input {idle[0][:80]!r} feeds no stage")
    for stage in pipeline.stages:
        elsewhere = {
            name
            for other in pipeline.stages
            if other is not stage
            for name in stage_inputs(other, manifest)
        }
        if not (elsewhere | set(pipeline.outputs)).intersection(stage_outputs(stage, manifest)):
            raise ValueError(f"pipeline, stage {stage.name[:80]!r} feeds nobody")


def _check_groups(pipeline: PipelineSpec, manifest: Manifest) -> None:
    _once("parameter group", [group.name for group in pipeline.groups])
    subs = {sub.name: sub for sub in manifest.subgraphs}
    for group in pipeline.groups:
        where = f"pipeline, parameter group {group.name[:80]!r}"
        if group.subgraph not in subs:
            raise ValueError(
                f"{where}, sub-graph {group.subgraph[:80]!r}, the manifest has none of this name"
            )
        if not group.parameters:
            raise ValueError(f"{where}, it has no parameters")
        _once(f"parameter of group {group.name[:80]}", [one.name for one in group.parameters])
        end = 0
        for one in sorted(group.parameters, key=lambda one: one.offset_bytes):
            if one.spec.dtype not in ELEMENT_BYTES or min(one.spec.shape, default=1) < 1:
                raise ValueError(
                    f"{where}, {one.name[:80]!r} of impossible shape {one.spec} or type"
                    f" {one.spec.dtype[:40]!r}"
                )
            if (
                one.offset_bytes < end
                or one.offset_bytes + one.spec.size_bytes > subs[group.subgraph].size_bytes
            ):
                raise ValueError(
                    f"{where}, {one.name[:80]!r} at byte {one.offset_bytes}, outside its file or"
                    " inside another parameter"
                )
            end = one.offset_bytes + one.spec.size_bytes


def find_group(pipeline: PipelineSpec, name: str) -> ParameterGroup:
    """Raises UnknownName."""
    for group in pipeline.groups:
        if group.name == name:
            return group
    known = ", ".join(group.name for group in pipeline.groups) or "none"
    raise UnknownName(f"unknown parameter group {str(name)[:80]!r}, pipeline, it has {known}")


def functions_of(
    pipeline: PipelineSpec, given: Mapping[str, Callable[..., object]]
) -> dict[str, Callable[..., object]]:
    """The function of each Python stage, by stage, out of those that the caller passes by
    `module:function`. Raises BadInput.

    A bundle only names them: nothing is imported because a file says so.
    """
    for stage in pipeline.stages:
        if stage.call and stage.call not in given:
            passed = ", ".join(given) or "none"
            raise BadInput(
                f"stage {stage.name} runs {stage.call}, pipeline, nobody passed it; passed are"
                f" {passed}"
            )
        if stage.call and not callable(given[stage.call]):
            raise BadInput(
                f"stage {stage.name} runs {stage.call}, pipeline, what was passed is no function"
                f" but {type(given[stage.call]).__name__}"
            )
    return {stage.name: given[stage.call] for stage in pipeline.stages if stage.call}
