"""Strict priority classes around any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.task import Task


class PriorityClasses:
    """A policy for every priority: one is asked only where all above it decline.

    Nothing that a processor has been given is taken back: a class goes before what waits, not
    before what is reserved.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._classes: dict[int, Policy] = {}
        """The highest first."""

    def add(self, task: Task, /) -> None:
        """Let a task wait in its class."""
        policy = self._classes.get(task.priority)
        if policy is None:
            policy = self._make()
            classes = {**self._classes, task.priority: policy}
            self._classes = dict(sorted(classes.items(), reverse=True))
        policy.add(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._classes[task.priority].withdraw(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the choice of the highest class that has one."""
        for policy in self._classes.values():
            choice = policy.pick(now_us, processors)
            if choice is not None:
                return choice
        return None
