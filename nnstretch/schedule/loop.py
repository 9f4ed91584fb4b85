"""The one loop: it knows neither processors' speeds nor what a task computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nnstretch.errors import Stuck
from nnstretch.protocols import Executor, Moment, Policy
from nnstretch.trace import Span, Task, Trace


def run(tasks: Iterable[Task], policy: Policy, executor: Executor) -> Trace:
    """Run every task once, none before the tasks it needs, and report the spans in the order they ended."""
    board = Board(tuple(tasks))
    spans: list[Span] = []
    dispatch(board, policy, executor)
    while (span := executor.wait()) is not None:
        spans.append(span)
        board.end(span.task)
        dispatch(board, policy, executor)
    if left := board.left():
        raise Stuck(f"{len(left)} tasks never ran, {', '.join(left[:5])}, nothing is in flight and the policy or their needs hold them")
    return Trace(tuple(spans))


def dispatch(board: Board, policy: Policy, executor: Executor) -> None:
    """Hand out ready tasks until the policy declines or no processor is free."""
    while board.ready and (free := executor.free()):
        choice = policy.pick(Moment(executor.now_us, tuple(board.ready.values()), free))
        if choice is None:
            return
        task, processor = choice
        del board.ready[task.name]
        executor.submit(task, processor)


class Board:
    """Ready tasks, and how many unmet needs every other one still has: an ending costs only its own readers."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self._tasks = {task.name: task for task in tasks}
        if len(self._tasks) != len(tasks):
            name, count = Counter(task.name for task in tasks).most_common(1)[0]
            raise Stuck(f"task {name} is there {count} times, {len(tasks)} tasks under {len(self._tasks)} names")
        self._unmet = {task.name: len(task.needs) for task in tasks if task.needs}
        self._readers: dict[str, list[str]] = {}
        for task in tasks:
            for need in task.needs:
                self._readers.setdefault(need, []).append(task.name)
        if absent := sorted(self._readers.keys() - self._tasks.keys()):
            raise Stuck(f"task {self._readers[absent[0]][0]} needs {absent[0]}, which is not among the {len(tasks)} tasks")
        self.ready = {task.name: task for task in tasks if not task.needs}

    def end(self, name: str) -> None:
        for reader in self._readers.get(name, ()):
            self._unmet[reader] -= 1
            if not self._unmet[reader]:
                del self._unmet[reader]
                self.ready[reader] = self._tasks[reader]

    def left(self) -> list[str]:
        """Tasks never handed out: those ready first, then those that wait for them."""
        return [*self.ready, *self._unmet]
