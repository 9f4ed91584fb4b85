"""Tasks that have not ended, and how many unmet needs each of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nnstretch.errors import Stuck
from nnstretch.task import Task

NumberedTask = tuple[int, Task]
"""A task behind its number in the order in which tasks were added."""


class ReadyQueue:
    """Open tasks, and how many unmet needs every one still has.

    An ending costs only its own readers. What has ended or was withdrawn is forgotten, so a queue
    that serves for years stays as small as what is open.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._unmet: dict[str, list[int]] = {}
        """How many, and the number of the task."""
        self._readers: dict[str, list[str]] = {}
        self._added = 0

    def add(self, tasks: Iterable[Task]) -> list[NumberedTask]:
        """Add tasks that need only each other; return those that need nothing.

        Raises Stuck for a name that is there already, or a need that is not.
        """
        tasks = tuple(tasks)
        self._check(tasks)
        ready: list[NumberedTask] = []
        for task in tasks:
            self._tasks[task.name] = task
            self._added += 1
            if not task.needs:
                ready.append((self._added, task))
                continue
            self._unmet[task.name] = [len(task.needs), self._added]
            for need in task.needs:
                self._readers.setdefault(need, []).append(task.name)
        return ready

    def _check(self, tasks: Sequence[Task]) -> None:
        names: set[str] = set()
        for task in tasks:
            if task.name in names or task.name in self._tasks:
                raise self._twice(tasks)
            names.add(task.name)
        for task in tasks:
            if task.needs and not task.needs <= names:
                raise absent_need(tasks, names)

    def _twice(self, tasks: Sequence[Task]) -> Stuck:
        names = Counter(task.name for task in tasks)
        name = next(n for n, count in names.items() if count > 1 or n in self._tasks)
        count = names[name] + (name in self._tasks)
        return Stuck(
            f"task {name} is there {count} times, {len(tasks)} tasks under {len(names)} names"
        )

    def __getitem__(self, name: str) -> Task:
        """Return an open task as it was added."""
        return self._tasks[name]

    def __contains__(self, name: str) -> bool:
        """Return whether a task is open."""
        return name in self._tasks

    def readers(self, name: str) -> Sequence[str]:
        """Return the names of tasks that need a task."""
        return self._readers.get(name, ())

    def finish(self, name: str) -> Sequence[NumberedTask]:
        """Mark a task as ended; return its successors that may start now."""
        del self._tasks[name]
        readers = self._readers.pop(name, None)
        if readers is None:
            return ()
        ready: list[NumberedTask] = []
        for reader in readers:
            unmet = self._unmet.get(reader)
            if unmet is None:
                continue
            unmet[0] -= 1
            if not unmet[0]:
                del self._unmet[reader]
                ready.append((unmet[1], self._tasks[reader]))
        return ready

    def remove(self, name: str) -> None:
        """Forget a task, whether or not it has been handed out."""
        if self._tasks.pop(name, None) is not None:
            self._unmet.pop(name, None)
            self._readers.pop(name, None)

    @property
    def unmet(self) -> Sequence[str]:
        """Return the names of tasks that wait for others."""
        return tuple(self._unmet)


def absent_need(tasks: Sequence[Task], names: set[str]) -> Stuck:
    """Return the error of a need that is not among the tasks."""
    absent: list[tuple[str, str]] = []
    for task in tasks:
        absent += [(need, task.name) for need in task.needs if need not in names]
    need, name = min(absent)
    return Stuck(f"task {name} needs {need}, which is not among the {len(tasks)} tasks")
