"""Failover: the work of a lost processor goes to the fastest of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.schedule.policies.movable_tasks import MovableTasks
from nnstretch.soc import Processor, host_of
from nnstretch.task import Task, TaskTimes


def fastest_processor(task: Task, names: Iterable[str], durations_us: TaskTimes) -> str | None:
    """Return the processor predicted to be fastest for a task, None where none is predicted."""
    predicted = [name for name in names if (task.work, name) in durations_us]
    return min(predicted, key=lambda name: durations_us[task.work, name], default=None)


def fail_over(task: Task, alive: Sequence[Processor], durations_us: TaskTimes) -> Task:
    """Return a task on its own processor, or on another where that is not alive.

    The fastest of the others; where no time is predicted, a CPU, or the first.
    """
    names = [processor.name for processor in alive]
    if task.processor is None or task.processor in names:
        return task
    fallback = host_of(alive) or names[0]
    fastest = fastest_processor(task, names, durations_us)
    return replace(task, processor=fallback if fastest is None else fastest)


class Failover:
    """Policy that wraps another: placed tasks go elsewhere while their processor is lost.

    Tasks without a place are the other policy's own.
    """

    def __init__(self, policy: Policy, durations_us: TaskTimes) -> None:
        self._policy = policy
        self._add, self._pick = policy.add, policy.pick
        self._durations_us = durations_us
        self._tasks = MovableTasks(policy)
        self._fresh: list[Task] = []
        """Tasks that no processor was looked for."""
        self._alive: tuple[Processor, ...] = ()

    def add(self, task: Task, /) -> None:
        """Take a task, whose processor is looked at before the next choice."""
        if task.processor is None:
            self._add(task)
        else:
            self._tasks.add(task)
            self._fresh.append(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._tasks.withdraw(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return what the other policy chooses, once every task is where it can run."""
        if not self._tasks.planned:
            if self._fresh:
                self._fresh.clear()
            return self._pick(now_us, processors)
        self._place(processors)
        return self._tasks.chosen(self._policy.pick(now_us, processors))

    def _place(self, processors: Sequence[ProcessorState]) -> None:
        alive = tuple([state.processor for state in processors if state.alive])
        if not alive:
            return
        if alive != self._alive:
            self._alive = alive
            self._fresh = list(self._tasks.planned.values())
        for task in self._fresh:
            if self._tasks.planned.get(task.name) is task:
                self._tasks.place(fail_over(task, alive, self._durations_us))
        self._fresh.clear()
