"""Tasks of one application, with their times on the processors of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.simulate.pool import Pool
from nnstretch.cli.simulate.workload_files import beside
from nnstretch.errors import BadInput
from nnstretch.files.workload.workload import ApplicationSettings
from nnstretch.soc import host_of
from nnstretch.task import Task, TaskTimes, WorkKey

if TYPE_CHECKING:
    from nnstretch.bundle.manifest import Manifest
    from nnstretch.soc import Soc
    from nnstretch.task_graph import TaskGraph


@dataclass(frozen=True, slots=True)
class TimedTasks:
    """Tasks of one instance, and what they cost."""

    tasks: tuple[Task, ...]
    times_us: TaskTimes
    transfers_us: Mapping[tuple[WorkKey, WorkKey], float]
    predicted_for: str | None = None
    """The chip that a bundle names for its times; None for others."""
    is_predicted: bool = True
    """Whether a bundle has times of any chip."""


def timed_tasks(
    settings: ApplicationSettings,
    graph: TaskGraph | None,
    pool: Pool,
    soc: Soc | None,
    folder: Path,
) -> TimedTasks:
    """Return the tasks of an application, with their times."""
    where = f"cost of {settings.name}"
    if settings.costs_ms is not None:
        costs_us = {name: cost_ms * 1000 for name, cost_ms in settings.costs_ms.items()}
        times_us = pool.times_us(settings.name, costs_us, where)
        return TimedTasks((Task(settings.name, settings.name),), times_us, {})
    model = settings.model or ""
    if graph is not None:
        return graph_tasks(graph, pool, has_types=not model.endswith(".stg"))
    if model.endswith(".nns"):
        from nnstretch.bundle.bundle import read_bundle

        return bundle_tasks(read_bundle(beside(model, folder)).manifest, pool)
    if soc is None:
        raise BadInput(f"no chip for {model}, application {settings.name}, needed is soc or --soc")
    return model_tasks(settings, str(beside(model, folder)), pool, soc)


def graph_tasks(graph: TaskGraph, pool: Pool, has_types: bool) -> TimedTasks:
    """Return a task graph's tasks; its costs are by processor or type.

    A processor that the graph does not name costs what those of its type do that the pool does not
    name, or all of its type where the pool names all. Types that the pool is without do not count.
    Where the graph has no types, any pool of one type runs it. Raises BadInput where costs differ
    within a type of which the pool has processors that the graph does not name.
    """
    graph_names = {processor.name for processor in graph.processors}
    absent = names_by_type(graph, {processor.name for processor in pool.processors})
    by_type = names_by_type(graph) | absent
    kind_of_pool, *more_kinds = {processor.kind for processor in pool.processors}
    if not has_types and not more_kinds:
        by_type = {kind_of_pool: [processor.name for processor in graph.processors]}
    costs_us: dict[str, dict[WorkKey, float]] = {}
    times_us: dict[tuple[WorkKey, str], float] = {}
    for processor in pool.processors:
        if processor.name in graph_names:
            known_us = equal_costs_us(graph, processor.kind, (processor.name,), "")
        else:
            kind = next((name for name in pool.columns(processor) if name in by_type), None)
            if kind is None:
                continue
            if kind not in costs_us:
                lacks = f"the pool has no {absent[kind][-1]}" if kind in absent else ""
                reason = lacks or f"the graph has no {processor.name}"
                costs_us[kind] = equal_costs_us(graph, kind, by_type[kind], reason)
            known_us = costs_us[kind]
        times_us |= {(work, processor.name): cost_us for work, cost_us in known_us.items()}
    # Policies that look at every waiting task where data travel need not, where they take no time.
    transfers_us = {edge: time_us for edge, time_us in graph.transfer_us.items() if time_us}
    return TimedTasks(graph.tasks, times_us, transfers_us)


def names_by_type(graph: TaskGraph, without: Set[str] = frozenset()) -> dict[str, list[str]]:
    """Return the names of a graph's processors by type, `without` some."""
    by_type: dict[str, list[str]] = {}
    for processor in graph.processors:
        if processor.name not in without:
            by_type.setdefault(processor.kind, []).append(processor.name)
    return by_type


