"""Tasks of an instance of an application, of which each is built when somebody looks at it.

So a task that waits for others is a few numbers, and many waiting instances fit the caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from nnstretch.task import Task, quick_maker

make_task = quick_maker(Task)


@dataclass(frozen=True, slots=True)
class TaskPattern:
    """What the instances of an application share, by position of the task."""

    plan: str
    prefixes: tuple[str, ...]
    """Of names; the number of the instance is behind them."""
    subgraphs: tuple[str, ...]
    processors: tuple[str | None, ...]
    needs: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    unmet: tuple[int, ...]
    """How many needs each has."""
    roots: tuple[int, ...]
    """Those that need nothing."""


def task_pattern(plan: str, tasks: Sequence[Task], prefixes: Iterable[str]) -> TaskPattern:
    """Return the pattern of tasks that need only each other; `prefixes` are of their names."""
    positions = {task.name: position for position, task in enumerate(tasks)}
    needs = tuple([tuple([positions[need] for need in sorted(task.needs)]) for task in tasks])
    readers: list[list[int]] = [[] for _ in tasks]
    for reader, writers in enumerate(needs):
        for writer in writers:
            readers[writer].append(reader)
    unmet = tuple(map(len, needs))
    return TaskPattern(
        plan,
        tuple(prefixes),
        tuple([task.subgraph for task in tasks]),
        tuple([task.processor for task in tasks]),
        needs,
        tuple(map(tuple, readers)),
        unmet,
        tuple([position for position, count in enumerate(unmet) if not count]),
    )


class InstanceTasks(Sequence[Task]):
    """The tasks of one instance."""

    __slots__ = ("_deadline_us", "_number", "_priority", "pattern")

    def __init__(
        self, pattern: TaskPattern, number: int, deadline_us: float, priority: int
    ) -> None:
        self.pattern = pattern
        self._number = number
        self._deadline_us = deadline_us
        self._priority = priority

    def task(self, position: int) -> Task:
        """Return a task: another object at each call, equal to the ones before."""
        pattern, number = self.pattern, self._number
        prefixes, needs = pattern.prefixes, pattern.needs[position]
        return make_task(
            f"{prefixes[position]}{number}",
            pattern.subgraphs[position],
            frozenset([f"{prefixes[need]}{number}" for need in needs]) if needs else NOTHING,
            pattern.processors[position],
            number,
            pattern.plan,
            self._priority,
            self._deadline_us,
        )

    def __len__(self) -> int:
        return len(self.pattern.unmet)

    def __iter__(self) -> Iterator[Task]:
        return map(self.task, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...

    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self.task(range(len(self))[index])


NOTHING: frozenset[str] = frozenset()
