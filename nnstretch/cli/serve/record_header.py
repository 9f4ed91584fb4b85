"""What a record says of a server before its first request."""

from __future__ import annotations

from math import inf

from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordHeader,
)
from nnstretch.schedule.simulation.application import Application
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.serve.network_server import DEFAULT_LIMIT


def record_header(settings: SimulationSettings, workload: str, version: str) -> RecordHeader:
    """Return the header of a record."""
    processors = [RecordedProcessor(p.name, p.kind, p.queue_depth) for p in settings.processors]
    applications = [recorded_application(app, settings) for app in settings.applications]
    return RecordHeader(
        version,
        workload,
        settings.policy,
        settings.queueing,
        settings.correction,
        settings.seed,
        tuple(processors),
        tuple(applications),
    )


def recorded_application(
    application: Application, settings: SimulationSettings
) -> RecordedApplication:
    """Return an application as records have it; its tasks are called as their sub-graphs."""
    subgraphs = {task.name: task.subgraph for task in application.tasks}
    tasks: list[RecordedKind] = []
    for task in application.tasks:
        costs_us: dict[str, float] = {}
        for processor in settings.processors:
            if (task.work, processor.name) in settings.times_us:
                costs_us[processor.name] = settings.times_us[task.work, processor.name]
        needs = tuple(sorted(subgraphs[need] for need in task.needs))
        tasks.append(RecordedKind(task.subgraph, needs, task.processor, costs_us))
    deadline_us = application.deadline_us
    return RecordedApplication(
        application.name,
        application.priority,
        deadline_us if deadline_us < inf else None,
        application.queue_limit or DEFAULT_LIMIT,
        tuple(tasks),
    )
