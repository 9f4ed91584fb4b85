"""Where what is left of a request runs while processors are slower than predicted.

A task may move before it is handed out, never afterwards, so each runs once. It moves where its own
processor is believed to be clearly slow and the request is expected to end clearly sooner. The
rules know neither a clock nor threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from nnstretch.errors import BadInput
from nnstretch.task import Task, TaskTimes


@dataclass(frozen=True, slots=True)
class RebalancingSettings:
    """How quickly to believe that a processor is slow, and when to leave it."""

    slow: float = 1.25
    """It must be more than this times as slow as predicted, and as the processor that is slowed
    down least: noise below moves nothing.
    """
    gain: float = 0.05
    """What is left of the request must be expected to end so much sooner."""
    evidence: float = 0.05
    """A task so long counts as much as all that was believed before it.

    As a share of a request's latency.
    """
    half_life: float = 16.0
    """Of a belief about a processor that nobody uses, in latencies of a request.

    Else one that was left would never be tried again.
    """

    def __post_init__(self) -> None:
        if not (self.slow >= 1 and 0 <= self.gain < 1 and self.evidence > 0 and self.half_life > 0):
            raise BadInput(
                f"{self}, moves, needed are slow of at least 1, 0 <= gain < 1, evidence and"
                " half_life above 0"
            )


@dataclass(slots=True)
class SlowdownEstimator:
    """What tasks take over what they are predicted to take, by processor.

    The newest counts most, and a long one more than a short one.
    """

    evidence_us: float
    half_life_us: float
    _known: dict[str, tuple[float, float]] = field(default_factory=dict)
    """A factor, and when it was heard."""

    def observe(self, processor: str, predicted_us: float, took_us: float, now_us: float) -> None:
        """Learn from a task that has ended; one that was to take no time says nothing."""
        if predicted_us > 0:
            known, share = (
                self.factor(processor, now_us),
                predicted_us / (predicted_us + self.evidence_us),
            )
            self._known[processor] = (known + share * (took_us / predicted_us - known), now_us)

    def factor(self, processor: str, now_us: float) -> float:
        """Return the slowdown, 1 where nobody heard of it, and nearly so long after."""
        factor, heard_us = self._known.get(processor, (1.0, now_us))
        return float(1 + (factor - 1) * 0.5 ** ((now_us - heard_us) / self.half_life_us))


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """What a task costs where."""

    quiet_us: TaskTimes
    """On a quiet chip; a pair that is absent cannot be expected of anything."""
    handovers_us: TaskTimes = field(default_factory=dict)
    """What the host needs to hand it over, before it starts."""

    def us(self, task: Task, processor: str, slow: float) -> float:
        """Return the time of a task on a processor, us, infinite where nobody predicted it."""
        quiet_us = self.quiet_us.get((task.work, processor), inf)
        return self.handovers_us.get((task.work, processor), 0.0) + (quiet_us and quiet_us * slow)


@dataclass(frozen=True, slots=True)
class RemainingTasks:
    """What is left of one request."""

    tasks: tuple[Task, ...]
    """Not handed out, each where it would run; those that can start, and those behind them."""
    ready: tuple[str, ...]
    """Those of them that can start."""
    flying: tuple[str, ...] = ()
    """Its tasks that processors have."""
    stays: bool = False
    """Nothing of it is to move."""


@dataclass(frozen=True, slots=True)
class ProcessorForecast:
    """What is believed of the processors now."""

    now_us: float
    slow: Mapping[str, float]
    """By processor that is there."""
    free_us: Mapping[str, float]
    """When each has done what it was handed; absent where that is nothing."""
    ends_us: Mapping[str, float] = field(default_factory=dict)
    """When what they were handed ends, by task."""

    def end_us(
        self, remaining: RemainingTasks, moved: Mapping[str, str], costs: TaskCosts
    ) -> float:
        """Return when the request would end, us.

        Every processor takes tasks in the order in which they become ready.
        """
        inside, order = (
            {task.name: task for task in remaining.tasks},
            {task.name: n for n, task in enumerate(remaining.tasks)},
        )
        unmet = {name: sum(need in inside for need in task.needs) for name, task in inside.items()}
        readers: dict[str, list[str]] = {}
        for name, task in inside.items():
            for need in task.needs:
                readers.setdefault(need, []).append(name)
        ends_us, free_us = (
            {name: self.ends_us[name] for name in remaining.flying if name in self.ends_us},
            dict(self.free_us),
        )

        def entry(name: str) -> tuple[float, int, str]:
            return (
                max(
                    (ends_us.get(need, self.now_us) for need in inside[name].needs),
                    default=self.now_us,
                ),
                order[name],
                name,
            )

        ready = [entry(name) for name, count in unmet.items() if not count]
        heapq.heapify(ready)
        while ready:
            at_us, _, name = heapq.heappop(ready)
            processor = moved.get(name) or inside[name].processor or ""
            start_us = max(at_us, free_us.get(processor, self.now_us))
            ends_us[name] = free_us[processor] = start_us + costs.us(
                inside[name], processor, self.slow.get(processor, inf)
            )
            for reader in readers.get(name, ()):
                unmet[reader] -= 1
                if not unmet[reader]:
                    heapq.heappush(ready, entry(reader))
        return max(ends_us.values(), default=self.now_us)

    def with_queued(
        self, remaining: RemainingTasks, moved: Mapping[str, str], costs: TaskCosts
    ) -> ProcessorForecast:
        """Return the forecast with the ready tasks of a request dispatched, too."""
        free_us = dict(self.free_us)
        for task in (task for task in remaining.tasks if task.name in remaining.ready):
            processor = moved.get(task.name) or task.processor or ""
            free_us[processor] = free_us.get(processor, self.now_us) + costs.us(
                task, processor, self.slow.get(processor, inf)
            )
        return replace(self, free_us=free_us)


def choose_moves(
    remaining: RemainingTasks,
    forecast: ProcessorForecast,
    costs: TaskCosts,
    rebalancing_settings: RebalancingSettings,
) -> dict[str, str]:
    """Choose which of the ready tasks of a request go elsewhere, and where.

    One after another, each where the request then ends first.
    """
    chosen: dict[str, str] = {}
    tasks, slow = {task.name: task for task in remaining.tasks}, forecast.slow
    most = rebalancing_settings.slow * max(1.0, min(slow.values(), default=1.0))
    late = [
        name
        for name in remaining.ready
        if not remaining.stays and slow.get(tasks[name].processor or "", 1.0) > most
    ]
    end_us = forecast.end_us(remaining, chosen, costs) if late else inf
    for name in late:
        others = [
            p
            for p in slow
            if p != tasks[name].processor and (tasks[name].work, p) in costs.quiet_us
        ]
        ends = [(forecast.end_us(remaining, {**chosen, name: p}, costs), p) for p in others]
        best_us, best = min(ends, default=(inf, ""))
        if best_us - forecast.now_us < (end_us - forecast.now_us) * (1 - rebalancing_settings.gain):
            chosen[name], end_us = best, best_us
    return chosen


@dataclass(slots=True)
class InFlightTask:
    """A task that its processor has, and what it takes there on a quiet chip."""

    handed_us: float
    quiet_us: float


@dataclass(slots=True)
class Rebalancer:
    """Keeps what is believed and who has what.

    `Service` tells it, and asks where ready tasks go.
    """

    costs: TaskCosts
    slowdowns: SlowdownEstimator
    rebalancing_settings: RebalancingSettings = RebalancingSettings()
    _flights: dict[str, dict[str, InFlightTask]] = field(default_factory=dict)
    """By processor and task, in the order in which they were handed out."""
    _last_us: dict[str, float] = field(default_factory=dict)
    """When each processor's last task ended."""

    def on_dispatch(self, task: Task, processor: str, now_us: float) -> None:
        """Note that a task was handed to a processor."""
        self._flights.setdefault(processor, {})[task.name] = InFlightTask(
            now_us, self.costs.quiet_us.get((task.work, processor), 0.0)
        )

    def on_end(self, task: str, processor: str, took_us: float | None, now_us: float) -> None:
        """Note that a task has ended, or failed: then nobody knows what it took."""
        flight = self._flights.get(processor, {}).pop(task, None)
        self._last_us[processor] = now_us
        if flight is not None and took_us is not None:
            self.slowdowns.observe(processor, flight.quiet_us, took_us, now_us)

    def forecast(self, processors: Iterable[str], now_us: float) -> ProcessorForecast:
        """Return the forecast of the processors that are there.

        One whose task is late is at least as slow as that task already shows.
        """
        slow = {
            p: max(self.slowdowns.factor(p, now_us), self._is_late(p, now_us)) for p in processors
        }
        ends = {p: self._ends_us(p, slow[p], now_us) for p in slow}
        free_us = {p: max(times.values()) for p, times in ends.items() if times}
        return ProcessorForecast(
            now_us,
            slow,
            free_us,
            {task: end_us for times in ends.values() for task, end_us in times.items()},
        )

    def _ends_us(self, processor: str, slow: float, now_us: float) -> dict[str, float]:
        """Return when what a processor has is expected to end, by task."""
        ends, at_us = {}, self._last_us.get(processor, 0.0)
        for name, flight in self._flights.get(processor, {}).items():
            ends[name] = at_us = max(now_us, max(at_us, flight.handed_us) + slow * flight.quiet_us)
        return ends

    def moves(self, rests: Sequence[RemainingTasks], forecast: ProcessorForecast) -> dict[str, str]:
        """Return the moves of several requests, the oldest first.

        Who comes later finds processors as those before leave them.
        """
        moves_: dict[str, str] = {}
        for remaining in rests:
            request_moves = choose_moves(remaining, forecast, self.costs, self.rebalancing_settings)
            forecast = forecast.with_queued(remaining, request_moves, self.costs)
            moves_ |= request_moves
        return moves_

    def any_slow(self, forecast: ProcessorForecast) -> bool:
        """Return whether anything can move at all."""
        return any(factor > self.rebalancing_settings.slow for factor in forecast.slow.values())

    def _is_late(self, processor: str, now_us: float) -> float:
        first = next(iter(self._flights.get(processor, {}).values()), None)
        if first is None or not first.quiet_us:
            return 0.0
        return (now_us - max(first.handed_us, self._last_us.get(processor, 0.0))) / first.quiet_us
