"""A pipeline as rules: which item a stage may begin when, whatever keeps the time.

A stage begins an item when its feeders have passed this item, when it has passed the item before
itself, and when its readers have room for what it writes: the queue in front of a stage is bounded.
So items keep their order, and what is between two stages never exceeds the queue.

A stage on a device with memory of its own is three steps: copy in, compute, copy out. So copies of
one item go on while the device computes another, with two places for inputs and two for outputs on
each device.

The same rules are tasks with needs for the loop on the virtual clock (`stream_tasks`), and counters
for workers that run (`executors/pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from nnstretch.bundle.manifest import Manifest, processors_named
from nnstretch.bundle.pipeline_view import edges, subgraphs_of_stage
from nnstretch.pipeline import PipelineSpec, PipelineStage
from nnstretch.schedule.task_graph import subgraph_tasks, task_durations_us
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey, task_name

PYTHON = "python"
"""Kind of the processor of a Python stage: a host thread for it alone."""
COPY = "copy"
"""Kind of the processor `DEVICE.copy`, which copies to and from a device beside its compute."""
IN, OUT = "copy in", "copy out"


@dataclass(frozen=True, slots=True)
class StageNode:
    """A step of a pipeline: a stage without its contents, or one of its copies."""

    name: str
    feeders: tuple[int, ...]
    """Numbers of the steps whose tensors it reads."""
    readers: tuple[int, ...]
    """Numbers of the steps that read its tensors."""
    fed: bool
    """Whether it reads an input of the pipeline."""
    last: bool
    """Whether it writes an output of the pipeline."""
    replicas: int = 1
    """Items go to them in turn."""
    capacity: int = 1
    """Items that may wait in front of it."""
    part: str = ""
    """IN or OUT where it is a copy."""

    @property
    def stage(self) -> str:
        """Return the name of its stage, also for a copy of the stage."""
        return self.name.removesuffix(f" {self.part}") if self.part else self.name

    @property
    def window(self) -> int:
        """Return how many items may be in front of it and in it."""
        return self.capacity + self.replicas


StageGraph = tuple[StageNode, ...]


def stage_graph(
    pipeline: PipelineSpec, manifest: Manifest, copied: Container[str] = ()
) -> StageGraph:
    """Return the steps of a pipeline; stages that are `copied` to and from have three each."""
    steps = []
    for stage in pipeline.stages:
        for part in (IN, "", OUT) if stage.name in copied else ("",):
            steps.append((stage, part))
    final = {stage.name: number for number, (stage, _) in enumerate(steps)}
    first = {
        stage.name: final[stage.name] - (2 if stage.name in copied else 0) for stage, _ in steps
    }
    sources, targets = _neighbors(pipeline, manifest)
    nodes = []
    for number, (stage, part) in enumerate(steps):
        name, replicas = stage.name, max(1, len(stage.replica_names))
        is_first, is_final = number == first[name], number == final[name]
        feeders = [final[source] for source in sources[name] if source]
        readers = [first[target] for target in targets[name] if target]
        node = StageNode(
            name=step_name(name, part),
            feeders=tuple(feeders) if is_first else (number - 1,),
            readers=tuple(readers) if is_final else (number + 1,),
            fed=is_first and "" in sources[name],
            last=is_final and "" in targets[name],
            replicas=replicas,
            capacity=stage.capacity if is_first else replicas,
            part=part,
        )
        nodes.append(node)
    return tuple(nodes)


def _neighbors(
    pipeline: PipelineSpec, manifest: Manifest
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return what each stage reads from and what reads from it; empty names for the caller."""
    sources: dict[str, list[str]] = {stage.name: [] for stage in pipeline.stages}
    targets: dict[str, list[str]] = {stage.name: [] for stage in pipeline.stages}
    for edge in edges(pipeline, manifest):
        if edge.target and edge.source not in sources[edge.target]:
            sources[edge.target].append(edge.source)
        if edge.source and edge.target not in targets[edge.source]:
            targets[edge.source].append(edge.target)
    return sources, targets


def step_name(stage: str, part: str) -> str:
    """Return the name of a stage or of a part of it."""
    return f"{stage} {part}" if part else stage


def copy_step_name(processor: str) -> str:
    """Return the name of what copies to and from a device."""
    return f"{processor}.{COPY}"


