"""Assembly of a pipeline from a bundle: its steps, buffer, workers and their cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.pipeline_view import functions_of
from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.limits import shorten
from nnstretch.run.pipelines.item_buffer import ItemBuffer, StagePacing
from nnstretch.run.pipelines.item_tensors import dead_tensors
from nnstretch.run.pipelines.stage_functions import (
    Functions,
    device_stages,
    required_pipeline,
    stage_factory,
    tensors_on_device,
)
from nnstretch.run.pipelines.workers import assign_cores, replica_processors
from nnstretch.schedule.cpu_affinity import affinity
from nnstretch.schedule.executors.pipeline import pipeline_executor
from nnstretch.schedule.executors.static import StaticExecutor
from nnstretch.schedule.pipeline_graph import (
    StageGraph,
    in_flight_limit,
    stage_graph,
    stages_with_copies,
)
from nnstretch.schedule.timeout import whole_number

ON_ERROR = ("continue", "stop")
MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a pipeline; see `Pipeline`."""

    on_error: str
    results: int
    pace: StagePacing | None
    traced: int
    bind: bool

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise UnknownName(
                f"unknown on_error {self.on_error!r}, pipeline, it is one of {', '.join(ON_ERROR)}"
            )
        waits = f"pipeline, at least 1 has to wait until it is read, at most {MOST} may"
        whole_number("results", self.results, 1, MOST, waits)
        counted = f"pipeline, a count of items from 0 to {MOST}"
        whole_number("traced", self.traced, 0, MOST, counted)


@dataclass(frozen=True, slots=True)
class AssembledPipeline:
    """The parts of a pipeline, with threads that have not started."""

    stage_graph: StageGraph
    limit: int
    """Items that may be in flight or wait to be read."""
    items: ItemBuffer
    cores: list[list[frozenset[int] | None]]
    """Of each replica of each step; None where the system chooses."""
    executor: StaticExecutor


def assemble_pipeline(
    bundle: Bundle, backends: Mapping[str, str], functions: Functions, options: PipelineOptions
) -> AssembledPipeline:
    """Return the parts of a bundle's pipeline. `backends`: by sub-graph.

    Raises BadInput for a missing function, a pace of other steps, or a core that this process may
    not use.
    """
    pipeline, manifest, pace = required_pipeline(bundle), bundle.manifest, options.pace
    devices = device_stages(bundle, backends) if pace is None else frozenset[str]()
    copied = devices if pace is None else stages_with_copies(manifest)
    graph = stage_graph(pipeline, manifest, copied)
    if pace is not None:
        check_pace(pace, graph)
    limit = in_flight_limit(graph) + options.results
    stages = {stage.name: stage for stage in pipeline.stages}
    names = [replica_processors(stages[node.stage], bundle, node.part) for node in graph]
    by_stage = functions_of(pipeline, functions)
    load = stage_factory(bundle, backends, by_stage, copied=devices)
    stops = options.on_error == "stop"
    items = ItemBuffer(graph, names, limit + 1, load, stops, pace, options.traced)
    items.forget(_dead_after(graph, bundle))
    cores: list[list[frozenset[int] | None]] = [[None] * node.replicas for node in graph]
    if options.bind:
        assigned = dict(zip(stages, assign_cores(pipeline.stages, affinity()), strict=True))
        for number, node in enumerate(graph):
            cores[number] = cores[number] if node.part else assigned[node.stage]
    executor = pipeline_executor(graph, items.stage_function, cores)
    return AssembledPipeline(graph, limit, items, cores, executor)


def check_pace(pace: StagePacing, graph: StageGraph) -> None:
    """Check that a pace has a time for each replica of each step. Raises BadInput."""
    needed = [node.replicas for node in graph]
    if [len(times_us) for times_us in pace.durations_us] != needed:
        raise BadInput(
            f"durations_us is {shorten(pace.durations_us)}, pace of a pipeline, needed is a time"
            f" for each replica of its steps, of which there are {shorten(needed)}"
        )


def _dead_after(graph: StageGraph, bundle: Bundle) -> list[tuple[str, ...]]:
    """Return what an item need not hold any more, by step; a stage's after its last step."""
    dead, last = dead_tensors(bundle.manifest), {node.stage: node for node in graph}
    after: list[tuple[str, ...]] = []
    for node in graph:
        is_last = last[node.stage] is node
        after.append((*dead[node.stage], tensors_on_device(node.stage)) if is_last else ())
    return after
