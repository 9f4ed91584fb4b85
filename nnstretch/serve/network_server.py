"""Requests over several networks on the processors of this host.

The scheduler, the policies and the beliefs about costs are those of `simulate`, on the real clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf

from nnstretch.errors import UnknownName, closest
from nnstretch.files.workload.service_record import RecordedRequest, RecordedTask
from nnstretch.run.loaded_network import Given
from nnstretch.run.requests.open_requests import (
    CancelMessage,
    CloseMessage,
    OpenRequest,
    OpenRequests,
    Reply,
    SubmitMessage,
)
from nnstretch.run.requests.scheduled_server import ScheduledServer, broken_off
from nnstretch.schedule import Disturbances, Request, RequestScheduler
from nnstretch.schedule.costs.cost_rows import is_late
from nnstretch.schedule.cpu_affinity import sleep_until
from nnstretch.schedule.executors.threads import ThreadExecutor
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.priority_classes import PriorityClasses
from nnstretch.schedule.policies.table import find_policy
from nnstretch.schedule.simulation.policy_setting import cost_rows, policy_setting
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.serve.served_application import AdmittedRequest, ServedApplication, end_of
from nnstretch.serve.served_network import ServedNetwork
from nnstretch.task import Task
from nnstretch.trace import Span

DEFAULT_LIMIT = 64
"""Open requests of an application that says no limit."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How the processors of a server differ from cores of this host."""

    emulated: bool = False
    """Whether every task lasts its predicted time."""
    dilation: float = 1.0
    """How many times slower than the emulated chip the clock goes."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By processor, how many times slower than a core it computes; 1 where absent."""
    disturbances: Disturbances = Disturbances()  # noqa: RUF009 (frozen)


