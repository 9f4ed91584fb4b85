"""An application while it is served, and its requests between their begin and their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nnstretch.errors import Cancelled, DeadlineMissed
from nnstretch.files.workload.service_record import RecordedTask
from nnstretch.run.requests.open_requests import OpenRequest, OpenRequests
from nnstretch.schedule.simulation.application import Application
from nnstretch.serve.served_network import ServedNetwork
from nnstretch.serve.statistics import ApplicationStatistics
from nnstretch.task import Task


@dataclass(slots=True, eq=False)
class ServedApplication:
    """An application while it is served."""

    application: Application
    network: ServedNetwork
    open: OpenRequests
    tasks_of: Callable[..., Sequence[Task]]
    limit: int
    """Open requests; one more is refused."""
    statistics: ApplicationStatistics = field(default_factory=ApplicationStatistics)


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """A request of which the scheduler has heard and that has not ended."""

    served: ServedApplication
    entry: OpenRequest
    admitted_us: float
    tasks: list[RecordedTask] = field(default_factory=list)


def end_of(entry: OpenRequest, error: Exception | None, now_us: float) -> str:
    """Return how a request ended, as records say it."""
    if entry.reply.cancelled() or isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, DeadlineMissed):
        return "dropped" if now_us < entry.deadline_us else "missed"
    return "answered" if entry.reply.exception() is None else "failed"
