"""How long tasks really take in a simulation: as predicted, drawn, as measured, or as recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from typing import Protocol

from nnstretch.schedule.executors.contended import HostCosts
from nnstretch.task import Task, TaskTimes, WorkKey

MOST_RANK = 1.0 - 1e-12


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many times as long tasks take after others that they do not need, among many instances.

    The more instances are under way, the more of what a task needs has left the caches.
    """

    few: int = 0
    """Instances under way where `MeasuredTimes.switched` was measured."""
    many: int = 0
    """Likewise for `factors`; nothing changes with the crowd where these are no more."""
    factors: Mapping[tuple[WorkKey, str], float] = field(default_factory=dict)
    """By work and processor; once where absent."""

    def share(self, under_way: int) -> float:
        """Return from 0, few instances or fewer, to 1, many or more."""
        if self.many <= self.few:
            return 0.0
        return min(1.0, max(0.0, (under_way - self.few) / (self.many - self.few)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as in the mean a host takes for tasks, over time, again and again."""

    factors: Sequence[float] = ()
    """In windows in a row; once where there are none."""
    window_us: float = 50_000.0

    def from_seed(self, seed: int) -> Callable[[float], float]:
        """Return the factor by time, us, beginning with a window that the seed draws.

        Seed 0 begins with the first, as what was recorded did.
        """
        factors, window_us = self.factors, self.window_us
        if not factors:
            return lambda _now_us: 1.0
        first = Random(f"{seed}/pace").randrange(len(factors)) if seed else 0
        return lambda now_us: factors[(first + int(now_us / window_us)) % len(factors)]


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """What tasks take on a host, by work and processor."""

    samples_us: Mapping[tuple[WorkKey, str], Sequence[float]]
    """While all other processors rest, from the shortest to the longest."""
    beside: Mapping[tuple[WorkKey, str], float] = field(default_factory=dict)
    """How many times as long while all of them work; once where absent."""
    switched: Mapping[tuple[WorkKey, str], float] = field(default_factory=dict)
    """How many times as long right after a task that it does not need; once where absent."""
    crowd: Crowd = field(default_factory=Crowd)
    pace: Pace = field(default_factory=Pace)
    host: HostCosts = field(default_factory=HostCosts)

    def beside_factor(self, task: Task, processor: str) -> float:
        """Return how many times as long a task takes while all other processors work."""
        return self.beside.get((task.work, processor), 1.0)

    def switched_factor(self, task: Task, processor: str, under_way: int = 0) -> float:
        """Return how many times as long a task takes right after one that it does not need.

        Between few instances under way and many, it grows in proportion.
        """
        key, share = (task.work, processor), self.crowd.share(under_way)
        factor = self.switched.get(key, 1.0)
        if not share:
            return factor
        return factor + share * (self.crowd.factors.get(key, 1.0) - factor)


class DurationSource(Protocol):
    """Says how long the tasks of an instance take."""

    def begin(self, application: str, number: int, tasks: Sequence[Task]) -> None:
        """Hear of the tasks of instance `number` of an application, counted from 0."""

    def duration_us(self, task: Task, processor: str) -> float | None:
        """Return how long a task takes on a processor, us; None where nobody knows.

        A task that was lost with its processor is asked about again.
        """

    def forget(self, tasks: Sequence[Task]) -> None:
        """Forget the tasks of an instance that has ended or was given up."""


class DrawnDurations:
    """Random factors on expected times: exponential, or log-normal with a spread."""

    def __init__(self, times_us: TaskTimes, seed: int, kind: str, spread: float) -> None:
        self._times_us = times_us
        self._seed = seed
        self._kind = kind
        variance = log(1 + spread**2)
        self._mean, self._deviation = -variance / 2, variance**0.5
        self._randoms: dict[str, Random] = {}
        self._factors: dict[str, float] = {}
        """True over expected time of open tasks."""

    def begin(self, application: str, _number: int, tasks: Sequence[Task]) -> None:
        """Draw a factor of mean 1 for each task."""
        random = random_of(self._randoms, self._seed, application)
        for task in tasks:
            if self._kind == "exponential":
                self._factors[task.name] = random.expovariate(1.0)
            else:
                self._factors[task.name] = random.lognormvariate(self._mean, self._deviation)

    def duration_us(self, task: Task, processor: str) -> float | None:
        """Return the expected time, times the task's factor."""
        time_us = self._times_us.get((task.work, processor))
        return None if time_us is None else time_us * self._factors[task.name]

    def forget(self, tasks: Sequence[Task]) -> None:
        """Forget the factors of tasks that nobody waits for any more."""
        for task in tasks:
            self._factors.pop(task.name, None)


class SampledDurations:
    """Measured times: a task is as lucky among its samples wherever it is sent."""

    def __init__(self, measured: MeasuredTimes, seed: int) -> None:
        self._samples_us = measured.samples_us
        self._seed = seed
        self._randoms: dict[str, Random] = {}
        self._ranks: dict[str, float] = {}

    def begin(self, application: str, _number: int, tasks: Sequence[Task]) -> None:
        """Draw a rank from 0 to 1 for each task."""
        random = random_of(self._randoms, self._seed, application)
        for task in tasks:
            self._ranks[task.name] = random.random()

    def duration_us(self, task: Task, processor: str) -> float | None:
        """Return the sample of a task's rank."""
        samples_us = self._samples_us.get((task.work, processor))
        if samples_us is None:
            return None
        rank = min(self._ranks[task.name], MOST_RANK)
        return samples_us[int(rank * len(samples_us))]

    def forget(self, tasks: Sequence[Task]) -> None:
        """Forget the ranks of tasks that nobody waits for any more."""
        for task in tasks:
            self._ranks.pop(task.name, None)


class RecordedDurations:
    """What each task took when it was served; one that was not served then takes a drawn one."""

    def __init__(self, recorded_us: Mapping[str, Sequence[Mapping[str, float]]], seed: int) -> None:
        """Keep recorded times, us: by application, a table by sub-graph for each instance."""
        self._recorded_us = recorded_us
        self._random = Random(f"{seed}/replay")
        self._pools: dict[tuple[str, str], list[float]] = {}
        for application, instances in recorded_us.items():
            for times_us in instances:
                for subgraph, time_us in times_us.items():
                    self._pools.setdefault((application, subgraph), []).append(time_us)
        self._durations_us: dict[str, float | None] = {}

    def begin(self, application: str, number: int, tasks: Sequence[Task]) -> None:
        """Look up what the tasks of an instance took."""
        times_us = self._recorded_us[application][number]
        for task in tasks:
            time_us = times_us.get(task.subgraph)
            pool = self._pools.get((application, task.subgraph))
            if time_us is None and pool:
                time_us = self._random.choice(pool)
            self._durations_us[task.name] = time_us

    def duration_us(self, task: Task, _processor: str) -> float | None:
        """Return what a task took, wherever that was."""
        return self._durations_us[task.name]

    def forget(self, tasks: Sequence[Task]) -> None:
        """Forget what tasks took that nobody waits for any more."""
        for task in tasks:
            self._durations_us.pop(task.name, None)


def random_of(randoms: dict[str, Random], seed: int, application: str) -> Random:
    """Return the random numbers of an application, the same whatever the others do."""
    if application not in randoms:
        randoms[application] = Random(f"{seed}/{application}/durations")
    return randoms[application]
