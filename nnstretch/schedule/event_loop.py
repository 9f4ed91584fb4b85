"""The one loop: it knows neither processors' speeds nor what a task computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from nnstretch.errors import Stuck
from nnstretch.protocols import Executor, Policy, SchedulerState
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span, TimerEvent, Trace

Place = Callable[[Task], Task]


def run_tasks(tasks: Iterable[Task], policy: Policy, executor: Executor) -> Trace:
    """Run every task once, none before the tasks it needs, and report the spans in the order they
    ended. Raises what a task raised.
    """
    ready_queue = ReadyQueue(tasks)
    spans: list[Span] = []
    marks: list[TimerEvent] = []
    dispatch(ready_queue, policy, executor)
    while (event := executor.wait()) is not None:
        if isinstance(event, Failure):
            raise event.error
        if isinstance(event, Span):
            spans.append(event)
            ready_queue.finish(event.task.name)
        else:
            marks.append(event)
        dispatch(ready_queue, policy, executor)
    if unfinished := ready_queue.unfinished():
        raise Stuck(
            f"{len(unfinished)} tasks never ran, {', '.join(unfinished[:5])}, nothing is in flight"
            " and the policy or their needs hold them"
        )
    return Trace(tuple(spans), tuple(marks))


def keep_placement(task: Task) -> Task:
    """Keep every task where its plan put it."""
    return task


def dispatch(
    ready_queue: ReadyQueue, policy: Policy, executor: Executor, place: Place = keep_placement
) -> list[tuple[Task, Processor]]:
    """Hand out ready tasks until the policy declines or no processor is free.

    `place` may say that a task is elsewhere now.
    """
    handed: list[tuple[Task, Processor]] = []
    while ready_queue.ready and (free := executor.free()):
        choice = policy.pick(
            SchedulerState(executor.now_us, tuple(map(place, ready_queue.ready.values())), free)
        )
        if choice is None:
            break
        task, processor = choice
        del ready_queue.ready[task.name]
        executor.submit(task, processor)
        handed.append(choice)
    return handed


class ReadyQueue:
    """Ready tasks, and how many unmet needs every other one still has.

    An ending costs only its own readers.

    What has ended or was withdrawn is forgotten, so a board that serves for years stays as small as
    what is open.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._tasks: dict[str, Task] = {}
        self._unmet: dict[str, int] = {}
        self._readers: dict[str, list[str]] = {}
        self.ready: dict[str, Task] = {}
        self.add(tasks)

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks that need only each other.

        Raises Stuck for a name that is there already, or a need that is not.
        """
        tasks = tuple(tasks)
        names = Counter(task.name for task in tasks)
        if twice := [name for name, count in names.items() if count > 1 or name in self._tasks]:
            count = names[twice[0]] + (twice[0] in self._tasks)
            raise Stuck(
                f"task {twice[0]} is there {count} times, {len(tasks)} tasks under {len(names)}"
                " names"
            )
        if absent := sorted(
            (need, task.name) for task in tasks for need in task.needs if need not in names
        ):
            raise Stuck(
                f"task {absent[0][1]} needs {absent[0][0]}, which is not among the {len(tasks)}"
                " tasks"
            )
        for task in tasks:
            self._tasks[task.name] = task
            if task.needs:
                self._unmet[task.name] = len(task.needs)
            else:
                self.ready[task.name] = task
            for need in task.needs:
                self._readers.setdefault(need, []).append(task.name)

    def finish(self, name: str) -> None:
        """Mark a task as ended; its successors may become ready."""
        del self._tasks[name]
        for reader in self._readers.pop(name, ()):
            if reader not in self._unmet:
                continue
            self._unmet[reader] -= 1
            if not self._unmet[reader]:
                del self._unmet[reader]
                self.ready[reader] = self._tasks[reader]

    def requeue(self, name: str) -> None:
        """Put back a task that was handed out and did not end."""
        self.ready[name] = self._tasks[name]

    def remove(self, names: Iterable[str]) -> None:
        """Forget tasks, handed out or not; whoever runs them is not asked for the result."""
        for name in names:
            if self._tasks.pop(name, None) is not None:
                self.ready.pop(name, None)
                self._unmet.pop(name, None)
                self._readers.pop(name, None)

    def unfinished(self) -> list[str]:
        """Return tasks never handed out: those ready first, then those that wait for them."""
        return [*self.ready, *self._unmet]
