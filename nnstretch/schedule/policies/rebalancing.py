"""Rebalancing as a policy: placed tasks of the oldest requests leave slow processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.schedule.policies.movable_tasks import MovableTasks
from nnstretch.schedule.rebalancing import Rebalancer, RemainingTasks
from nnstretch.task import Task

LOOKED_AT = 4
"""Requests, the oldest, whose waiting tasks may move now.

Of many open ones the others have to wait anyway.
"""


class Rebalancing:
    """Policy that wraps another, and says where waiting tasks are before it chooses.

    `remaining` says what is left of a request, some of whose tasks wait.
    """

    def __init__(
        self,
        policy: Policy,
        rebalancer: Rebalancer,
        remaining: Callable[[int, Sequence[str]], RemainingTasks],
    ) -> None:
        self._policy = policy
        self._rebalancer = rebalancer
        self._remaining = remaining
        self._tasks = MovableTasks(policy)
        self._looked_us = -1.0
        self._changed = False
        """Whether tasks came or went since the moves were last looked for."""

    def add(self, task: Task, /) -> None:
        """Take a task, which may move before the next choice."""
        self._tasks.add(task)
        self._changed = True

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._tasks.withdraw(task)
        self._changed = True

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return what the other policy chooses, once every task is where it should run."""
        if self._changed or now_us != self._looked_us:
            self._changed, self._looked_us = False, now_us
            moves = self._moves(now_us, processors)
            for task in tuple(self._tasks.planned.values()):
                processor = moves.get(task.name)
                self._tasks.place(replace(task, processor=processor) if processor else task)
        return self._tasks.chosen(self._policy.pick(now_us, processors))

    def _moves(self, now_us: float, processors: Sequence[ProcessorState]) -> dict[str, str]:
        """Return the new processors of waiting tasks whose own is slow."""
        if not any(state.open for state in processors):
            return {}
        names = [state.name for state in processors if state.alive]
        forecast = self._rebalancer.forecast(names, now_us)
        if not self._rebalancer.any_slow(forecast):
            return {}
        waiting: dict[int, list[str]] = {}
        for task in self._tasks.planned.values():
            waiting.setdefault(task.request, []).append(task.name)
        oldest = sorted(waiting)[:LOOKED_AT]
        requests = [self._remaining(number, waiting[number]) for number in oldest]
        return self._rebalancer.moves(requests, forecast)
