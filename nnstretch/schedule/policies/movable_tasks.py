"""Tasks that wait in another policy, each where it was planned or moved to."""

from __future__ import annotations

from nnstretch.protocols import Choice, Policy
from nnstretch.task import Task


class MovableTasks:
    """Tasks of a policy that wraps another: as planned, and as the wrapped policy has them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.planned: dict[str, Task] = {}
        """Tasks that wait, by name."""
        self._moved: dict[str, Task] = {}
        """Tasks that the wrapped policy has, as they are placed now."""

    def add(self, task: Task) -> None:
        """Take a task; the wrapped policy gets it once it is placed."""
        self.planned[task.name] = task

    def withdraw(self, task: Task) -> None:
        """Forget a task that waits here, or pass it to the wrapped policy."""
        planned = self.planned.pop(task.name, None)
        if planned is None:
            self._policy.withdraw(task)
        elif (moved := self._moved.pop(task.name, None)) is not None:
            self._policy.withdraw(moved)

    def place(self, task: Task) -> None:
        """Give the wrapped policy a task as it is placed now, unless it has it so."""
        before = self._moved.get(task.name)
        if before is not None:
            if before.processor == task.processor:
                return
            self._policy.withdraw(before)
        self._moved[task.name] = task
        self._policy.add(task)

    def chosen(self, choice: Choice | None) -> Choice | None:
        """Forget what the other policy has chosen, and return it."""
        if choice is not None:
            self.planned.pop(choice[0].name, None)
            self._moved.pop(choice[0].name, None)
        return choice
