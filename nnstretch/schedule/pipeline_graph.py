"""A pipeline as rules: which item a stage may begin when, whoever keeps the time.

A stage begins an item when those that feed it are through with this item, when it is through with
the one before, and when those that read from it have room: an item waits in a bounded queue, and
nobody starts what could not be put down. So items keep their order, and what is between two stages
never exceeds the queue.

A stage on a device with memory of its own is three steps: copies in, compute, copies out. So copies
of one item go on while the device computes another, with two places for inputs and two for outputs
on each device.

The same rules are tasks with needs for the loop on the virtual clock (`stream_tasks`), and counters
for workers that run (`executors/pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from nnstretch.bundle.manifest import Manifest, processors_named, segment_ends
from nnstretch.bundle.pipeline_view import edges, subgraphs_of_stage
from nnstretch.pipeline import PipelineSpec, PipelineStage
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey, task_name
from nnstretch.trace import Span, Trace

PYTHON = "python"
"""Kind of the processor that a Python stage is on: a host thread of its own."""
COPY = "copy"
"""Kind of what copies to and from a device, beside its compute; it is called `DEVICE.copy`."""
IN, OUT = "copy in", "copy out"


@dataclass(frozen=True, slots=True)
class StageNode:
    """A stage without its contents, or one of its copies."""

    name: str
    feeders: tuple[int, ...]
    """Numbers of the steps whose tensors it reads."""
    readers: tuple[int, ...]
    fed: bool
    """Whether the caller hands it something."""
    last: bool
    """Whether it hands the caller something."""
    replicas: int = 1
    """Items go to them in turn."""
    capacity: int = 1
    """Items that may wait in front of it."""
    part: str = ""
    """IN or OUT where it is a copy."""

    @property
    def stage(self) -> str:
        """Return the name of the stage that it is, or is a part of."""
        return self.name.removesuffix(f" {self.part}") if self.part else self.name

    @property
    def window(self) -> int:
        """Return items in front of it and at work in it."""
        return self.capacity + self.replicas


StageGraph = tuple[StageNode, ...]


def stage_graph(
    pipeline: PipelineSpec, manifest: Manifest, copied: Container[str] = ()
) -> StageGraph:
    """Return stages and who hands to whom; those that are `copied` to and from have steps for
    it.
    """
    parts = [
        (stage, part)
        for stage in pipeline.stages
        for part in ((IN, "", OUT) if stage.name in copied else ("",))
    ]
    first = {stage.name: number for number, (stage, _) in reversed(list(enumerate(parts)))}
    final = {stage.name: number for number, (stage, _) in enumerate(parts)}
    pairs = [(edge.source, edge.target) for edge in edges(pipeline, manifest)]
    return tuple(
        StageNode(
            name=step_name(stage.name, part),
            feeders=(
                tuple(dict.fromkeys(final[s] for s, t in pairs if t == stage.name and s))
                if number == first[stage.name]
                else (number - 1,)
            ),
            readers=(
                tuple(dict.fromkeys(first[t] for s, t in pairs if s == stage.name and t))
                if number == final[stage.name]
                else (number + 1,)
            ),
            fed=("", stage.name) in pairs and number == first[stage.name],
            last=(stage.name, "") in pairs and number == final[stage.name],
            replicas=max(1, len(stage.replica_names)),
            capacity=(
                stage.capacity if number == first[stage.name] else max(1, len(stage.replica_names))
            ),
            part=part,
        )
        for number, (stage, part) in enumerate(parts)
    )


def step_name(stage: str, part: str) -> str:
    """Return the name of a stage or of a part of it."""
    return f"{stage} {part}" if part else stage


def copy_step_name(processor: str) -> str:
    """Return the name of the step that copies to or from a device."""
    return f"{processor}.{COPY}"


def stages_with_copies(manifest: Manifest) -> frozenset[str]:
    """Return stages whose copies were predicted apart from their compute, everywhere they run."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    taken = {stage.name for stage in pipeline.stages} | {sub.name for sub in manifest.subgraphs}
    processors = {
        name
        for stage in pipeline.stages
        for name in (
            *stage.replica_names,
            *(sub.processor for sub in subgraphs_of_stage(stage, manifest)),
        )
    }
    return frozenset(
        stage.name
        for stage in pipeline.stages
        for places in [
            stage.replica_names
            or tuple(sub.processor for sub in subgraphs_of_stage(stage, manifest))
        ]
        if stage.copy_in_us
        and stage.copy_in_us.keys() >= set(places)
        and taken.isdisjoint(step_name(stage.name, part) for part in (IN, OUT))
        and processors.isdisjoint(map(copy_step_name, places))
    )


