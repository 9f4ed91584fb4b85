"""Applications of a workload as tasks, with their times on the processors of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.simulate.measured import measured_over, measured_times
from nnstretch.cli.simulate.pool import Pool, pool_of
from nnstretch.errors import BadInput, closest
from nnstretch.files.workload.arrival_csv import read_arrivals
from nnstretch.files.workload.measured_costs import (
    MeasuredCosts,
    join_costs,
    read_measured_costs,
)
from nnstretch.files.workload.workload import ApplicationSettings, ArrivalSettings, WorkloadFile
from nnstretch.schedule.simulation.application import (
    Application,
    ExponentialArrivals,
    FixedArrivals,
    ListedArrivals,
    own_tasks,
    own_times,
    own_transfers,
)
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.task import Task, TaskTimes, WorkKey

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.task_graph import TaskGraph

GRAPHS = (".json", ".stg")


@dataclass(frozen=True, slots=True)
class TimedTasks:
    """Tasks of one instance, and what they cost."""

    tasks: tuple[Task, ...]
    times_us: TaskTimes
    transfers_us: Mapping[tuple[WorkKey, WorkKey], float]


def simulation_settings(
    workload: WorkloadFile, soc: Soc | None, folder: Path
) -> SimulationSettings:
    """Return everything that a simulation of a workload depends on.

    Files are beside the workload, in `folder`, or where the command runs. Raises what reading them
    raises, and BadInput for what does not fit together.
    """
    graphs = read_graphs(workload, folder)
    graph_pool = next(iter(graphs.values())).processors if graphs and soc is None else ()
    pool = pool_of(workload, soc, graph_pool)
    applications: list[Application] = []
    times_us: dict[tuple[WorkKey, str], float] = {}
    transfers_us: dict[tuple[WorkKey, WorkKey], float] = {}
    measured = None
    if workload.costs is not None:
        measured = costs_beside(workload.costs, folder)
    for settings in workload.applications:
        timed = timed_tasks(settings, graphs.get(settings.name), pool, soc, folder)
        if measured is not None:
            timed = replace(
                timed, times_us=measured_over(settings.name, timed.tasks, measured, pool)
            )
        check_places(settings, timed, pool)
        applications.append(application_of(settings, timed.tasks, folder))
        times_us |= own_times(settings.name, timed.times_us)
        transfers_us |= own_transfers(settings.name, timed.transfers_us)
    if soc is None:
        check_pool(pool, graphs, {processor for _, processor in times_us})
    return SimulationSettings(
        tuple(applications),
        pool.processors,
        times_us,
        workload.policy,
        transfers_us,
        workload.queueing,
        workload.seed,
        workload.durations.kind,
        workload.durations.spread,
        workload.correction,
        workload.wrong_costs,
        workload.handover_ms * 1000,
        measured=None if measured is None else measured_times(measured),
    )


def source_json(workload: WorkloadFile, soc: Soc | None) -> dict[str, Any]:
    """Return whether and by what costs are calibrated, as far as chip and workload say."""
    source: dict[str, Any] = {}
    if soc is not None:
        source |= {
            "calibrated": soc.calibrated,
            "noisy": soc.noisy,
            "provenance": soc.provenance,
        }
    if workload.calibrated is not None:
        source["calibrated"] = workload.calibrated
    if workload.provenance is not None:
        source["provenance"] = workload.provenance
    return source


def read_graphs(workload: WorkloadFile, folder: Path) -> dict[str, TaskGraph]:
    """Read the task graphs of a workload, by application. Raises as `pool_text` and the reader."""
    from nnstretch.files.task_graphs.read_task_graph import read_task_graph

    graphs: dict[str, TaskGraph] = {}
    for settings in workload.applications:
        if settings.model is not None and settings.model.endswith(GRAPHS):
            path = beside(settings.model, folder)
            counts = pool_text(workload, path) if path.suffix == ".stg" else None
            graphs[settings.name] = read_task_graph(path, counts)
    return graphs


def pool_text(workload: WorkloadFile, path: Path) -> str:
    """Return how many processors there are, as the reader of a graph without any wants it.

    Raises BadInput for a workload without a pool.
    """
    if workload.pool is None:
        raise BadInput(
            f"no pool, workload, {path.name} names no processors: write how many there are, such"
            " as pool: {cpu: 4}"
        )
    return str(sum(workload.pool.values()))


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
    if graph is not None:
        return graph_tasks(graph, pool)
    model = settings.model or ""
    if model.endswith(".nns"):
        return bundle_tasks(settings, beside(model, folder), pool)
    if soc is None:
        raise BadInput(f"no chip for {model}, application {settings.name}, needed is soc or --soc")
    return model_tasks(settings, str(beside(model, folder)), pool, soc)


def graph_tasks(graph: TaskGraph, pool: Pool) -> TimedTasks:
    """Return a task graph's tasks; its costs are by processor or type.

    Those of processors that the pool is without do not count.
    """
    costs_us: dict[WorkKey, dict[str, float]] = {}
    kinds = {processor.name: processor.kind for processor in graph.processors}
    names = {processor.name for processor in pool.processors}
    for (work, name), cost_us in graph.cost_us.items():
        column = name if name in names else kinds[name]
        costs_us.setdefault(work, {})[column] = cost_us
    times_us: dict[tuple[WorkKey, str], float] = {}
    alike = len(set(kinds.values())) == 1 and len({p.kind for p in pool.processors}) == 1
    for work, columns in costs_us.items():
        if alike and not names & columns.keys():
            columns = {pool.processors[0].kind: next(iter(columns.values()))}
        columns = {column: cost_us for column, cost_us in columns.items() if pool.has(column)}
        times_us |= pool.times_us(work, columns, f"cost of {work}")
    # Policies that look at every waiting task where data travel need not, where they take no time.
    transfers_us = {edge: time_us for edge, time_us in graph.transfer_us.items() if time_us}
    return TimedTasks(graph.tasks, times_us, transfers_us)


def bundle_tasks(settings: ApplicationSettings, path: Path, pool: Pool) -> TimedTasks:
    """Return a bundle's tasks, with the times that it was exported with."""
    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.schedule.task_graph import task_durations_us, task_graph

    manifest = read_bundle(path).manifest
    by_original = task_durations_us(manifest, pool.processors)
    times_us: dict[tuple[WorkKey, str], float] = {}
    for processor in pool.processors:
        for (work, name), time_us in by_original.items():
            if name in (processor.name, pool.original(processor)):
                times_us[work, processor.name] = time_us
    return placed(settings, TimedTasks(task_graph(manifest), times_us, {}))


