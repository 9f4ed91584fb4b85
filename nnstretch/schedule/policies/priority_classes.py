"""Strict priority classes around any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.task import Task


class PriorityClasses:
    """A policy for every priority: one is asked only where all above it decline.

    The loop lets what is reserved of a lesser class wait, and so a class sees processors as free
    before that.
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
        for priority, policy in self._classes.items():
            choice = policy.pick(now_us, seen_by(priority, processors))
            if choice is not None:
                task, state = choice
                return task, None if state is None else processors[state.index]
        return None


def seen_by(priority: int, processors: Sequence[ProcessorState]) -> Sequence[ProcessorState]:
    """Return processors as free when they are for tasks of a priority."""
    if not any(state.has_lesser(priority) for state in processors):
        return processors
    return [replace(state, free_us=state.free_us_for(priority)) for state in processors]
