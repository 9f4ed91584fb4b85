"""The workers of a pipeline, seen from outside.

On what they run, on which cores, and what they have done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import TypeVar

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.pipeline_view import subgraphs_of_stage
from nnstretch.errors import BadInput
from nnstretch.pipeline import PipelineStage
from nnstretch.run.pipelines.item_buffer import ItemBuffer
from nnstretch.run.pipelines.stage_functions import SubgraphStage
from nnstretch.run.pipelines.worker_record import WorkerRecord, worker_name
from nnstretch.schedule.cpu_affinity import describe_cores, pin
from nnstretch.schedule.executors.static import StaticExecutor, StaticWorker
from nnstretch.schedule.pipeline_graph import copy_step_name

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """What a stage has done since the pipeline began, or its statistics did; replicas together.

    Times of this host.
    """

    stage: str
    processors: tuple[str, ...]
    items: int
    failed: int
    late: int
    busy_us: float
    service_us: float
    """Median of the last items, of the slowest replica."""
    starved_us: float
    """Waited for an item."""
    blocked_us: float
    """Waited for room behind it."""
    waiting: int
    """Items in front of it and at work in it, now."""
    replica_items: tuple[int, ...] = ()
    """By replica, in the order of `processors`; `replica_busy_us` too."""
    replica_busy_us: tuple[float, ...] = ()


def replica_processors(
    stage: PipelineStage, bundle: Bundle, part: str = ""
) -> tuple[tuple[str, ...], ...]:
    """Return the processors of each replica of a stage.

    One processor, or several of a branched stage; for a Python stage its own name, or NAME.0,
    NAME.1 and so on for its replicas. With a `part`, IN or OUT, the names of the copies instead.
    """
    if stage.call:
        return tuple((name,) for name in stage.replica_names or (stage.name,))
    replicas: tuple[tuple[str, ...], ...]
    if stage.replica_names:
        replicas = tuple((name,) for name in stage.replica_names)
    else:
        subgraphs = subgraphs_of_stage(stage, bundle.manifest)
        replicas = (tuple(dict.fromkeys(sub.processor for sub in subgraphs)),)
    if not part:
        return replicas
    return tuple(tuple(map(copy_step_name, names)) for names in replicas)


def assign_cores(
    stages: tuple[PipelineStage, ...], allowed: set[int] | None
) -> list[list[frozenset[int] | None]]:
    """Return cores of every worker: those its stage names.

    Else, where there are enough for all sub-graphs, as many of its own as it has threads.

    Raises BadInput for a core that this process may not use: a binding without effect would show in
    nothing but the times.
    """
    for stage in stages:
        if missing := [core for core in stage.cores if allowed is not None and core not in allowed]:
            raise BadInput(
                f"stage {stage.name} is bound to core {missing[0]}, pipeline, this process may use"
                f" {describe_cores(allowed or ())}; bind=False of Pipeline(...) ignores the binding"
            )
    bound = chain.from_iterable(stage.cores for stage in stages)
    free = deque(sorted((allowed or set()).difference(bound)))
    wanted = sum(
        stage.threads * max(1, len(stage.replica_names))
        for stage in stages
        if not stage.cores and not stage.call
    )
    enough = wanted <= len(free)
    cores: list[list[frozenset[int] | None]] = []
    for stage in stages:
        count = max(1, len(stage.replica_names))
        if stage.cores:
            cores.append([frozenset(stage.cores)] * count)
        elif stage.call or not enough:
            cores.append([None] * count)
        else:
            cores.append(
                [frozenset(free.popleft() for _ in range(stage.threads)) for _ in range(count)]
            )
    return cores


def statistics_of(
    stage: str,
    names: Sequence[tuple[str, ...]],
    records: list[WorkerRecord],
    workers: Sequence[StaticWorker],
    waiting: int,
) -> StageStatistics:
    """Return the statistics of a stage over its replicas."""
    recent = [median(times_s) for record in records if (times_s := tuple(record.recent_s))]
    return StageStatistics(
        stage=stage,
        processors=tuple(map(worker_name, names)),
        items=sum(record.items for record in records),
        failed=sum(record.failed for record in records),
        late=sum(record.late for record in records),
        busy_us=sum(record.busy_s for record in records) * 1e6,
        service_us=max(recent, default=0.0) * 1e6,
        starved_us=sum(worker.starved_s for worker in workers) * 1e6,
        blocked_us=sum(worker.blocked_s for worker in workers) * 1e6,
        waiting=waiting,
        replica_items=tuple(record.items for record in records),
        replica_busy_us=tuple(record.busy_s * 1e6 for record in records),
    )


def make_on_cores(cores: frozenset[int] | None, make: Callable[[], Made]) -> Made:
    """Call a function on a thread of these cores, as threads of a backend inherit them.

    Raises what `make` raises.
    """
    results: list[Made] = []
    errors: list[BaseException] = []

    def on_its_cores() -> None:
        pin(None if cores is None else set(cores))
        try:
            results.append(make())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=on_its_cores, name="nnstretch-load")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def shut_down(executor: StaticExecutor, items: ItemBuffer) -> None:
    """End every thread of a pipeline, also those of branched stages.

    A thread of the pipeline itself calls this where a stage closes its pipeline, or where garbage
    collection ends one. It cannot join itself, so a new thread joins it.
    """
    if threading.current_thread().name.startswith("nnstretch-"):
        threading.Thread(target=join_all, args=(executor, items), name="nnstretch-close").start()
    else:
        join_all(executor, items)


def join_all(executor: StaticExecutor, items: ItemBuffer) -> None:
    """Close the stages and join the workers."""
    executor.close()
    for work in items.opened.values():
        if isinstance(work, SubgraphStage):
            work.close()
