"""Rebalancing: ready tasks of a request leave processors that are slower than predicted.

A task may move before it is dispatched, never afterwards, so each runs once. It moves where its own
processor is clearly slow and the request is expected to end clearly sooner. The rules know neither
a clock nor threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from nnstretch.schedule.finish_times import TaskCosts, finish_times
from nnstretch.schedule.slowdown import AdaptationSettings, SlowdownEstimator
from nnstretch.task import Task


@dataclass(frozen=True, slots=True)
class RemainingTasks:
    """The tasks of one request that have not ended."""

    tasks: tuple[Task, ...]
    """Not dispatched, each where it would run: those that are ready, and those behind them."""
    ready: tuple[str, ...]
    in_flight: tuple[str, ...] = ()
    """Dispatched."""
    stays: bool = False
    """Nothing of it is to move."""


@dataclass(frozen=True, slots=True)
class ProcessorForecast:
    """Expected speed and time of availability of the processors that are alive."""

    now_us: float
    slow: Mapping[str, float]
    """Slowdown by processor."""
    free_us: Mapping[str, float]
    """When each has done what was dispatched to it; absent where that is nothing."""
    ends_us: Mapping[str, float] = field(default_factory=dict)
    """When dispatched tasks end, by task."""

    def end_us(
        self, remaining: RemainingTasks, moved: Mapping[str, str], costs: TaskCosts
    ) -> float:
        """Return when the request would end, us."""
        tasks = place(remaining.tasks, moved)
        cost_us = {task.name: self._cost_us(task, costs) for task in tasks}
        in_flight = {
            name: self.ends_us[name] for name in remaining.in_flight if name in self.ends_us
        }
        ends_us = finish_times(tasks, cost_us, self.free_us, self.now_us, in_flight)
        return max([*in_flight.values(), *ends_us.values()], default=self.now_us)

    def with_queued(
        self, remaining: RemainingTasks, moved: Mapping[str, str], costs: TaskCosts
    ) -> ProcessorForecast:
        """Return the forecast with the ready tasks of a request dispatched, too."""
        free_us = dict(self.free_us)
        for task in place(remaining.tasks, moved):
            if task.name in remaining.ready:
                processor = task.processor or ""
                queued_us = free_us.get(processor, self.now_us)
                free_us[processor] = queued_us + self._cost_us(task, costs)
        return replace(self, free_us=free_us)

    def _cost_us(self, task: Task, costs: TaskCosts) -> float:
        return costs.us(task, self.slow.get(task.processor or "", inf))


def place(tasks: Iterable[Task], moved: Mapping[str, str]) -> list[Task]:
    """Return tasks with the moved ones, by name, on their new processors."""
    return [
        replace(task, processor=moved[task.name]) if task.name in moved else task for task in tasks
    ]


def choose_moves(
    remaining: RemainingTasks,
    forecast: ProcessorForecast,
    costs: TaskCosts,
    settings: AdaptationSettings,
) -> dict[str, str]:
    """Return which ready tasks of a request move, and where: each where the request ends first."""
    moved: dict[str, str] = {}
    tasks = {task.name: task for task in remaining.tasks}
    limit = settings.slow * max(1.0, min(forecast.slow.values(), default=1.0))
    late: list[str] = []
    for name in () if remaining.stays else remaining.ready:
        if forecast.slow.get(tasks[name].processor or "", 1.0) > limit:
            late.append(name)
    end_us = forecast.end_us(remaining, moved, costs) if late else inf
    for name in late:
        best_us, best = inf, ""
        for processor in forecast.slow:
            elsewhere = processor != tasks[name].processor
            if elsewhere and (tasks[name].work, processor) in costs.quiet_us:
                candidate_us = forecast.end_us(remaining, {**moved, name: processor}, costs)
                best_us, best = min((best_us, best), (candidate_us, processor))
        if best_us - forecast.now_us < (end_us - forecast.now_us) * (1 - settings.gain):
            moved[name] = best
            end_us = best_us
    return moved


@dataclass(slots=True)
class InFlightTask:
    """When a task was dispatched, and its time on an undisturbed chip."""

    dispatched_us: float
    quiet_us: float


@dataclass(slots=True)
class Rebalancer:
    """Observes what tasks take, and says which ready tasks move."""

    costs: TaskCosts
    slowdowns: SlowdownEstimator
    settings: AdaptationSettings = AdaptationSettings()  # noqa: RUF009 (frozen)
    _in_flight: dict[str, dict[str, InFlightTask]] = field(default_factory=dict)
    """By processor and task, in the order in which they were dispatched."""
    _last_us: dict[str, float] = field(default_factory=dict)
    """When each processor's last task ended."""

    def on_dispatch(self, task: Task, processor: str, now_us: float) -> None:
        """Note that a task was dispatched to a processor."""
        quiet_us = self.costs.quiet_us.get((task.work, processor), 0.0)
        self._in_flight.setdefault(processor, {})[task.name] = InFlightTask(now_us, quiet_us)

    def on_end(self, task: str, processor: str, took_us: float | None, now_us: float) -> None:
        """Note that a task has ended; `took_us` is None for one that failed."""
        dispatched = self._in_flight.get(processor, {}).pop(task, None)
        self._last_us[processor] = now_us
        if dispatched is not None and took_us is not None:
            self.slowdowns.observe(processor, dispatched.quiet_us, took_us, now_us)

    def forecast(self, processors: Iterable[str], now_us: float) -> ProcessorForecast:
        """Return the forecast of these processors.

        A processor with a late task is at least as slow as that task is late.
        """
        slow: dict[str, float] = {}
        free_us: dict[str, float] = {}
        ends_us: dict[str, float] = {}
        for processor in processors:
            observed = self.slowdowns.factor(processor, now_us)
            slow[processor] = max(observed, self._lateness(processor, now_us))
            if own_ends_us := self._ends_us(processor, slow[processor], now_us):
                free_us[processor] = max(own_ends_us.values())
                ends_us |= own_ends_us
        return ProcessorForecast(now_us, slow, free_us, ends_us)

    def _ends_us(self, processor: str, slow: float, now_us: float) -> dict[str, float]:
        """Return when what a processor has is expected to end, by task."""
        ends_us: dict[str, float] = {}
        at_us = self._last_us.get(processor, 0.0)
        for name, task in self._in_flight.get(processor, {}).items():
            at_us = max(now_us, max(at_us, task.dispatched_us) + slow * task.quiet_us)
            ends_us[name] = at_us
        return ends_us

    def moves(
        self, requests: Sequence[RemainingTasks], forecast: ProcessorForecast
    ) -> dict[str, str]:
        """Return the moves of several requests, the oldest first.

        Each finds processors as those before it leave them.
        """
        moved: dict[str, str] = {}
        for remaining in requests:
            request_moves = choose_moves(remaining, forecast, self.costs, self.settings)
            forecast = forecast.with_queued(remaining, request_moves, self.costs)
            moved |= request_moves
        return moved

    def any_slow(self, forecast: ProcessorForecast) -> bool:
        """Return whether anything can move at all."""
        slow = any(factor > self.settings.slow for factor in forecast.slow.values())
        return slow and self.settings.moves

    def _lateness(self, processor: str, now_us: float) -> float:
        """Return how slow the task that a processor works on already shows it to be."""
        first = next(iter(self._in_flight.get(processor, {}).values()), None)
        if first is None or not first.quiet_us:
            return 0.0
        began_us = max(first.dispatched_us, self._last_us.get(processor, 0.0))
        return (now_us - began_us) / first.quiet_us