def stages_with_copies(manifest: Manifest) -> frozenset[str]:
    """Return stages whose copies were predicted apart from their compute, everywhere they run.

    A stage whose steps could not be told by their names from others is none of them.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    taken = {stage.name for stage in pipeline.stages} | {sub.name for sub in manifest.subgraphs}
    processors: set[str] = set()
    for stage in pipeline.stages:
        placed = [sub.processor for sub in subgraphs_of_stage(stage, manifest)]
        processors.update(stage.replica_names, placed)
    copied = []
    for stage in pipeline.stages:
        names = set(_processor_names(stage, manifest))
        is_predicted = stage.copy_in_us and stage.copy_in_us.keys() >= names
        steps = {step_name(stage.name, part) for part in (IN, OUT)}
        copies = set(map(copy_step_name, names))
        if is_predicted and taken.isdisjoint(steps) and processors.isdisjoint(copies):
            copied.append(stage.name)
    return frozenset(copied)


def _processor_names(stage: PipelineStage, manifest: Manifest) -> tuple[str, ...]:
    placed = tuple(sub.processor for sub in subgraphs_of_stage(stage, manifest))
    return stage.replica_names or placed


def dependencies(stage_graph: StageGraph, number: int, item: int) -> Iterator[tuple[int, int]]:
    """Yield each (step, item) that must be over before step `number` begins `item`.

    Items below 0 never were.
    """
    node = stage_graph[number]
    for feeder in node.feeders:
        yield feeder, item
    yield number, item - node.replicas
    for reader in node.readers:
        yield reader, item - stage_graph[reader].window


def in_flight_limit(stage_graph: StageGraph) -> int:
    """Return the most items that queues and workers hold on any way through the pipeline."""
    limits: list[int] = []
    for node in stage_graph:  # stages come after those that feed them
        limits.append(node.window + max((limits[feeder] for feeder in node.feeders), default=0))
    return max(limits)


def processor_of_item(stage: PipelineStage, item: int, planned: str) -> str:
    """Return the processor of a sub-graph, or of a Python stage, for an item."""
    return stage.replica_names[item % len(stage.replica_names)] if stage.replica_names else planned


def stream_tasks(manifest: Manifest, items: int) -> tuple[Task, ...]:
    """Return a task for every sub-graph, copy and Python stage and every item, `NAME#ITEM`.

    A branched stage's sub-graphs need each other as in any plan; a Python stage is on a processor
    of its name. The manifest has a pipeline.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    nodes = stage_graph(pipeline, manifest, stages_with_copies(manifest))
    stages = {stage.name: stage for stage in pipeline.stages}
    names = []
    for node in nodes:
        names.append([node.name] if node.part else list(stages[node.name].subgraphs or [node.name]))
    tasks: list[Task] = []
    for item in range(items):
        for number, node in enumerate(nodes):
            before: set[str] = set()
            for step, earlier in dependencies(nodes, number, item):
                if earlier >= 0:
                    before.update(task_name(name, earlier) for name in names[step])
            tasks += _step_tasks(node, stages[node.stage], manifest, item, frozenset(before))
    return tuple(tasks)


def _step_tasks(
    node: StageNode, stage: PipelineStage, manifest: Manifest, item: int, before: frozenset[str]
) -> list[Task]:
    """Return the tasks of a step for an item; its first tasks need `before`."""
    subs = subgraphs_of_stage(stage, manifest)
    if node.part or stage.call:
        processor = processor_of_item(stage, item, subs[0].processor if subs else stage.name)
        place = copy_step_name(processor) if node.part else processor
        return [Task(task_name(node.name, item), node.name, before, place, item)]
    tasks = []
    for task in subgraph_tasks(subs, item, before=before):
        placed = processor_of_item(stage, item, task.processor or "")
        tasks.append(replace(task, processor=placed))
    return tasks


def stream_processors(manifest: Manifest, known: Mapping[str, Processor]) -> tuple[Processor, ...]:
    """Return everything that tasks of a stream name; what is not `known` takes two tasks at a time.

    Each has a host thread of its own, so none blocks the host.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    kinds, copied = dict[str, str](), stages_with_copies(manifest)
    for stage in pipeline.stages:
        if stage.call:
            kinds |= dict.fromkeys(stage.replica_names or (stage.name,), PYTHON)
        for sub in subgraphs_of_stage(stage, manifest):
            places = tuple(dict.fromkeys((sub.processor, *stage.replica_names)))
            kinds |= {p.name: p.kind for p in processors_named(manifest, places)}
            kinds |= {copy_step_name(name): COPY for name in places if stage.name in copied}
    processors = []
    for name, kind in kinds.items():
        processor = known.get(name, Processor(name, kind, 2))
        processors.append(replace(processor, blocks_host=False))
    return tuple(processors)


def stream_durations_us(manifest: Manifest) -> dict[tuple[WorkKey, str], float]:
    """Return predicted microseconds by (sub-graph, copy or Python stage, processor).

    A Python stage has 0, since nobody predicted it. Copies are part of their sub-graph's time where
    they have no step of their own.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    durations = task_durations_us(manifest)
    copied = stages_with_copies(manifest)
    for stage in pipeline.stages:
        for name in stage.copy_in_us if stage.name in copied else ():
            in_us, out_us, key = stage.copy_in_us[name], stage.copy_out_us[name], stage.subgraphs[0]
            durations[step_name(stage.name, IN), copy_step_name(name)] = in_us
            durations[step_name(stage.name, OUT), copy_step_name(name)] = out_us
            durations[key, name] = max(0.0, durations[key, name] - in_us - out_us)
        if stage.call:
            for name in stage.replica_names or (stage.name,):
                durations[stage.name, name] = 0.0
    return durations
