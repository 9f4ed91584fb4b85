"""A pipeline with its manifest: inputs and outputs of stages, edges between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.pipeline import PipelineSpec, PipelineStage


@dataclass(frozen=True, slots=True)
class PipelineEdge:
    """A tensor from its producer to a consumer; empty names for the caller."""

    tensor: str
    source: str
    target: str


def stage_inputs(stage: PipelineStage, manifest: Manifest) -> tuple[str, ...]:
    """Return the tensors that enter a stage, each once."""
    subs = subgraphs_of_stage(stage, manifest)
    internal = set(chain.from_iterable(sub.output_names for sub in subs))
    read = chain.from_iterable(sub.input_names for sub in subs)
    names = [name for name in read if name not in internal]
    return tuple(dict.fromkeys([*names, *(item.name for item in stage.inputs)]))


def stage_outputs(stage: PipelineStage, manifest: Manifest) -> tuple[str, ...]:
    """Return every tensor that a stage writes, those that only its own sub-graphs read included."""
    names: list[str] = []
    for sub in subgraphs_of_stage(stage, manifest):
        names += sub.output_names
    return (*names, *(item.name for item in stage.outputs))


def subgraphs_of_stage(stage: PipelineStage, manifest: Manifest) -> tuple[Subgraph, ...]:
    """Return the sub-graphs of a stage."""
    wanted = set(stage.subgraphs)
    return tuple(sub for sub in manifest.subgraphs if sub.name in wanted)


def edges(pipeline: PipelineSpec, manifest: Manifest) -> tuple[PipelineEdge, ...]:
    """Return the edges between stages in the order of their consumers, the caller last."""
    writer = {item.name: "" for item in pipeline.inputs}
    for stage in pipeline.stages:
        writer |= dict.fromkeys(stage_outputs(stage, manifest), stage.name)
    edges_: list[PipelineEdge] = []
    for stage in pipeline.stages:
        for name in stage_inputs(stage, manifest):
            edges_.append(PipelineEdge(name, writer[name], stage.name))
    return (*edges_, *(PipelineEdge(name, writer[name], "") for name in pipeline.outputs))


def torch_spec(port: Port) -> TensorSpec:
    """Return a port as PyTorch has it: real numbers, channels first."""
    if not port.scale and port.layout != "NHWC":
        return port.spec
    shape = port.spec.shape
    return TensorSpec(
        tuple(shape[i] for i in (0, 3, 1, 2)) if port.layout == "NHWC" else shape,
        "float32" if port.scale else port.spec.dtype,
    )


def functions_of(
    pipeline: PipelineSpec, functions: Mapping[str, Callable[..., object]]
) -> dict[str, Callable[..., object]]:
    """Return the function of each Python stage, from functions by `module:function`.

    Nothing is imported because a bundle names it. Raises BadInput for a function that is missing.
    """
    for stage in pipeline.stages:
        if stage.call and stage.call not in functions:
            passed = ", ".join(functions) or "none"
            raise BadInput(
                f"stage {stage.name} runs {stage.call}, pipeline, no function was passed for it;"
                f" passed are {passed}; on the command line: --allow {stage.call}"
            )
        if stage.call and not callable(functions[stage.call]):
            raise BadInput(
                f"stage {stage.name} runs {stage.call}, pipeline, passed was no function"
                f" but {type(functions[stage.call]).__name__}"
            )
    return {stage.name: functions[stage.call] for stage in pipeline.stages if stage.call}
