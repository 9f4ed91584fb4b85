"""Applications whose instances arrive over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from math import inf, log
from random import Random

from nnstretch.schedule.loop.instance_tasks import InstanceTasks, make_task, task_pattern
from nnstretch.task import Task, TaskTimes, WorkKey


@dataclass(frozen=True, slots=True)
class FixedArrivals:
    """One instance every period."""

    period_us: float
    first_us: float = 0.0

    def times_us(self, _random: Random) -> Iterator[float]:
        """Yield arrival times."""
        for number in count():
            yield self.first_us + number * self.period_us


@dataclass(frozen=True, slots=True)
class ExponentialArrivals:
    """Gaps of an exponential distribution: nobody knows when the next one comes."""

    mean_gap_us: float
    first_us: float | None = None
    """None for a gap like all others."""

    def times_us(self, random: Random) -> Iterator[float]:
        """Yield arrival times."""
        rate, uniform = 1 / self.mean_gap_us, random.random
        at_us = random.expovariate(rate) if self.first_us is None else self.first_us
        while True:
            yield at_us
            # What `expovariate` does, without its call.
            at_us += -log(1.0 - uniform()) / rate


@dataclass(frozen=True, slots=True)
class ListedArrivals:
    """Times that are given."""

    listed_us: tuple[float, ...]

    def times_us(self, _random: Random) -> Iterator[float]:
        """Yield arrival times."""
        yield from self.listed_us


@dataclass(frozen=True, slots=True)
class Application:
    """What arrives, again and again."""

    name: str
    tasks: tuple[Task, ...]
    """Of one instance; their `plan` is the application's name."""
    arrivals: FixedArrivals | ExponentialArrivals | ListedArrivals
    instances: int | None = None
    duration_us: float = inf
    deadline_us: float = inf
    """From each arrival."""
    priority: int = 0
    queue_limit: int | None = None
    delays_us: tuple[float, ...] = ()
    """How long recorded instances had been there when the scheduler heard of them."""
    deadlines_us: tuple[float, ...] = ()
    """From each arrival, where instances have deadlines of their own."""
    priorities: tuple[int, ...] = ()
    """Where instances have priorities of their own."""

    @property
    def varies(self) -> bool:
        """Return whether instances differ in deadline or priority, or arrive late."""
        return bool(self.delays_us or self.deadlines_us or self.priorities)

    def before_us(self, number: int) -> float:
        """Return how long instance `number` had been there when it arrives, us."""
        return self.delays_us[number] if self.delays_us else 0.0

    def due_us(self, number: int) -> float:
        """Return how long after its arrival the deadline of instance `number` is, us."""
        return self.deadlines_us[number] if self.deadlines_us else self.deadline_us

    def priority_of(self, number: int) -> int:
        """Return the priority of instance `number`."""
        return self.priorities[number] if self.priorities else self.priority

    def times_us(self, seed: int) -> Iterator[float]:
        """Yield the arrival times of its instances; equal seeds give equal times."""
        times_us = self.arrivals.times_us(Random(f"{seed}/{self.name}/arrivals"))
        if self.duration_us < inf:
            times_us = takewhile(lambda at_us: at_us <= self.duration_us, times_us)
        return islice(times_us, self.instances)

    def instantiate(self) -> Callable[..., Sequence[Task]]:
        """Return a function from the number and deadline of an instance to its tasks.

        A third argument is a priority other than the application's.
        """
        # Tasks of a ready queue share what they compute: only their names tell them apart.
        distinct = len({task.subgraph for task in self.tasks}) == len(self.tasks)
        kinds = [task.subgraph if distinct else task.name for task in self.tasks]
        prefixes = [f"{self.name}/{kind}#" for kind in kinds]
        pattern = task_pattern(self.name, self.tasks, prefixes)
        plan, priority, nothing = self.name, self.priority, frozenset[str]()

        def tasks_of(number: int, deadline_us: float, priority: int = priority) -> Sequence[Task]:
            return InstanceTasks(pattern, number, deadline_us, priority)

        def only_task(number: int, deadline_us: float, priority: int = priority) -> Sequence[Task]:
            name = f"{prefix}{number}"
            task = make_task(name, first, nothing, place, number, plan, priority, deadline_us)
            return (task,)

        if len(self.tasks) != 1:
            return tasks_of
        prefix, first, place = prefixes[0], pattern.subgraphs[0], pattern.processors[0]
        return only_task


def own_tasks(name: str, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return tasks under the name of their application, so that no two of several are alike."""
    return tuple(replace(task, plan=name) for task in tasks)


def own_times(name: str, times_us: TaskTimes) -> dict[tuple[WorkKey, str], float]:
    """Return times under the name of their application. Sub-graphs are without a plan."""
    return {((name, str(work)), processor): us for (work, processor), us in times_us.items()}


def own_transfers(
    name: str, transfers_us: Mapping[tuple[WorkKey, WorkKey], float]
) -> dict[tuple[WorkKey, WorkKey], float]:
    """Return times of copies under the name of their application."""
    times_us: dict[tuple[WorkKey, WorkKey], float] = {}
    for (writer, reader), time_us in transfers_us.items():
        times_us[(name, str(writer)), (name, str(reader))] = time_us
    return times_us
