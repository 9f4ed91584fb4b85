"""Applications of a workload as tasks, with their times on the processors of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.manifest import check_predicted_for
from nnstretch.cli.progress import calibration_json
from nnstretch.cli.simulate.measured import check_measured, measured_over, measured_times
from nnstretch.cli.simulate.pool import Pool, pool_of
from nnstretch.cli.simulate.timed_tasks import TimedTasks, placed, timed_tasks
from nnstretch.cli.simulate.workload_files import beside, costs_beside, read_graphs
from nnstretch.errors import BadInput, closest
from nnstretch.files.workload.arrival_csv import read_arrivals
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
from nnstretch.task import Task, WorkKey

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.task_graph import TaskGraph


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
    measured = None if workload.costs is None else costs_beside(workload.costs, folder)
    for settings in workload.applications:
        timed = timed_tasks(settings, graphs.get(settings.name), pool, soc, folder)
        if measured is not None:
            timed = replace(
                timed, times_us=measured_over(settings.name, timed.tasks, measured, pool)
            )
        else:
            check_chip(settings, timed, pool)
        timed = placed(settings, timed, pool)
        check_places(settings, timed, pool)
        applications.append(application_of(settings, timed.tasks, folder))
        times_us |= own_times(settings.name, timed.times_us)
        transfers_us |= own_transfers(settings.name, timed.transfers_us)
    if measured is not None:
        check_measured(measured, pool)
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
    source = {} if soc is None else calibration_json(soc)
    if workload.calibrated is not None:
        source["calibrated"] = workload.calibrated
    if workload.provenance is not None:
        source["provenance"] = workload.provenance
    return source


def check_chip(settings: ApplicationSettings, timed: TimedTasks, pool: Pool) -> None:
    """Check that a bundle has times, and of the pool's chip. Raises BadInput."""
    if not timed.is_predicted:
        raise BadInput(
            f"no predicted times, {settings.model} of {settings.name}, workload, export it with"
            " --soc, or give measured times: --costs"
        )
    if pool.soc is not None:
        check_predicted_for(settings.model or settings.name, timed.predicted_for, pool.soc.name)


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
    """Return an application, in microseconds.

    Raises BadInput for one without arrivals or with fewer times than instances.
    """
    if settings.arrivals is None:
        raise BadInput(f"no arrivals, application {settings.name}, nothing would ever arrive")
    arrivals = arrivals_of(settings.arrivals, folder)
    instances = settings.instances or 0
    if isinstance(arrivals, ListedArrivals) and instances > len(arrivals.listed_us):
        raise BadInput(
            f"{instances} instances, application {settings.name},"
            f" {len(arrivals.listed_us)} times are listed"
        )
    return Application(
        settings.name,
        own_tasks(settings.name, tasks),
        arrivals,
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
