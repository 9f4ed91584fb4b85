"""Tasks that have not ended, and how many unmet needs each of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nnstretch.errors import Stuck
from nnstretch.schedule.loop.processor_queue import GivenTask
from nnstretch.task import Task


@dataclass(slots=True, eq=False)
class OpenTask:
    """A task that has not ended, with those that wait for it: nothing is looked up by name."""

    task: Task
    number: int
    """In the order in which tasks were added."""
    unmet: int
    """How many of its needs have not ended."""
    readers: list[OpenTask] | None = None
    """Tasks that need it; None for none."""
    waits: bool = False
    """Whether the policy has heard of it and not chosen it."""
    given: GivenTask | None = None
    """Where a processor has been given it."""
    over: bool = False
    """Whether it has ended or was withdrawn."""


class ReadyQueue:
    """Open tasks, and how many unmet needs every one still has.

    An ending costs only its own readers. What has ended or was withdrawn is forgotten, so a queue
    that serves for years stays as small as what is open.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, OpenTask] = {}
        """Open tasks in the order in which they were added, to be read."""
        self._added = 0

    def add(self, tasks: Iterable[Task]) -> list[OpenTask]:
        """Add tasks that need only each other; return those that need nothing.

        Raises Stuck for a name that is there already, or a need that is not.
        """
        tasks = tuple(tasks)
        if len(tasks) == 1 and not tasks[0].needs:
            return self._add_alone(tasks[0])
        added: dict[str, OpenTask] = {}
        number = self._added
        for task in tasks:
            number += 1
            added[task.name] = OpenTask(task, number, len(task.needs))
        if len(added) < len(tasks) or not self.by_name.keys().isdisjoint(added):
            raise self._twice(tasks)
        ready: list[OpenTask] = []
        for open_task in added.values():
            if not open_task.unmet:
                ready.append(open_task)
                continue
            for need in open_task.task.needs:
                writer = added.get(need)
                if writer is None:
                    raise absent_need(tasks, set(added))
                if writer.readers is None:
                    writer.readers = []
                writer.readers.append(open_task)
        self.by_name.update(added)
        self._added = number
        return ready

    def _add_alone(self, task: Task) -> list[OpenTask]:
        if task.name in self.by_name:
            raise self._twice((task,))
        self._added += 1
        open_task = self.by_name[task.name] = OpenTask(task, self._added, 0)
        return [open_task]

    def _twice(self, tasks: Sequence[Task]) -> Stuck:
        names = Counter(task.name for task in tasks)
        name = next(n for n, count in names.items() if count > 1 or n in self.by_name)
        count = names[name] + (name in self.by_name)
        return Stuck(
            f"task {name} is there {count} times, {len(tasks)} tasks under {len(names)} names"
        )

    def finish(self, open_task: OpenTask) -> Sequence[OpenTask]:
        """Mark a task as ended; return its successors that may start now."""
        del self.by_name[open_task.task.name]
        open_task.over = True
        if open_task.readers is None:
            return ()
        ready: list[OpenTask] = []
        for reader in open_task.readers:
            reader.unmet -= 1
            if not reader.unmet and not reader.over:
                ready.append(reader)
        return ready

    def remove(self, name: str) -> OpenTask | None:
        """Forget a task, whether or not it has been handed out; return it if it was open."""
        open_task = self.by_name.pop(name, None)
        if open_task is not None:
            open_task.over = True
        return open_task


def absent_need(tasks: Sequence[Task], names: set[str]) -> Stuck:
    """Return the error of a need that is not among the tasks."""
    absent: list[tuple[str, str]] = []
    for task in tasks:
        absent += [(need, task.name) for need in task.needs if need not in names]
    need, name = min(absent)
    return Stuck(f"task {name} needs {need}, which is not among the {len(tasks)} tasks")