class NetworkServer(ScheduledServer):
    """A thread and a bounded queue for each processor, and one thread that schedules.

    `submit` never waits: a request beyond its application's limit is refused. `on_end` is told of
    every request once, on the thread that ends it.
    """

    def __init__(
        self,
        settings: SimulationSettings,
        networks: Mapping[str, ServedNetwork],
        options: HostOptions = HostOptions(),
        on_end: Callable[[RecordedRequest], None] | None = None,
        on_round: Callable[[int, float, float], None] | None = None,
    ) -> None:
        """Begin to serve; `networks` by name of the application. `on_round` is told, on the
        scheduling thread, what `EventLoop.on_round` is. Raises UnknownName for a policy that is not
        there.
        """
        find_policy(settings.policy)
        self.settings, self._options, self._on_end = settings, options, on_end
        threads = ThreadExecutor(
            settings.processors,
            self._work,
            settings.times_us if options.emulated else None,
            options.dilation,
            disturbances=options.disturbances,
        )
        super().__init__(threads, "server")
        self.busy_us = dict.fromkeys((p.name for p in settings.processors), 0.0)
        self._admitted: dict[int, AdmittedRequest] = {}
        with self._beginning():
            self._scheduler = self._schedule()
            self._scheduler.loop.on_round = on_round
            self.applications = self._open_applications(networks)
            """By name."""

    def _schedule(self) -> RequestScheduler:
        settings, clock = self.settings, self._threads
        costs = cost_rows(settings)
        setting = policy_setting(settings, costs, clock, lambda n: self._scheduler.is_open(n))
        return RequestScheduler(
            settings.processors,
            PriorityClasses(lambda: find_policy(settings.policy).make(setting)),
            clock,
            self._on_outcome,
            settings.times_us,
            self._on_span,
            costs=costs,
            queueing=Queueing.UNBOUNDED if settings.queueing else Queueing.IDLE,
        )

    def _open_applications(
        self, networks: Mapping[str, ServedNetwork]
    ) -> dict[str, ServedApplication]:
        numbers = count()
        served: dict[str, ServedApplication] = {}
        for application in self.settings.applications:
            name, limit = application.name, application.queue_limit or DEFAULT_LIMIT
            requests = OpenRequests(self._side, limit, name, numbers)
            tasks_of = application.instantiate()
            served[name] = ServedApplication(application, networks[name], requests, tasks_of, limit)
        return served

    @property
    def now_us(self) -> float:
        """Return the time since the server began, us."""
        return self._threads.now_us

    @property
    def decisions_s(self) -> float:
        """Return how long the policy has taken to decide, s."""
        return self._scheduler.loop.times.total_s

    @property
    def decided_tasks(self) -> int:
        """Return how many tasks the policy has given to processors."""
        return self._scheduler.loop.times.tasks

    @property
    def open_count(self) -> int:
        """Return how many requests are open."""
        return sum(len(served.open.entries) for served in self.applications.values())

    def served(self, name: str) -> ServedApplication:
        """Return an application. Raises UnknownName, which names the closest, for any other."""
        served = self.applications.get(name)
        if served is None:
            names = list(self.applications)
            near = closest(name[:100], names) or f"; it has {', '.join(names)}"
            raise UnknownName(f"unknown model {name[:100]!r}, server, there is no such{near}")
        return served

    def submit(
        self,
        name: str,
        inputs: Given,
        timeout_us: float | None = None,
        priority: int | None = None,
    ) -> Reply | None:
        """Begin a request; return the arrays by name to come, None where too many are open.

        The arrays must stay as they are until it ends. `timeout_us` and `priority` are the
        application's where absent. Raises UnknownName, BadInput for inputs that the network does
        not take, Cancelled once the server is closed.
        """
        served = self.served(name)
        application = served.application
        values = served.network.inputs(inputs)
        now_us = self.now_us
        deadline_us = now_us + (application.deadline_us if timeout_us is None else timeout_us)
        priority = application.priority if priority is None else priority
        reply = served.open.add(values, deadline_us, priority, now_us)
        if reply is None:
            self._refuse(served, now_us, deadline_us, priority)
        return reply

    def _refuse(
        self, served: ServedApplication, now_us: float, deadline_us: float, priority: int
    ) -> None:
        number = served.open.take_number()
        times_us = (now_us, None, now_us)
        due_us = deadline_us if deadline_us < inf else None
        name = served.application.name
        self._tell(
            served, RecordedRequest(number, name, *times_us, "refused", due_us, priority, ())
        )

    def _tell(self, served: ServedApplication, request: RecordedRequest) -> None:
        served.statistics.add(request)
        if self._on_end is not None:
            self._on_end(request)

    def take_no_more(self) -> None:
        """Refuse requests from now on with Cancelled; those that are open are answered."""
        for served in self.applications.values():
            served.open.take_no_more()

    def _step(self) -> object:
        return self._scheduler.step()

    def _handle(self, message: object) -> None:
        if isinstance(message, SubmitMessage):
            self._begin(message.request, self.applications[message.name])
        elif isinstance(message, CancelMessage):
            self._scheduler.cancel(message.request)
        elif isinstance(message, CloseMessage) and not message.drain:
            for number in tuple(self._admitted):
                self._end(number, broken_off(number, "server, it has been closed"))
                self._scheduler.cancel(number)

    def _end_all(self, why: str) -> None:
        for served in self.applications.values():
            for number in tuple(served.open.entries):
                self._admit(number, served)
                self._end(number, broken_off(number, why))

    def _admit(self, number: int, served: ServedApplication) -> OpenRequest | None:
        """Hear of a request; return None where its client has ended it."""
        entry = served.open.heard_of(number)
        if entry is not None and number not in self._admitted:
            served.statistics.accepted += 1
            self._admitted[number] = AdmittedRequest(served, entry, self.now_us)
        return entry

    def _begin(self, number: int, served: ServedApplication) -> None:
        entry = self._admit(number, served)
        if entry is None:
            return
        tasks = served.tasks_of(number, entry.deadline_us, entry.priority)
        self._scheduler.submit(Request(number, tasks, entry.deadline_us))

    def _work(self, task: Task) -> None:
        """Compute a task on a processor's thread; for a request that is over, do nothing."""
        served = self.applications[task.plan]
        entry = served.open.entries.get(task.request)
        if entry is None or is_late(self._threads.now_us, entry.deadline_us):
            return
        processor = self._threads.current_processor()
        began_s = time.perf_counter()
        served.network.compute(processor, task.subgraph, entry.values)
        factor = self._options.factors.get(processor, 1.0)
        if factor > 1:
            took_s = time.perf_counter() - began_s
            sleep_until(began_s + factor * took_s)

    def _on_span(self, span: Span) -> None:
        self.busy_us[span.processor] += span.duration_us
        admitted = self._admitted.get(span.task.request)
        if admitted is not None and not is_late(span.start_us, admitted.entry.deadline_us):
            task = span.task.subgraph
            end_us = max(span.start_us, span.end_us)
            admitted.tasks.append(RecordedTask(task, span.processor, span.start_us, end_us))

    def _on_outcome(self, outcome: Request) -> None:
        self._end(outcome.number, outcome.error)

    def _end(self, number: int, error: Exception | None) -> None:
        """End an admitted request: exactly once, as who takes it out replies."""
        admitted = self._admitted.pop(number, None)
        if admitted is None:
            return
        served, entry = admitted.served, admitted.entry
        now_us = self.now_us
        entry.reply.latency_ms = (now_us - entry.arrived_us) / 1000
        served.open.end(number, lambda entry: served.network.outputs(entry.values), error)
        deadline_us = entry.deadline_us if entry.deadline_us < inf else None
        ended = RecordedRequest(
            *(number, served.application.name, entry.arrived_us, admitted.admitted_us, now_us),
            *(end_of(entry, error, now_us), deadline_us, entry.priority),
            tuple(admitted.tasks),
        )
        self._tell(served, ended)
