"""A stream of items predicted on the virtual clock: its trace, its bottleneck and its pacing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.pipeline_view import subgraphs_of_stage
from nnstretch.errors import BadInput
from nnstretch.run.pipelines.item_buffer import StagePacing
from nnstretch.run.pipelines.item_trace import spans_by_step
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.run.time_dilation import Rehearsal, required_dilation
from nnstretch.schedule import StaticPlacement, VirtualExecutor, run_tasks
from nnstretch.schedule.executors.virtual import no_work
from nnstretch.schedule.pipeline_graph import (
    StageGraph,
    copy_step_name,
    stage_graph,
    stages_with_copies,
    stream_durations_us,
    stream_processors,
    stream_tasks,
)
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Trace

ALL_STAGES = ""
"""Stands for all stages together in a rehearsal; no stage has an empty name."""


def predict_stream(
    manifest: Manifest,
    items: int,
    known: Mapping[str, Processor],
    work: Callable[[Task], object] = no_work,
) -> Trace:
    """Predict a stream of items that are all there from the beginning.

    Raises BadInput where a time was never predicted.
    """
    durations_us, processors = stream_durations_us(manifest), stream_processors(manifest, known)
    tasks = stream_tasks(manifest, items)
    for task in tasks:
        if (task.subgraph, task.processor or "") not in durations_us:
            raise BadInput(
                f"no predicted time of {task.subgraph} on {task.processor}, pipeline of"
                f" {manifest.model}, a virtual clock needs all; partition it for a chip"
            )
    placement = StaticPlacement(tuple(processor.name for processor in processors))
    return run_tasks(tasks, placement, VirtualExecutor(processors, durations_us, work))


def copy_steps(manifest: Manifest) -> StageGraph:
    """Return the stage graph with copies apart where they were predicted."""
    assert manifest.pipeline is not None
    return stage_graph(manifest.pipeline, manifest, stages_with_copies(manifest))


def step_us(manifest: Manifest, known: Mapping[str, Processor]) -> dict[str, tuple[float, ...]]:
    """Return the predicted time of each replica, by step.

    A branched stage lasts until its last sub-graph ends; a Python stage has a time of 0.
    """
    pipeline, nodes = manifest.pipeline, copy_steps(manifest)
    assert pipeline is not None
    trace = predict_stream(manifest, max(node.replicas for node in nodes), known)
    spans = spans_by_step(trace, pipeline, nodes)
    return {
        node.name: tuple(span.duration_us for span in spans[node.name][: node.replicas])
        for node in nodes
    }


def pacing_for(
    sequential: SequentialPipeline, inputs: Any, known: Mapping[str, Processor], cores: int
) -> StagePacing:
    """Return a pace of predicted times on a clock slow enough for this host.

    Every stage fits its time, and all of them together fit the cores in the bottleneck's time.
    """
    times_us, host_s = step_us(sequential.manifest, known), sequential.stage_s(inputs)
    predicted_us = {name: min(times_us[name]) for name in host_s if min(times_us[name]) > 0}
    compute_us = {name: host_s[name] * 1e6 for name in predicted_us}
    compute_us[ALL_STAGES] = sum(host_s.values()) * 1e6 / max(1, cores)
    predicted_us[ALL_STAGES] = slowest_us = _bottleneck_us(sequential.manifest, times_us)
    dilation = required_dilation(Rehearsal(compute_us), predicted_us, slowest_us, slip=0.0)
    return StagePacing(tuple(times_us.values()), dilation)


def bottleneck_us(
    manifest: Manifest, stage_graph: StageGraph, times_us: Mapping[str, tuple[float, ...]]
) -> float:
    """Return the time that the busiest processor needs for an item, by that of each replica.

    A branched stage has all of its processors as long as it lasts.
    """
    pipeline, load_us = manifest.pipeline, dict[str, float]()
    assert pipeline is not None
    stages = {stage.name: stage for stage in pipeline.stages}
    for node in stage_graph:
        stage = stages[node.stage]
        placed = dict.fromkeys(sub.processor for sub in subgraphs_of_stage(stage, manifest))
        times = times_us[node.name]
        processors = stage.replica_names or tuple(placed) or (stage.name,)
        each_us = times if stage.replica_names else times[:1] * len(processors)
        for processor, time_us in zip(processors, each_us, strict=True):
            name = copy_step_name(processor) if node.part else processor
            load_us[name] = load_us.get(name, 0.0) + time_us / node.replicas
    return max(load_us.values())


def predicted_bottleneck_us(manifest: Manifest, known: Mapping[str, Processor]) -> float | None:
    """Return the predicted bottleneck; None where not every sub-graph has a time."""
    try:
        return _bottleneck_us(manifest, step_us(manifest, known))
    except BadInput:
        return None


def _bottleneck_us(manifest: Manifest, times_us: Mapping[str, tuple[float, ...]]) -> float:
    return bottleneck_us(manifest, copy_steps(manifest), times_us)


def replica_totals_us(
    nodes: StageGraph, times_us: Mapping[str, tuple[float, ...]]
) -> dict[str, list[float]]:
    """Return by stage what copies and compute take together on each replica."""
    by_stage: dict[str, list[tuple[float, ...]]] = {}
    for node in nodes:
        by_stage.setdefault(node.stage, []).append(times_us[node.name])
    return {stage: list(map(sum, zip(*steps, strict=True))) for stage, steps in by_stage.items()}


def predicted_in_turn_us(manifest: Manifest, known: Mapping[str, Processor]) -> float:
    """Return the predicted time of an item through all stages in turn, on their fastest replicas.

    Raises BadInput where a time was never predicted.
    """
    totals_us = replica_totals_us(copy_steps(manifest), step_us(manifest, known))
    return sum(map(min, totals_us.values()))
