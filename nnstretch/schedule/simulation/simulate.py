"""Applications that arrive, under a policy, on the virtual clock: the server's own scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from nnstretch._interpreter import PausedCollector
from nnstretch.schedule.costs.cost_rows import is_late
from nnstretch.schedule.executors.virtual import duration_from
from nnstretch.schedule.loop.decision_times import DecisionTimes
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.request import Request
from nnstretch.schedule.request_scheduler import RequestScheduler
from nnstretch.schedule.simulation.alone import alone_latency_us
from nnstretch.schedule.simulation.application import Application
from nnstretch.schedule.simulation.latencies import Latencies
from nnstretch.schedule.simulation.length_over_time import LengthOverTime
from nnstretch.schedule.simulation.policy_setting import cost_rows, make_policy
from nnstretch.schedule.simulation.settings import SimulationSettings, clock_of, durations_of
from nnstretch.task import Task
from nnstretch.trace import Span

NO_TIME_US = 1e-6
"""What no clock could tell from no time at all."""


@dataclass(slots=True, eq=False)
class ApplicationRun:
    """An application while it runs, and what became of its instances."""

    application: Application
    times_us: Iterator[float]
    tasks_of: Callable[..., Sequence[Task]]
    alone_us: float
    """Latency of one instance that has the chip to itself."""
    limit: float = inf
    """So many may be open."""
    varies: bool = False
    """Whether its instances have deadlines or delays of their own."""
    arrived: int = 0
    refused: int = 0
    """Because too many were open."""
    dropped: int = 0
    """Given up by the policy, or at their deadline."""
    missed: int = 0
    """Ended after their deadline, or given up."""
    open: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    execution_us: float = 0.0
    """Sum over instances of the time from the first start to the last end."""
    cumulative_us: float = 0.0
    """Sum over instances of what their tasks took."""
    put_off_us: float = -inf
    """When one that is beyond the limit has waited for what ends at the same instant."""

    @property
    def slowdown(self) -> float | None:
        """Return the mean latency over that of an instance alone: 1 where one alone takes no time,
        or next to none.

        None where none has ended.
        """
        if not self.latencies.count:
            return None
        return self.latencies.mean_us / self.alone_us if self.alone_us > NO_TIME_US else 1.0


@dataclass(slots=True)
class SimulationResult:
    """What happened in one simulation."""

    runs: tuple[ApplicationRun, ...]
    busy_us: dict[str, float]
    decisions: DecisionTimes
    first_start_us: float = inf
    last_end_us: float = 0.0
    tasks: int = 0
    open_over_time: LengthOverTime = field(default_factory=LengthOverTime)

    @property
    def last_event_us(self) -> float:
        """Return when the last instance arrived or ended."""
        return self.open_over_time.until_us

    @property
    def makespan_us(self) -> float:
        """Return the time from the first start to the last end."""
        return max(0.0, self.last_end_us - self.first_start_us) if self.tasks else 0.0

    @property
    def mean_open(self) -> float:
        """Return the mean number of open instances over time."""
        area_us = self.open_over_time.area_us
        return area_us / self.last_event_us if self.last_event_us else 0.0


class Simulation:
    """One run of applications. `on_span`, `on_outcome` and `on_round` observe it."""

    def __init__(
        self,
        settings: SimulationSettings,
        on_span: Callable[[Span], None] | None = None,
        on_outcome: Callable[[ApplicationRun, int, Request, float], None] | None = None,
        on_round: Callable[[int, float, float], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_span = on_span
        self._on_outcome = on_outcome
        self._durations = durations_of(settings)
        """None where every task takes what it is expected to."""
        self._number = 0
        self._varying: dict[int, tuple[float, float]] = {}
        """Of open instances that vary: how long before they had been there, and their deadline."""
        costs = cost_rows(settings)
        tasks = chain.from_iterable(app.tasks for app in settings.applications)
        duration_us = duration_from(settings.times_us)
        if self._durations is not None:
            duration_us = self._durations.duration_us
        self._clock = clock_of(settings, duration_us, self._is_wanted, self._under_way)
        self.scheduler = RequestScheduler(
            settings.processors,
            make_policy(settings, costs, self._clock, self._is_open),
            self._clock,
            self._answered,
            settings.times_us,
            self._ended,
            costs=costs,
            queueing=Queueing.UNBOUNDED if settings.queueing else Queueing.IDLE,
            placed=any(task.processor for task in tasks),
        )
        self.scheduler.loop.on_round = on_round
        runs = tuple(application_run(app, settings) for app in settings.applications)
        busy_us = dict.fromkeys((processor.name for processor in settings.processors), 0.0)
        self.result = SimulationResult(runs, busy_us, self.scheduler.loop.times)
        self._open_over_time = self.result.open_over_time

    def run(self) -> SimulationResult:
        """Let everything arrive and end; return what happened."""
        with PausedCollector():
            for run in self.result.runs:
                self._next_arrival(run)
            step = self.scheduler.step
            while (tag := step()) is not None:
                if tag is not True and isinstance(tag, ApplicationRun):
                    self._hear_arrival(tag)
        return self.result

    def _next_arrival(self, run: ApplicationRun) -> None:
        at_us = next(run.times_us, None)
        if at_us is not None:
            self._clock.set_timer(at_us, run)

    def _hear_arrival(self, run: ApplicationRun) -> None:
        """Take an instance up; what ends at this instant makes room for it first."""
        now_us = self._clock.now_us
        if run.open >= run.limit and run.put_off_us != now_us:
            run.put_off_us = now_us
            self._clock.set_timer(now_us, run)
            return
        self._arrive(run)
        self._next_arrival(run)

    def _arrive(self, run: ApplicationRun) -> None:
        application, now_us, nth = run.application, self._clock.now_us, run.arrived
        run.arrived = nth + 1
        if run.open >= run.limit:
            run.refused += 1
            return
        number = self._number = self._number + 1
        deadline_us = now_us + application.deadline_us
        if run.varies:
            before_us = application.before_us(nth)
            deadline_us = now_us - before_us + application.due_us(nth)
            self._varying[number] = before_us, deadline_us
            tasks = run.tasks_of(number, deadline_us, application.priority_of(nth))
        else:
            tasks = run.tasks_of(number, deadline_us)
        if self._durations is not None:
            self._durations.begin(application.name, nth, tasks)
        self._open_over_time.add(now_us, 1)
        run.open += 1
        ends_us = deadline_us if self._settings.ends_at_deadline else inf
        self.scheduler.submit(Request(number, tasks, ends_us, False, run))

    def _is_wanted(self, task: Task) -> bool:
        return self.scheduler.is_open(task.request)

    def _under_way(self) -> int:
        return len(self.scheduler)

    def _is_open(self, request: int) -> bool:
        return self.scheduler.is_open(request)

    def _ended(self, span: Span) -> None:
        result, duration_us = self.result, span.end_us - span.start_us
        result.busy_us[span.processor] += duration_us
        result.tasks += 1
        result.last_end_us = span.end_us
        if span.start_us < result.first_start_us:
            result.first_start_us = span.start_us
        if self._on_span is not None:
            self._on_span(span)

    def _answered(self, request: Request) -> None:
        run: ApplicationRun = request.source
        ended_us, arrived_us = request.ended_us, request.arrived_us
        self._open_over_time.add(ended_us, -1)
        run.open -= 1
        if self._durations is not None:
            self._durations.forget(request.tasks)
        latency_us = ended_us - arrived_us
        deadline_us = arrived_us + run.application.deadline_us
        if run.varies:
            before_us, deadline_us = self._varying.pop(request.number)
            latency_us += before_us
        if request.error is not None:
            run.dropped += 1
            run.missed += 1
        else:
            run.latencies.add(latency_us)
            if is_late(ended_us, deadline_us):
                run.missed += 1
            run.execution_us += ended_us - request.first_us
            run.cumulative_us += request.worked_us
        if self._on_outcome is not None:
            self._on_outcome(run, request.number, request, request.first_us)


def application_run(application: Application, settings: SimulationSettings) -> ApplicationRun:
    """Return an application that is about to begin."""
    times_us = application.times_us(settings.seed)
    alone_us = alone_latency_us(application, settings)
    limit = inf if application.queue_limit is None else application.queue_limit
    return ApplicationRun(
        *(application, times_us, application.instantiate(), alone_us, limit, application.varies)
    )