def dependencies(stage_graph: StageGraph, number: int, item: int) -> Iterator[tuple[int, int]]:
    """Yield each (stage, item) that must be over before stage `number` begins `item`.

    Items below 0 never were.
    """
    step = stage_graph[number]
    for feeder in step.feeders:
        yield feeder, item
    yield number, item - step.replicas
    for reader in step.readers:
        yield reader, item - stage_graph[reader].window


def in_flight_limit(stage_graph: StageGraph) -> int:
    """Return items that fit between the caller's two ends.

    The most that queues and workers hold on any way through.
    """
    limits: list[int] = []
    for step in stage_graph:  # stages come after those that feed them
        limits.append(step.window + max((limits[feeder] for feeder in step.feeders), default=0))
    return max(limits)


def processor_of_item(stage: PipelineStage, item: int, planned: str) -> str:
    """Return the processor of a sub-graph, or of a Python stage, for an item."""
    return stage.replica_names[item % len(stage.replica_names)] if stage.replica_names else planned


def stream_tasks(manifest: Manifest, items: int) -> tuple[Task, ...]:
    """Return every sub-graph, copy and Python stage for every item, named `NAME#ITEM`.

    The manifest has a pipeline.

    A branched stage's sub-graphs need each other as in any plan; a Python stage is on a processor
    of its own name.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    flow, tasks, stages = (
        stage_graph(pipeline, manifest, stages_with_copies(manifest)),
        list[Task](),
        {stage.name: stage for stage in pipeline.stages},
    )
    inside = {
        stage.name: [sub.name for sub in subgraphs_of_stage(stage, manifest)]
        for stage in pipeline.stages
    }
    names = [[] if step.part else inside[step.name] for step in flow]
    for item in range(items):
        for number, step in enumerate(flow):
            stage = stages[step.stage]
            before = frozenset(
                task_name(name, n)
                for dependency, n in dependencies(flow, number, item)
                if n >= 0
                for name in names[dependency] or [flow[dependency].name]
            )
            if step.part:
                place = copy_step_name(
                    processor_of_item(stage, item, subgraphs_of_stage(stage, manifest)[0].processor)
                )
                tasks.append(Task(task_name(step.name, item), step.name, before, place, item))
            elif stage.call:
                tasks.append(
                    Task(
                        task_name(stage.name, item),
                        stage.name,
                        before,
                        processor_of_item(stage, item, stage.name),
                        item,
                    )
                )
            else:
                tasks += _members(stage, manifest, item, before)
    return tuple(tasks)


def _members(
    stage: PipelineStage, manifest: Manifest, item: int, before: frozenset[str]
) -> list[Task]:
    subs = subgraphs_of_stage(stage, manifest)
    writers = {port.name: task_name(sub.name, item) for sub in subs for port in sub.outputs}
    tasks = []
    for sub in subs:
        inner = frozenset(writers[port.name] for port in sub.inputs if port.name in writers)
        outer = before if any(port.name not in writers for port in sub.inputs) else frozenset()
        tasks.append(
            Task(
                task_name(sub.name, item),
                sub.name,
                inner | outer,
                processor_of_item(stage, item, sub.processor),
                item,
            )
        )
    return tasks


def stream_processors(manifest: Manifest, known: Mapping[str, Processor]) -> tuple[Processor, ...]:
    """Return everything that tasks of a stream name; whoever is not `known` takes two tasks at a
    time.

    Each has a host thread of its own.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    names, copied = dict[str, str](), stages_with_copies(manifest)
    for stage in pipeline.stages:
        if stage.call:
            names |= dict.fromkeys(stage.replica_names or (stage.name,), PYTHON)
        for sub in subgraphs_of_stage(stage, manifest):
            places = tuple(dict.fromkeys((sub.processor, *stage.replica_names)))
            names |= {p.name: p.kind for p in processors_named(manifest, places)}
            names |= {copy_step_name(name): COPY for name in places if stage.name in copied}
    return tuple(
        replace(known[name], blocks_host=False) if name in known else Processor(name, kind, 2)
        for name, kind in names.items()
    )