def equal_costs_us(
    graph: TaskGraph, kind: str, names: Sequence[str], reason: str
) -> dict[WorkKey, float]:
    """Return what each task of a graph costs on all of some processors of one type.

    Raises BadInput, with the reason why they stand for their type, where it does not cost the same
    on them, or has a cost on some alone.
    """
    costs_us: dict[WorkKey, float] = {}
    for work in dict.fromkeys(task.work for task in graph.tasks):
        first_us = graph.cost_us.get((work, names[0]))
        for name in names:
            cost_us = graph.cost_us.get((work, name))
            if cost_us == first_us:
                continue
            if first_us is None or cost_us is None:
                priced, bare = (names[0], name) if cost_us is None else (name, names[0])
                difference = f"has a cost on {priced} and none on {bare}, of type {kind}"
            else:
                difference = f"costs {first_us:g} and {cost_us:g} us on processors of type {kind}"
            raise BadInput(
                f"{work} {difference}, task graph, {reason}, give processors of a type equal costs"
                " or the pool and the graph the same processors"
            )
        if first_us is not None:
            costs_us[work] = first_us
    return costs_us


def bundle_tasks(manifest: Manifest, pool: Pool) -> TimedTasks:
    """Return a bundle's tasks, with the times that it was exported with."""
    from nnstretch.schedule.task_graph import task_durations_us, task_graph

    times_us = times_on_copies(task_durations_us(manifest), pool)
    source = (manifest.predicted_for, manifest.is_predicted)
    return TimedTasks(task_graph(manifest), times_us, {}, *source)


def model_tasks(settings: ApplicationSettings, model: str, pool: Pool, soc: Soc) -> TimedTasks:
    """Return a network's or a plan's tasks, as predicted."""
    from nnstretch.cli.loaded_model import is_plan, load_model_argument
    from nnstretch.cli.simulate.network_tasks import network_tasks

    subject = load_model_argument(model)
    if not is_plan(model) or subject.plan is None:
        return TimedTasks(*network_tasks(subject.graph, settings.cut, pool, soc))
    from nnstretch.schedule.task_graph import durations_of_trial, tasks_of_trial
    from nnstretch.stretch.lowering.lower import lower

    trial = subject.estimate(lower(subject.analysis, subject.plan), soc)
    host = host_of(soc.processor(pool.original(each)) for each in pool.processors)
    host = host or pool.original(pool.processors[0])
    times_us = times_on_copies(durations_of_trial(trial, host), pool)
    return TimedTasks(tasks_of_trial(trial, host), times_us, {})


def times_on_copies(times_us: TaskTimes, pool: Pool) -> dict[tuple[WorkKey, str], float]:
    """Return times on the processors of a pool: their own, else those of their originals."""
    on_pool_us: dict[tuple[WorkKey, str], float] = {}
    for processor in pool.processors:
        for column in (pool.original(processor), processor.name):
            for (work, name), time_us in times_us.items():
                if name == column:
                    on_pool_us[work, processor.name] = time_us
    return on_pool_us


def placed(settings: ApplicationSettings, timed: TimedTasks, pool: Pool) -> TimedTasks:
    """Return tasks without their places, unless these are to be kept.

    Where the pool has copies of a place instead, a task that keeps it runs on any of these.
    """
    if settings.placement != "kept":
        return replace(timed, tasks=tuple(replace(task, processor=None) for task in timed.tasks))
    originals = {each.name: pool.original(each) for each in pool.processors}
    places: dict[WorkKey, str] = {}
    for task in timed.tasks:
        place = task.processor
        if place is not None and place not in originals and place in originals.values():
            places[task.work] = place
    tasks = [replace(t, processor=None) if t.work in places else t for t in timed.tasks]
    times_us: dict[tuple[WorkKey, str], float] = {}
    for (work, name), time_us in timed.times_us.items():
        if places.get(work, originals[name]) == originals[name]:
            times_us[work, name] = time_us
    return replace(timed, tasks=tuple(tasks), times_us=times_us)
