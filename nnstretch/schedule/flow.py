"""A pipeline as rules: which item a stage may begin when, whoever keeps the time.

A stage begins an item when those that feed it are through with this item, when it is through with the one before, and when those that
read from it have room: an item waits in a bounded queue, and nobody starts what could not be put down. So items keep their order,
and what is between two stages never exceeds the queue.

The same rules are tasks with needs for the loop on the virtual clock (`stream_tasks`), and counters for workers that run (`relay`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nnstretch.manifest import Manifest, meeting_points
from nnstretch.soc import Processor
from nnstretch.stages import Pipeline, Stage, edges, members
from nnstretch.trace import Span, Task, Trace

PYTHON = "python"
"""Kind of the processor that a Python stage is on: a host thread of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stage, without its contents."""

    name: str
    feeders: tuple[int, ...]
    """Numbers of the stages whose tensors it reads."""
    readers: tuple[int, ...]
    fed: bool
    """Whether the caller hands it something."""
    last: bool
    """Whether it hands the caller something."""
    replicas: int = 1
    """Items go to them in turn."""
    capacity: int = 1
    """Items that may wait in front of it."""

    @property
    def window(self) -> int:
        """Items in front of it and at work in it."""
        return self.capacity + self.replicas


Flow = tuple[Step, ...]


def flow_of(pipeline: Pipeline, manifest: Manifest) -> Flow:
    """Stages and who hands to whom."""
    numbers = {stage.name: number for number, stage in enumerate(pipeline.stages)}
    pairs = [(edge.source, edge.target) for edge in edges(pipeline, manifest)]
    return tuple(
        Step(
            name=stage.name,
            feeders=tuple(dict.fromkeys(numbers[s] for s, t in pairs if t == stage.name and s)),
            readers=tuple(dict.fromkeys(numbers[t] for s, t in pairs if s == stage.name and t)),
            fed=("", stage.name) in pairs,
            last=(stage.name, "") in pairs,
            replicas=max(1, len(stage.holders)),
            capacity=stage.capacity,
        )
        for stage in pipeline.stages
    )


def needs(flow: Flow, number: int, item: int) -> Iterator[tuple[int, int]]:
    """(stage, item) that must be over before stage `number` begins `item`; items below 0 never were."""
    step = flow[number]
    for feeder in step.feeders:
        yield feeder, item
    yield number, item - step.replicas
    for reader in step.readers:
        yield reader, item - flow[reader].window


def depth(flow: Flow) -> int:
    """Items that fit between the caller's two ends: the most that queues and workers hold on any way through."""
    held: list[int] = []
    for step in flow:  # stages come after those that feed them
        held.append(step.window + max((held[feeder] for feeder in step.feeders), default=0))
    return max(held)


def processor_of(stage: Stage, item: int, planned: str) -> str:
    """Where a sub-graph of a stage, or the stage's function, runs for an item."""
    return stage.holders[item % len(stage.holders)] if stage.holders else planned


def stream_tasks(manifest: Manifest, items: int) -> tuple[Task, ...]:
    """Every sub-graph and Python stage for every item, named `NAME#ITEM`. The manifest has a pipeline.

    A branched stage's sub-graphs need each other as in any plan; a Python stage is on a processor of its own name.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    flow, found = flow_of(pipeline, manifest), list[Task]()
    names = [[sub.name for sub in members(stage, manifest)] or [stage.name] for stage in pipeline.stages]
    for item in range(items):
        for number, stage in enumerate(pipeline.stages):
            before = frozenset(f"{name}#{n}" for other, n in needs(flow, number, item) if n >= 0 for name in names[other])
            if stage.call:
                found.append(Task(f"{stage.name}#{item}", stage.name, before, processor_of(stage, item, stage.name), item))
            found += _members(stage, manifest, item, before)
    return tuple(found)


def _members(stage: Stage, manifest: Manifest, item: int, before: frozenset[str]) -> list[Task]:
    subs = members(stage, manifest)
    writers = {port.name: f"{sub.name}#{item}" for sub in subs for port in sub.outputs}
    found = []
    for sub in subs:
        inner = frozenset(writers[port.name] for port in sub.inputs if port.name in writers)
        outer = before if any(port.name not in writers for port in sub.inputs) else frozenset()
        found.append(Task(f"{sub.name}#{item}", sub.name, inner | outer, processor_of(stage, item, sub.processor), item))
    return found


def stream_processors(manifest: Manifest, known: Mapping[str, Processor]) -> tuple[Processor, ...]:
    """Everything that tasks of a stream name; whoever is not `known` takes two tasks at a time. Each has a host thread of its own."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    names: dict[str, str] = {}
    for stage in pipeline.stages:
        if stage.call:
            names |= dict.fromkeys(stage.holders or (stage.name,), PYTHON)
        for sub in members(stage, manifest):
            names |= {name: "cpu" if name.startswith("cpu") else name for name in (sub.processor, *stage.holders)}
    return tuple(replace(known[name], blocks_host=False) if name in known else Processor(name, kind, 2) for name, kind in names.items())


def stream_durations_us(manifest: Manifest) -> dict[tuple[str, str], float]:
    """Microseconds by (sub-graph, processor), as predicted with copies; a Python stage counts nothing, since nobody predicted it."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    found = {(sub.name, processor): time_us for sub in manifest.subgraphs for processor, time_us in sub.predicted_us.items()}
    sync_us = {name: manifest.sync_us.get(segment, 0.0) for segment, name in meeting_points(manifest).items()}
    found = {key: time_us + sync_us.get(key[0], 0.0) for key, time_us in found.items()}
    return found | {(stage.name, name): 0.0 for stage in pipeline.stages if stage.call for name in stage.holders or (stage.name,)}


def by_stage(trace: Trace, pipeline: Pipeline) -> dict[str, list[Span]]:
    """Spans of each stage in the order of items: one for each item, from the first of its sub-graphs' starts to the last's end."""
    home = {name: stage.name for stage in pipeline.stages for name in (stage.subgraphs or (stage.name,))}
    found: dict[str, dict[int, Span]] = {stage.name: {} for stage in pipeline.stages}
    for span in trace.spans:
        name, _, item = span.task.rpartition("#")
        spans = found[home.get(name, name)]
        old = spans.get(int(item), span)
        spans[int(item)] = Span(min(old.start_us, span.start_us), max(old.end_us, span.end_us), f"{home.get(name, name)}#{item}", span.processor)
    return {name: [spans[item] for item in sorted(spans)] for name, spans in found.items()}


def begun_late_us(flow: Flow, spans: Mapping[str, list[Span]]) -> list[float]:
    """For every stage and item of which everything is known: how long after it could have begun it did.

    `spans` by stage in the order of items (`by_stage`), all on one clock.
    """
    found: list[float] = []
    at = {name: {int(span.task.rpartition("#")[2]): span for span in own} for name, own in spans.items()}
    for number, step in enumerate(flow):
        for item, span in at[step.name].items():
            before = [(flow[other].name, n) for other, n in needs(flow, number, item) if n >= 0]
            if before and all(n in at[name] for name, n in before):
                found.append(span.start_us - max(at[name][n].end_us for name, n in before))
    return found
