"""Tasks that have not ended, and how many unmet needs each of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nnstretch.errors import Stuck
from nnstretch.schedule.loop.instance_tasks import InstanceTasks
from nnstretch.schedule.loop.open_task import OpenGraph, OpenTask
from nnstretch.task import Task


class ReadyQueue:
    """Open tasks, and how many unmet needs each of them has.

    The end of a task costs only its own readers. Tasks that ended or were withdrawn are forgotten,
    so memory grows with the open tasks alone.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, OpenTask] = {}
        """Open tasks in the order in which they were added, to be read; without the tasks of an
        instance that have unmet needs."""
        self._added = 0

    def add(self, tasks: Iterable[Task]) -> list[OpenTask]:
        """Add tasks that need only each other; return those that need nothing.

        Raises Stuck for a name that is there already, or a need that is not.
        """
        if type(tasks) is InstanceTasks:  # `isinstance` asks the abstract class, which is slow.
            return self._add_instance(tasks)
        tasks = tuple(tasks)
        if len(tasks) == 1 and not tasks[0].needs:
            self._added += 1
            only = OpenTask(tasks[0], self._added, None)
            if self.by_name.setdefault(tasks[0].name, only) is not only:
                raise self._twice(tasks)
            return [only]
        positions = {task.name: position for position, task in enumerate(tasks)}
        if len(positions) < len(tasks) or not self.by_name.keys().isdisjoint(positions):
            raise self._twice(tasks)
        readers: list[list[int]] = [[] for _ in tasks]
        for position, task in enumerate(tasks):
            for need in task.needs:
                if need not in positions:
                    raise absent_need(tasks, set(positions))
                readers[positions[need]].append(position)
        first, unmet = self._next_numbers(len(tasks)), [len(task.needs) for task in tasks]
        graph = OpenGraph(first, unmet, readers)
        ready: list[OpenTask] = []
        for position, task in enumerate(tasks):
            open_task = self._open(task, first + position, graph)
            if unmet[position]:
                graph.needy[position] = open_task
            else:
                ready.append(open_task)
        return ready

    def _add_instance(self, tasks: InstanceTasks) -> list[OpenTask]:
        pattern = tasks.pattern
        first = self._next_numbers(len(pattern.unmet))
        graph = OpenGraph(first, list(pattern.unmet), pattern.readers, tasks)
        return [self._open(tasks.task(root), first + root, graph) for root in pattern.roots]

    def _next_numbers(self, count: int) -> int:
        """Return the first of so many numbers that nothing has."""
        first = self._added + 1
        self._added += count
        return first

    def _open(self, task: Task, number: int, graph: OpenGraph | None) -> OpenTask:
        open_task = OpenTask(task, number, graph)
        if self.by_name.setdefault(task.name, open_task) is not open_task:
            raise self._twice((task,))
        return open_task

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
        graph = open_task.graph
        if graph is None:
            return ()
        ready: list[OpenTask] = []
        unmet = graph.unmet
        for position in graph.readers[open_task.number - graph.first]:
            unmet[position] -= 1
            if not unmet[position]:
                reader = graph.needy.pop(position, None) if graph.needy else None
                ready.append(reader or self._build(graph, position))
        return ready

    def renew(self, open_task: OpenTask) -> OpenTask:
        """Replace a task by a record of its own for another start; return that."""
        fresh = OpenTask(open_task.task, open_task.number, open_task.graph)
        self.by_name[open_task.task.name] = fresh
        return fresh

    def _build(self, graph: OpenGraph, position: int) -> OpenTask:
        assert graph.instance is not None
        return self._open(graph.instance.task(position), graph.first + position, graph)

    def readers(self, open_task: OpenTask) -> Iterator[Task]:
        """Yield the tasks that need an open task and were not withdrawn."""
        graph = open_task.graph
        if graph is None:
            return
        for position in graph.readers[open_task.number - graph.first]:
            if graph.unmet[position]:
                if position not in graph.needy:
                    graph.needy[position] = self._build(graph, position)
                yield graph.needy[position].task

    def needs_something(self, open_task: OpenTask) -> bool:
        """Return whether something that an open task needs has not ended."""
        graph = open_task.graph
        return graph is not None and graph.unmet[open_task.number - graph.first] > 0

    def unfinished(self) -> list[str]:
        """Return tasks never given to a processor: those that may start first."""
        waiting = [name for name, open_task in self.by_name.items() if open_task.waits]
        needy = self.needs_something
        return waiting + [name for name, open_task in self.by_name.items() if needy(open_task)]

    def remove(self, name: str) -> OpenTask | None:
        """Forget a task, whether or not it has been handed out; return it if it was open."""
        open_task = self.by_name.pop(name, None)
        if open_task is not None:
            open_task.withdrawn = True
            graph = open_task.graph
            if graph is not None:
                position = open_task.number - graph.first
                graph.unmet[position] = 0
                graph.needy.pop(position, None)
        return open_task


def absent_need(tasks: Sequence[Task], names: set[str]) -> Stuck:
    """Return the error of a need that is not among the tasks."""
    absent: list[tuple[str, str]] = []
    for task in tasks:
        absent += [(need, task.name) for need in task.needs if need not in names]
    need, name = min(absent)
    return Stuck(f"task {name} needs {need}, which is not among the {len(tasks)} tasks")
