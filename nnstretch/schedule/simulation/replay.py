"""A server's record once more on the virtual clock: what was served, and what would have been."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedRequest,
    ServiceRecord,
)
from nnstretch.schedule.executors.contended import HostCosts
from nnstretch.schedule.simulation.application import Application, ListedArrivals, own_tasks
from nnstretch.schedule.simulation.durations import MeasuredTimes
from nnstretch.schedule.simulation.latencies import Latencies
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey

ANSWERED = "answered"
GONE = ("cancelled", "failed")
FEW_GAPS = 10
"""Hand-overs to idle processors below which no median is taken."""


@dataclass(frozen=True, slots=True)
class PlacedSpan:
    """A task of a record: when it could start, ran, and where."""

    application: str
    task: str
    processor: str
    ready_us: float
    """When its request was admitted and all that it needs had ended."""
    start_us: float
    end_us: float
    request: int
    needs: tuple[str, ...]


def replay_settings(
    record: ServiceRecord, policy: str | None, measured: MeasuredTimes | None, seed: int
) -> SimulationSettings:
    """Return a simulation of the requests of a record.

    Arrivals are the recorded ones; requests end at their deadline, as on the server. Durations are
    recorded ones, too, unless they are `measured`. `policy` may be another than the server's; it is
    told the costs that the server's was told.
    """
    header = record.header
    by_application = requests_in_order(record)
    applications = []
    times_us: dict[tuple[WorkKey, str], float] = {}
    for recorded in header.applications:
        applications.append(replayed_application(recorded, by_application[recorded.name]))
        for kind in recorded.tasks:
            for processor, cost_us in kind.costs_us.items():
                times_us[(recorded.name, kind.name), processor] = cost_us
    recorded_us = None if measured is not None else durations_us(by_application)
    return SimulationSettings(
        tuple(applications),
        tuple(Processor(p.name, p.kind, p.queue_depth) for p in header.processors),
        times_us,
        policy or header.policy,
        queueing=header.queueing,
        seed=seed,
        durations="measured",
        correction=header.correction,
        measured=measured or MeasuredTimes({}, host=host_costs(record)),
        recorded_us=recorded_us,
        ends_at_deadline=True,
    )


def requests_in_order(record: ServiceRecord) -> dict[str, list[RecordedRequest]]:
    """Return the requests of each application in the order in which the scheduler heard of them.

    Those that were cancelled or failed before anything of them had run are left out.
    """
    by_application: dict[str, list[RecordedRequest]] = {}
    for application in record.header.applications:
        by_application[application.name] = []
    for request in sorted(record.requests, key=heard_us):
        if request.tasks or request.end not in GONE:
            by_application[request.application].append(request)
    return by_application


def heard_us(request: RecordedRequest) -> float:
    """Return when the scheduler heard of a request; when it came, where it was refused."""
    return request.arrived_us if request.admitted_us is None else request.admitted_us


def replayed_application(
    recorded: RecordedApplication, requests: Sequence[RecordedRequest]
) -> Application:
    """Return an application whose instances arrive as they did."""
    tasks = []
    for kind in recorded.tasks:
        tasks.append(Task(kind.name, kind.name, frozenset(kind.needs), kind.processor))
    return Application(
        recorded.name,
        own_tasks(recorded.name, tuple(tasks)),
        ListedArrivals(tuple(heard_us(request) for request in requests)),
        priority=recorded.priority,
        queue_limit=recorded.queue_limit,
        delays_us=tuple(heard_us(request) - request.arrived_us for request in requests),
        deadlines_us=tuple(map(due_us, requests)),
        priorities=tuple(request.priority for request in requests),
    )


def due_us(request: RecordedRequest) -> float:
    """Return how long after its arrival a request was due, us."""
    return inf if request.deadline_us is None else request.deadline_us - request.arrived_us


def durations_us(
    by_application: Mapping[str, Sequence[RecordedRequest]],
) -> dict[str, list[dict[str, float]]]:
    """Return what the tasks of each instance took, by application and task."""
    durations: dict[str, list[dict[str, float]]] = {}
    for name, requests in by_application.items():
        durations[name] = []
        for request in requests:
            durations[name].append({t.task: t.end_us - t.start_us for t in request.tasks})
    return durations


def placed_spans(record: ServiceRecord) -> list[PlacedSpan]:
    """Return the tasks of all requests in the order in which they started."""
    needs: dict[tuple[str, str], tuple[str, ...]] = {}
    for application in record.header.applications:
        for kind in application.tasks:
            needs[application.name, kind.name] = kind.needs
    spans: list[PlacedSpan] = []
    for request in record.requests:
        ends_us = {task.task: task.end_us for task in request.tasks}
        for task in request.tasks:
            before_us = [ends_us[need] for need in needs[request.application, task.task]]
            ready_us = max(before_us, default=heard_us(request))
            spans.append(
                PlacedSpan(
                    *(request.application, task.task, task.processor),
                    *(ready_us, task.start_us, task.end_us),
                    *(request.request, needs[request.application, task.task]),
                )
            )
    return sorted(spans, key=lambda span: span.start_us)


def host_costs(record: ServiceRecord) -> HostCosts:
    """Return what the server's host took beside its tasks: medians over the record.

    A decision cannot be told from a hand-over: both lie between what lets a task start and its
    start on an idle processor. Of few such gaps the least counts: a pause of the host may be in
    half of them.
    """
    free_us: dict[str, float] = {}
    gaps_us: list[float] = []
    for span in placed_spans(record):
        if free_us.get(span.processor, 0.0) < span.ready_us:
            gaps_us.append(max(0.0, span.start_us - span.ready_us))
        free_us[span.processor] = max(span.end_us, free_us.get(span.processor, 0.0))
    answers_us: list[float] = []
    for request in record.requests:
        if request.end == ANSWERED and request.tasks:
            answers_us.append(request.ended_us - max(task.end_us for task in request.tasks))
    return HostCosts(
        handover_us=median(gaps_us) if len(gaps_us) >= FEW_GAPS else min(gaps_us, default=0.0),
        answer_us=max(0.0, median(answers_us)) if answers_us else 0.0,
    )


def recorded_latencies(requests: Iterable[RecordedRequest]) -> Latencies:
    """Return the latencies of those requests that were answered."""
    latencies = Latencies()
    for request in requests:
        if request.end == ANSWERED:
            latencies.add(request.ended_us - request.arrived_us)
    return latencies


def recorded_utilisation(record: ServiceRecord) -> dict[str, float]:
    """Return the share of the time from the first start to the last end that processors worked."""
    busy_us = {processor.name: 0.0 for processor in record.header.processors}
    spans = placed_spans(record)
    for span in spans:
        busy_us[span.processor] += span.end_us - span.start_us
    if not spans:
        return busy_us
    makespan_us = max(span.end_us for span in spans) - spans[0].start_us
    return {name: us / makespan_us if makespan_us else 0.0 for name, us in busy_us.items()}
