"""A manifest or a trial as tasks with their needs, and the predicted times of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nnstretch.bundle.manifest import Manifest, Subgraph, segment_ends
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey, task_name, work_key
from nnstretch.trial import Trial


def task_graph(manifest: Manifest, request: int = 0, plan: str = "") -> tuple[Task, ...]:
    """Return a task for each sub-graph, which needs the tasks that write its inputs."""
    return subgraph_tasks(manifest.subgraphs, request, plan)


def subgraph_tasks(
    subgraphs: Sequence[Subgraph],
    request: int = 0,
    plan: str = "",
    before: frozenset[str] = frozenset(),
) -> tuple[Task, ...]:
    """Return a task for each of some sub-graphs, which needs the tasks that write its inputs.

    Where an input comes from outside these sub-graphs, it needs `before` too.
    """
    writers: dict[str, str] = {}
    for sub in subgraphs:
        name = task_name(sub.name, request, plan)
        writers |= {port.name: name for port in sub.outputs}
    tasks = []
    for sub in subgraphs:
        reads = sub.input_names
        needs = frozenset(writers[name] for name in reads if name in writers)
        if any(name not in writers for name in reads):
            needs |= before
        name = task_name(sub.name, request, plan)
        tasks.append(Task(name, sub.name, needs, sub.processor, request, plan))
    return tuple(tasks)


def tasks_of_trial(trial: Trial, host: str) -> tuple[Task, ...]:
    """Return a plan's tasks before anything is exported.

    Its branches, and at every meeting point a merge on the host.
    """
    tasks: list[Task] = []
    before: frozenset[str] = frozenset()
    for number, segment in enumerate(trial.segments):
        branches: list[Task] = []
        for processor in segment.processors:
            branches.append(trial_task(branch_name(number, processor), processor, before))
        tasks += branches
        if len(branches) > 1:
            needs = frozenset(task.name for task in branches)
            tasks.append(trial_task(merge_name(number), host, needs))
        before = frozenset({tasks[-1].name})
    return tuple(tasks)


def trial_task(subgraph: str, processor: str, needs: frozenset[str]) -> Task:
    """Return a task of a plan that was not exported."""
    return Task(task_name(subgraph, 0), subgraph, needs, processor)


def branch_name(segment: int, processor: str) -> str:
    """Return the name of a branch's sub-graph."""
    return f"s{segment}.{processor}"


def merge_name(segment: int) -> str:
    """Return the name of a merge's sub-graph."""
    return f"s{segment}.merge"


def durations_of_trial(trial: Trial, host: str) -> dict[tuple[WorkKey, str], float]:
    """Return microseconds by (sub-graph, processor) of `tasks_of_trial`.

    Copies are the branch's, synchronization is the merge's, or an only branch's.
    """
    durations: dict[tuple[WorkKey, str], float] = {}
    for number, segment in enumerate(trial.segments):
        for branch in segment.branches:
            name = branch_name(number, branch.processor)
            durations[name, branch.processor] = branch.latency_us
        if len(segment.branches) > 1:
            durations[merge_name(number), host] = segment.sync_us + segment.merge_us
        else:
            durations[name, branch.processor] += segment.sync_us
    return durations


def roles_of_trial(trial: Trial) -> dict[WorkKey, tuple[str, int]]:
    """Return role and segment of the sub-graphs of `tasks_of_trial`."""
    roles: dict[WorkKey, tuple[str, int]] = {}
    for number, segment in enumerate(trial.segments):
        for branch in segment.branches:
            roles[branch_name(number, branch.processor)] = ("branch", number)
        if len(segment.branches) > 1:
            roles[merge_name(number)] = ("merge", number)
    return roles


def serialize(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return the tasks one after another, for comparison: each also needs the one before it."""
    chain: list[Task] = []
    for task in tasks:
        chain.append(replace(task, needs=task.needs | {chain[-1].name}) if chain else task)
    return tuple(chain)


def enqueue_times_us(
    manifest: Manifest, processors: Iterable[Processor], plan: str = ""
) -> dict[tuple[WorkKey, str], float]:
    """Return the host time to enqueue each branch, by (sub-graph of a plan, processor).

    Where a segment pays no synchronisation its data stays on the processor: the next sub-graph is
    enqueued behind a running one.
    """
    slow = [processor for processor in processors if processor.enqueue_us]
    times_us: dict[tuple[WorkKey, str], float] = {}
    for sub in manifest.subgraphs:
        if sub.role != "branch":
            continue
        synchronises = manifest.sync_us.get(sub.segment, 0.0) > 0.0
        for processor in slow:
            if synchronises or not processor.asynchronous:
                times_us[work_key(sub.name, plan), processor.name] = processor.enqueue_us
    return times_us


def task_durations_us(
    manifest: Manifest, processors: Iterable[Processor] = (), plan: str = ""
) -> dict[tuple[WorkKey, str], float]:
    """Return microseconds by (sub-graph of a plan, processor).

    The prediction, and where a segment ends its synchronisation: at a meeting point, or at the only
    branch where the plan placed it, since elsewhere the prediction holds that processor's own.

    What of that passes at the start, because `processors` hold the host to enqueue, is not paid
    again.
    """
    waited_for = tuple(processor for processor in processors if processor.asynchronous)
    enqueued_us = enqueue_times_us(manifest, waited_for, plan)
    paid_us: dict[int, float] = {}
    for sub in manifest.subgraphs:
        held_us = enqueued_us.get((work_key(sub.name, plan), sub.processor), 0.0)
        paid_us[sub.segment] = max(paid_us.get(sub.segment, 0.0), held_us)
    sync_us = {
        name: max(0.0, manifest.sync_us.get(segment, 0.0) - paid_us[segment])
        for segment, name in segment_ends(manifest).items()
    }
    durations_us: dict[tuple[WorkKey, str], float] = {}
    for sub in manifest.subgraphs:
        work = work_key(sub.name, plan)
        for processor, time_us in sub.predicted_us.items():
            if sub.role == "merge" or processor == sub.processor:
                duration_us = time_us + sync_us.get(sub.name, 0.0)
            else:
                duration_us = max(0.0, time_us - enqueued_us.get((work, processor), 0.0))
            durations_us[work, processor] = duration_us
    return durations_us