def stream_durations_us(manifest: Manifest) -> dict[tuple[WorkKey, str], float]:
    """Return microseconds by (sub-graph, copy or Python stage, processor) as predicted.

    A Python stage counts nothing, since nobody predicted it.

    Copies are part of their sub-graph's time where they have no step of their own.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    sync_us = {
        name: manifest.sync_us.get(segment, 0.0) for segment, name in segment_ends(manifest).items()
    }
    durations: dict[tuple[WorkKey, str], float] = {
        (sub.name, processor): time_us + sync_us.get(sub.name, 0.0)
        for sub in manifest.subgraphs
        for processor, time_us in sub.predicted_us.items()
    }
    copied = stages_with_copies(manifest)
    for stage in pipeline.stages:
        for name in stage.copy_in_us if stage.name in copied else ():
            in_us, out_us = stage.copy_in_us[name], stage.copy_out_us[name]
            durations |= {
                (step_name(stage.name, IN), copy_step_name(name)): in_us,
                (step_name(stage.name, OUT), copy_step_name(name)): out_us,
            }
            durations[stage.subgraphs[0], name] = max(
                0.0, durations[stage.subgraphs[0], name] - in_us - out_us
            )
    return durations | {
        (stage.name, name): 0.0
        for stage in pipeline.stages
        if stage.call
        for name in stage.replica_names or (stage.name,)
    }


def spans_by_step(
    trace: Trace, pipeline: PipelineSpec, stage_graph: StageGraph
) -> dict[str, list[Span]]:
    """Return spans of each step in the order of items.

    One for each item, from the first of its sub-graphs' starts to the last's end.
    """
    home = {
        name: stage.name for stage in pipeline.stages for name in stage.subgraphs or (stage.name,)
    }
    spans_: dict[str, dict[int, Span]] = {step.name: {} for step in stage_graph}
    for span in trace.spans:
        item, step = span.task.request, home.get(span.task.subgraph, span.task.subgraph)
        old = spans_[step].get(item, span)
        spans_[step][item] = Span(
            min(old.start_us, span.start_us),
            max(old.end_us, span.end_us),
            Task(task_name(step, item), step, request=item),
            span.processor,
        )
    return {name: [spans[item] for item in sorted(spans)] for name, spans in spans_.items()}


def start_delays_us(stage_graph: StageGraph, spans: Mapping[str, list[Span]]) -> list[float]:
    """Return for every step and item of which everything is known.

    How long after it could have begun it did.

    `spans` by step in the order of items (`spans_by_step`), all on one clock.
    """
    delays: list[float] = []
    at = {
        name: {span.task.request: span for span in item_spans} for name, item_spans in spans.items()
    }
    for number, step in enumerate(stage_graph):
        for item, span in at[step.name].items():
            before = [
                (stage_graph[dependency].name, n)
                for dependency, n in dependencies(stage_graph, number, item)
                if n >= 0
            ]
            if before and all(n in at[name] for name, n in before):
                delays.append(span.start_us - max(at[name][n].end_us for name, n in before))
    return delays