def model_tasks(settings: ApplicationSettings, model: str, pool: Pool, soc: Soc) -> TimedTasks:
    """Return a network's or a plan's tasks, as predicted."""
    from nnstretch.cli.loaded_model import is_plan, load_model_argument
    from nnstretch.cli.simulate.network_tasks import network_tasks

    subject = load_model_argument(model)
    if not is_plan(model) or subject.plan is None:
        tasks, times_us = network_tasks(subject.graph, settings.cut, pool, soc)
        return TimedTasks(tasks, times_us, {})
    from nnstretch.schedule.task_graph import durations_of_trial, tasks_of_trial
    from nnstretch.stretch.lowering.lower import lower

    trial = subject.estimate(lower(subject.analysis, subject.plan), soc, soc.name)
    host = next(p.name for p in pool.processors if p.kind == "cpu")
    tasks = tasks_of_trial(trial, host)
    return placed(settings, TimedTasks(tasks, durations_of_trial(trial, host), {}))


def placed(settings: ApplicationSettings, timed: TimedTasks) -> TimedTasks:
    """Return tasks without their places, unless these are to be kept."""
    if settings.placement == "kept":
        return timed
    return replace(timed, tasks=tuple(replace(task, processor=None) for task in timed.tasks))


def check_places(settings: ApplicationSettings, timed: TimedTasks, pool: Pool) -> None:
    """Check that every task can run somewhere. Raises BadInput naming the one that cannot."""
    for task in timed.tasks:
        names = [p.name for p in pool.processors if (task.work, p.name) in timed.times_us]
        if task.processor is not None and task.processor not in names:
            raise BadInput(
                f"{task.subgraph} of {settings.name} is placed on {task.processor}, workload, it"
                f" has a time on {', '.join(names) or 'no processor'} of the pool"
            )
        if not names:
            pooled = ", ".join(p.name for p in pool.processors)
            raise BadInput(
                f"{task.subgraph} of {settings.name} can run nowhere, workload, the pool is"
                f" {pooled}"
            )


def check_pool(pool: Pool, graphs: Mapping[str, TaskGraph], used: set[str]) -> None:
    """Check that no processor idles because its type is misspelt. Raises BadInput naming it."""
    columns: dict[str, None] = {}
    for graph in graphs.values():
        columns |= dict.fromkeys(processor.kind for processor in graph.processors)
    absent = [column for column in columns if not pool.has(column)]
    for processor in pool.processors:
        near = closest(processor.kind, absent)
        if processor.name not in used and near:
            raise BadInput(
                f"no application has a cost on {processor.name}, pool, nothing could run on it"
                f"{near}"
            )


def application_of(
    settings: ApplicationSettings, tasks: tuple[Task, ...], folder: Path
) -> Application:
    """Return an application, in microseconds. Raises BadInput for one without arrivals."""
    if settings.arrivals is None:
        raise BadInput(f"no arrivals, application {settings.name}, nothing would ever arrive")
    return Application(
        settings.name,
        own_tasks(settings.name, tasks),
        arrivals_of(settings.arrivals, folder),
        settings.instances,
        inf if settings.duration_ms is None else settings.duration_ms * 1000,
        inf if settings.deadline_ms is None else settings.deadline_ms * 1000,
        settings.priority,
        settings.queue_limit,
    )


def arrivals_of(
    settings: ArrivalSettings, folder: Path
) -> FixedArrivals | ExponentialArrivals | ListedArrivals:
    """Return when instances arrive, in microseconds."""
    if settings.period_ms is not None:
        period_us = settings.period_ms * 1000
        return FixedArrivals(period_us, 0.0 if settings.first in (None, "now") else period_us)
    if settings.mean_gap_ms is not None:
        gap_us = settings.mean_gap_ms * 1000
        first_us = {"now": 0.0, "period": gap_us}.get(settings.first or "gap")
        return ExponentialArrivals(gap_us, first_us)
    times_ms = settings.times_ms or read_arrivals(beside(settings.csv or "", folder))
    return ListedArrivals(tuple(time_ms * 1000 for time_ms in times_ms))


def costs_beside(paths: str | Sequence[str], folder: Path) -> MeasuredCosts:
    """Return what tables beside a workload say together. Raises what reading them raises."""
    named = [paths] if isinstance(paths, str) else paths
    return join_costs([read_measured_costs(beside(path, folder)) for path in named])


def beside(path: str, folder: Path) -> Path:
    """Return a path beside the workload where that is there, else as it is written.

    It may name a function of the file: `net.py:make`.
    """
    file = path.partition(":")[0]
    is_there = (folder / path).exists() or (folder / file).is_file()
    return folder / path if is_there else Path(path)
