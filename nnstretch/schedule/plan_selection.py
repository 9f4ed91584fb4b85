"""Plan selection: use the plan that is fastest at the present slowdown of each processor.

Processors that the plan in use leaves idle are probed now and then by a short task of another plan,
which costs no latency: it runs beside the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from nnstretch.errors import BadInput
from nnstretch.schedule.finish_times import TaskCosts, finish_times
from nnstretch.schedule.policies.failover import fastest_processor
from nnstretch.schedule.slowdown import FAILED, AdaptationSettings, SlowdownEstimator
from nnstretch.task import Task


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """One plan of a network, as tasks of one request."""

    name: str
    tasks: tuple[Task, ...]
    costs: TaskCosts

    def latency_us(self, slowdown: Mapping[str, float]) -> float:
        """Predict the latency, us, with work of failed processors where it would go.

        Infinite where it can go nowhere.
        """
        tasks = [self._place(task, slowdown) for task in self.tasks]
        cost_us = {
            task.name: self.costs.us(task, slowdown.get(task.processor or "", 1.0))
            for task in tasks
        }
        return max(finish_times(tasks, cost_us).values(), default=0.0)

    def _place(self, task: Task, slowdown: Mapping[str, float]) -> Task:
        if slowdown.get(task.processor or "") != FAILED:
            return task
        quiet_us = self.costs.quiet_us
        alive = [name for _, name in quiet_us if slowdown.get(name) != FAILED]
        return replace(task, processor=fastest_processor(task, alive, quiet_us) or task.processor)

    @property
    def processors(self) -> frozenset[str]:
        """Return the processors of the plan."""
        return frozenset(task.processor or "" for task in self.tasks)


@dataclass(slots=True)
class PlanSelector:
    """Chooses a variant before every request, at the slowdowns that `slowdowns` observed."""

    variants: Sequence[PlanVariant]
    slowdowns: SlowdownEstimator
    settings: AdaptationSettings = AdaptationSettings()  # noqa: RUF009 (frozen)
    _failed: frozenset[str] = frozenset()
    _current: PlanVariant = field(init=False)
    _better: tuple[PlanVariant, int] = field(init=False)
    """A variant, and for how many requests in a row it has been better."""
    _requests: int = 0

    def __post_init__(self) -> None:
        if not self.variants:
            raise BadInput("no plans, adaptive, needed is at least one")
        self._current = min(self.variants, key=lambda variant: variant.latency_us({}))
        self._better = self._current, 0

    @property
    def current(self) -> PlanVariant:
        """Return the variant in use."""
        return self._current

    def choose(self, now_us: float, failed: Collection[str] = ()) -> PlanVariant:
        """Choose the variant for the next request while these processors have failed.

        Moves only to what has been better by `gain` for `patience` requests, or at once from a
        failed processor. A processor that is back is taken to be as fast as predicted.
        """
        self._requests += 1
        for processor in self._failed.difference(failed):
            self.slowdowns.forget(processor)
        self._failed = frozenset(failed)
        slowdown = self._slowdown(now_us)
        latency_us = {variant.name: variant.latency_us(slowdown) for variant in self.variants}
        best = min(self.variants, key=lambda variant: latency_us[variant.name])
        wanted_us = latency_us[self._current.name] * (1 - self.settings.gain)
        better = latency_us[best.name] < wanted_us
        before, count = self._better
        count = count + 1 if better and before is best else int(better)
        lost = not self._current.processors.isdisjoint(self._failed)
        if better and (lost or count >= self.settings.patience):
            self._current = best
            count = 0
        self._better = best, count
        return self._current

    def probes(self) -> tuple[Task, ...]:
        """Return short tasks for processors that the current variant leaves idle.

        None but every `probe_every` requests.
        """
        if self._requests % self.settings.probe_every:
            return ()
        processors = frozenset[str]().union(*(variant.processors for variant in self.variants))
        idle = sorted(processors - self._current.processors - self._failed)
        shortest = [self._shortest_task(processor) for processor in idle]
        return tuple(task for task in shortest if task is not None)

    def _slowdown(self, now_us: float) -> dict[str, float]:
        pairs = chain.from_iterable(variant.costs.quiet_us for variant in self.variants)
        processors = {name for _, name in pairs}
        factors = {name: self.slowdowns.factor(name, now_us) for name in processors}
        return factors | dict.fromkeys(self._failed, FAILED)

    def _shortest_task(self, processor: str) -> Task | None:
        quiet_us: dict[Task, float] = {}
        for variant in self.variants:
            for task in variant.tasks:
                if task.processor == processor:
                    quiet_us[task] = variant.costs.quiet_us[task.work, processor]
        timed = [task for task, us in quiet_us.items() if us > 0]
        return min(timed, key=lambda task: quiet_us[task], default=None)
