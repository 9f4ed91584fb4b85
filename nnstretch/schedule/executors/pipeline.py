"""Pipelines on the static executor: a worker for each replica of each stage, one step a worker.

What the loop would decide for a pipeline is always the same (`pipeline_graph.py`: every stage works
off the items in their order), so the workers carry it out themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from nnstretch.schedule.executors.static import (
    Call,
    StaticExecutor,
    StaticStep,
    StaticWorker,
    Wait,
)
from nnstretch.schedule.pipeline_graph import StageGraph, StageNode


class StageFunction(Protocol):
    """What a worker does with each item; made on the worker's thread."""

    def __call__(self, item: int, /) -> None:
        """Compute one item. An error of the item is the item's; what this raises ends the
        executor.
        """
        ...


Make = Callable[[int, int], StageFunction]
"""Makes the function of (stage, replica)."""


def pipeline_executor(
    stage_graph: StageGraph, make: Make, cores: Sequence[Sequence[frozenset[int] | None]]
) -> StaticExecutor:
    """Return the executor of a pipeline; `cores` of each replica of each stage."""
    source = StaticStep("source")
    steps = [_steps(node, stage, make) for stage, node in enumerate(stage_graph)]
    room: list[Wait] = []
    workers = []
    for node, replicas, cores_of_stage in zip(stage_graph, steps, cores, strict=True):
        waits = [(steps[feeder], 0) for feeder in node.feeders]
        if node.fed:
            waits.insert(0, ((source,), 0))
            room.append((replicas, node.window))
        waits += [(steps[reader], stage_graph[reader].window) for reader in node.readers]
        for step in replicas:
            step.waits = tuple(waits)
        pairs = zip(replicas, cores_of_stage, strict=True)
        workers.append([_worker(step, replicas, core) for step, core in pairs])
    results = [
        (replicas, 0) for node, replicas in zip(stage_graph, steps, strict=True) if node.last
    ]
    return StaticExecutor(workers, source, room, results)


def _steps(node: StageNode, stage: int, make: Make) -> tuple[StaticStep, ...]:
    steps = []
    for replica in range(node.replicas):
        call = partial(next_item_call, make, stage, replica, node.replicas)
        steps.append(StaticStep(f"{node.name}.{replica}", make=call, passed=replica))
    return tuple(steps)


def _worker(
    step: StaticStep, replicas: tuple[StaticStep, ...], cores: frozenset[int] | None
) -> StaticWorker:
    return StaticWorker(step.name, (step,), cores, step.passed, len(replicas))


def next_item_call(make: Make, stage: int, replica: int, replicas: int) -> Call:
    """Return a call that computes a worker's next item, each time it is called."""
    return map(make(stage, replica), count(replica, replicas)).__next__


def queued_items(executor: StaticExecutor, stage_graph: StageGraph, stage: int) -> int:
    """Return items that are ready for a stage and not done: in its queue and at work."""
    node = stage_graph[stage]
    ready = [items_done(executor.workers[feeder]) for feeder in node.feeders]
    if node.fed:
        ready.append(executor.submitted)
    return max(0, min(ready) - items_done(executor.workers[stage]))


def items_done(workers: Sequence[StaticWorker]) -> int:
    """Return how many items the replicas of a stage have done together."""
    return sum((worker.steps[0].passed - worker.first) // worker.stride for worker in workers)
