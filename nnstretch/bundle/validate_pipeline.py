"""Rules of a pipeline that bind several of its fields; limits of a field are in its type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.bundle.pipeline_view import (
    stage_inputs,
    stage_outputs,
    subgraphs_of_stage,
    torch_spec,
)
from nnstretch.pipeline import MAX_REPLICAS, PipelineSpec, PipelineStage, TensorDecl


def check_pipeline(pipeline: PipelineSpec, manifest: Manifest) -> None:
    """Check stages, tensors and parameter groups against the manifest. Raises ValueError."""
    _once("stage", [stage.name for stage in pipeline.stages])
    ports: dict[str, Port] = {}
    for sub in manifest.subgraphs:
        ports |= {port.name: port for port in (*sub.inputs, *sub.outputs)}
    _check_members(pipeline, manifest)
    for stage in pipeline.stages:
        _check_stage(stage, manifest)
        for item in (*stage.inputs, *stage.outputs):
            _check_item(item, ports)
    for item in pipeline.inputs:
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
    members = list(chain.from_iterable(stage.subgraphs for stage in pipeline.stages))
    known = {sub.name for sub in manifest.subgraphs}
    _once("sub-graph", members)
    if unknown := sorted(set(members) - known):
        raise ValueError(
            f"pipeline, sub-graph {unknown[0][:80]!r}, the manifest has none of this name"
        )
    if missing := sorted(known - set(members)):
        raise ValueError(f"pipeline, sub-graph {missing[0][:80]!r} is in no stage")


def _check_stage(stage: PipelineStage, manifest: Manifest) -> None:
    where = f"pipeline, stage {stage.name[:80]!r}"
    if bool(stage.subgraphs) == bool(stage.call):
        raise ValueError(f"{where}, it needs either sub-graphs or a Python function")
    if stage.call and (not stage.inputs or not stage.outputs):
        raise ValueError(f"{where}, a Python function needs inputs and outputs")
    if stage.subgraphs and (stage.inputs or stage.outputs):
        raise ValueError(
            f"{where}, inputs and outputs beside sub-graphs, it has those of its sub-graphs"
        )
    if len(set(stage.cores)) != len(stage.cores):
        raise ValueError(f"{where}, cores {str(stage.cores)[:80]}, each once")
    if not stage_inputs(stage, manifest):
        raise ValueError(f"{where}, nothing enters it, so nothing would drive it")
    if stage.replicas != ():
        _check_replicas(stage, manifest, where)


def _check_replicas(stage: PipelineStage, manifest: Manifest, where: str) -> None:
    if isinstance(stage.replicas, int):
        if not stage.call:
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
    if len(set(stage.replicas)) != len(stage.replicas) or "" in stage.replicas:
        shown = str(stage.replicas)[:80]
        raise ValueError(f"{where}, replicas on {shown}, each processor holds one")
    for sub in subgraphs_of_stage(stage, manifest):
        if sub.processor != stage.replicas[0]:
            raise ValueError(
                f"{where}, sub-graph {sub.name[:80]!r} on {sub.processor[:40]}, replicas begin with"
                f" {stage.replicas[0][:40]}"
            )
        missing = [name for name in stage.replicas if name not in sub.predicted_us]
        if sub.predicted_us and missing:
            raise ValueError(
                f"{where}, sub-graph {sub.name[:80]!r} has no predicted time of its replica on"
                f" {missing[0][:40]}"
            )


def _check_item(item: TensorDecl, ports: Mapping[str, Port]) -> None:
    spec = item.spec
    port = ports.get(item.name)
    if spec is None or port is None or spec in (port.spec, torch_spec(port)):
        return
    raise ValueError(
        f"pipeline, tensor {item.name[:80]!r} is {spec} {spec.dtype}, sub-graphs have it as"
        f" {port.spec} {port.spec.dtype}"
    )


def _check_flow(pipeline: PipelineSpec, manifest: Manifest) -> None:
    """Check that every tensor is written once, before it is read, and that something reads it."""
    outside = [item.name for item in pipeline.inputs]
    inputs = {stage.name: stage_inputs(stage, manifest) for stage in pipeline.stages}
    outputs = {stage.name: stage_outputs(stage, manifest) for stage in pipeline.stages}
    written = set(chain.from_iterable(outputs.values()))
    _once("tensor", [*outside, *chain.from_iterable(outputs.values())])
    known = set(outside)
    for name, reads in inputs.items():
        if early := [tensor for tensor in reads if tensor not in known]:
            late = "before it is written, a cycle or a wrong order"
            why = late if early[0] in written else "which nothing feeds"
            raise ValueError(f"pipeline, stage {name[:80]!r} reads {early[0][:80]!r}, {why}")
        known.update(outputs[name])
    read = set(pipeline.outputs).union(*inputs.values())
    _once("output", list(pipeline.outputs))
    if lost := [name for name in pipeline.outputs if name not in known]:
        raise ValueError(f"pipeline, output {lost[0][:80]!r}, which nothing writes")
    if idle := [name for name in outside if name not in read]:
        raise ValueError(f"pipeline, input {idle[0][:80]!r} feeds no stage")
    for name, writes in outputs.items():  # none reads what it writes itself
        if read.isdisjoint(writes):
            raise ValueError(f"pipeline, stage {name[:80]!r} feeds nobody")


def _check_groups(pipeline: PipelineSpec, manifest: Manifest) -> None:
    _once("parameter group", [group.name for group in pipeline.groups])
    subs = {sub.name: sub for sub in manifest.subgraphs}
    for group in pipeline.groups:
        where = f"pipeline, parameter group {group.name[:80]!r}"
        if group.subgraph not in subs:
            raise ValueError(
                f"{where}, sub-graph {group.subgraph[:80]!r}, the manifest has none of this name"
            )
        names = [parameter.name for parameter in group.parameters]
        _once(f"parameter of group {group.name[:80]}", names)
        end = 0
        for parameter in sorted(group.parameters, key=lambda parameter: parameter.offset_bytes):
            start = parameter.offset_bytes
            stop = start + parameter.spec.size_bytes
            if start < end or stop > subs[group.subgraph].size_bytes:
                raise ValueError(
                    f"{where}, {parameter.name[:80]!r} at byte {start}, outside its file or inside"
                    " another parameter"
                )
            end = stop
