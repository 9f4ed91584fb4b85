"""A bundle's manifest as data for the loop.

Tasks with needs, durations, and bounds on what is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from nnstretch.bundle.manifest import Manifest, segment_ends
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trial import Trial


def task_graph(manifest: Manifest, request: int = 0, prefix: str = "") -> tuple[Task, ...]:
    """Return one task per sub-graph; it needs what writes its inputs.

    Named `SUBGRAPH#REQUEST`, sub-graphs with `prefix` before them.
    """
    writers = {port.name: sub.name for sub in manifest.subgraphs for port in sub.outputs}
    return tuple(
        Task(
            name=f"{prefix}{sub.name}#{request}",
            subgraph=f"{prefix}{sub.name}",
            needs=frozenset(
                f"{prefix}{writers[port.name]}#{request}"
                for port in sub.inputs
                if port.name in writers
            ),
            processor=sub.processor,
            request=request,
        )
        for sub in manifest.subgraphs
    )


def tasks_of_trial(trial: Trial, host: str, request: int = 0, prefix: str = "") -> tuple[Task, ...]:
    """Return a plan's tasks before anything is exported.

    Its branches, and at every meeting point a merge on the host.
    """
    tasks: list[Task] = []
    before: frozenset[str] = frozenset()
    for number, segment in enumerate(trial.segments):
        subs = [
            (f"{prefix}s{number}.{branch.processor}", branch.processor, before)
            for branch in segment.branches
        ]
        if len(subs) > 1:
            subs.append(
                (
                    f"{prefix}s{number}.merge",
                    host,
                    frozenset(f"{name}#{request}" for name, _, _ in subs),
                )
            )
        tasks += [
            Task(f"{name}#{request}", name, needs, processor, request)
            for name, processor, needs in subs
        ]
        before = frozenset({tasks[-1].name})
    return tuple(tasks)


def durations_of_trial(trial: Trial, host: str, prefix: str = "") -> dict[tuple[str, str], float]:
    """Return microseconds by (sub-graph, processor) of `tasks_of_trial`.

    Copies are the branch's, synchronisation is the merge's.
    """
    durations: dict[tuple[str, str], float] = {}
    for number, segment in enumerate(trial.segments):
        durations |= {
            (f"{prefix}s{number}.{branch.processor}", branch.processor): branch.latency_us
            for branch in segment.branches
        }
        if len(segment.branches) > 1:
            durations[f"{prefix}s{number}.merge", host] = segment.sync_us + segment.merge_us
    return durations


def subgraph_of(task: str) -> str:
    """Return the sub-graph behind a name that `tasks_of` gave."""
    return task.rpartition("#")[0]


def serialize(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return the tasks one after another, for comparison: each also needs the one before it."""
    chain: list[Task] = []
    for task in tasks:
        chain.append(replace(task, needs=task.needs | {chain[-1].name}) if chain else task)
    return tuple(chain)


def enqueue_times_us(
    manifest: Manifest, processors: Iterable[Processor], prefix: str = ""
) -> dict[tuple[str, str], float]:
    """Return the host time to enqueue each branch, by (`prefix` and sub-graph, processor).

    Where a segment pays no synchronisation its data stays on the processor: the next sub-graph is
    enqueued behind a running one.
    """
    slow = [processor for processor in processors if processor.enqueue_us]
    branches = [sub for sub in manifest.subgraphs if sub.role == "branch"]
    return {
        (f"{prefix}{sub.name}", processor.name): processor.enqueue_us
        for sub in branches
        for processor in slow
        if not processor.asynchronous or manifest.sync_us.get(sub.segment, 0.0) > 0.0
    }


def task_durations_us(
    manifest: Manifest, processors: Iterable[Processor] = (), prefix: str = ""
) -> dict[tuple[str, str], float]:
    """Return microseconds by (`prefix` and sub-graph, processor).

    The prediction, and at a meeting point its synchronisation.

    What of that passes at the start, because `processors` hold the host to enqueue, is not paid
    again.
    """
    enqueued_us = {
        processor.name: processor.enqueue_us for processor in processors if processor.asynchronous
    }
    paid_us: dict[int, float] = {}
    for sub in manifest.subgraphs:
        if sub.role == "branch":
            paid_us[sub.segment] = max(
                paid_us.get(sub.segment, 0.0), enqueued_us.get(sub.processor, 0.0)
            )
    ends = segment_ends(manifest).items()
    sync_us = {
        name: max(0.0, manifest.sync_us.get(segment, 0.0) - paid_us.get(segment, 0.0))
        for segment, name in ends
    }
    return {
        (f"{prefix}{sub.name}", processor): time_us + sync_us.get(sub.name, 0.0)
        for sub in manifest.subgraphs
        for processor, time_us in sub.predicted_us.items()
    }


def critical_path_us(tasks: Iterable[Task], duration_us: Callable[[Task], float]) -> float:
    """Return the longest chain of needs: no schedule ends earlier. Tasks come after what they
    need.
    """
    ends_us: dict[str, float] = {}
    for task in tasks:
        ends_us[task.name] = max((ends_us[need] for need in task.needs), default=0.0) + duration_us(
            task
        )
    return max(ends_us.values(), default=0.0)


def duration_as_placed(durations_us: Mapping[tuple[str, str], float]) -> Callable[[Task], float]:
    """Return how long a task takes where its plan put it."""
    return lambda task: durations_us[task.subgraph, task.processor or ""]
