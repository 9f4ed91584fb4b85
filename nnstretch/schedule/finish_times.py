"""What tasks cost where, and when they end if each takes what it costs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from nnstretch.task import Task, TaskTimes


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """Predicted times of tasks on a quiet chip."""

    quiet_us: TaskTimes
    """A pair that is absent was not predicted."""
    handovers_us: TaskTimes = field(default_factory=dict)
    """How long the host enqueues a task before it starts."""

    def us(self, task: Task, slowdown: float = 1.0) -> float:
        """Return the time of a task on its processor, us; infinite where it was not predicted."""
        key = task.work, task.processor or ""
        quiet_us = self.quiet_us.get(key, inf)
        return self.handovers_us.get(key, 0.0) + (quiet_us and quiet_us * slowdown)


def finish_times(
    tasks: Iterable[Task],
    cost_us: Mapping[str, float],
    free_us: Mapping[str, float] | None = None,
    now_us: float = 0.0,
    ended_us: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return when each task ends, us, by its name.

    A processor takes its tasks in the order in which they become ready, at equal times in the order
    of `tasks`. A task without a processor waits only for its needs.

    `cost_us` is by task, `free_us` by processor (now where absent), `ended_us` by needs that are
    not among the tasks (now where absent).
    """
    by_name = {task.name: task for task in tasks}
    order = {name: number for number, name in enumerate(by_name)}
    unmet = {name: sum(need in by_name for need in task.needs) for name, task in by_name.items()}
    readers: dict[str, list[str]] = {}
    for name, task in by_name.items():
        for need in task.needs:
            readers.setdefault(need, []).append(name)
    ends_us = dict(ended_us or {})
    busy_until_us = dict(free_us or {})

    def ready_entry(name: str) -> tuple[float, int, str]:
        needs_us = [ends_us.get(need, now_us) for need in by_name[name].needs]
        return max(needs_us, default=now_us), order[name], name

    ready = [ready_entry(name) for name, count in unmet.items() if not count]
    heapq.heapify(ready)
    while ready:
        start_us, _, name = heapq.heappop(ready)
        processor = by_name[name].processor
        if processor is not None:
            start_us = max(start_us, busy_until_us.get(processor, now_us))
            busy_until_us[processor] = start_us + cost_us[name]
        ends_us[name] = start_us + cost_us[name]
        for reader in readers.get(name, ()):
            unmet[reader] -= 1
            if not unmet[reader]:
                heapq.heappush(ready, ready_entry(reader))
    return {name: ends_us[name] for name in by_name if name in ends_us}


def critical_path_us(tasks: Iterable[Task], duration_us: Callable[[Task], float]) -> float:
    """Return the length of the longest chain of needs, us: no schedule ends earlier."""
    tasks = tuple(tasks)
    cost_us = {task.name: duration_us(task) for task in tasks}
    ends_us = finish_times([replace(task, processor=None) for task in tasks], cost_us)
    return max(ends_us.values(), default=0.0)


def duration_as_placed(
    durations_us: TaskTimes, handovers_us: TaskTimes | None = None
) -> Callable[[Task], float]:
    """Return how long it takes to hand a task over and to run it where its plan put it, us."""
    held_us = handovers_us or {}

    def duration_us(task: Task) -> float:
        key = (task.work, task.processor or "")
        return held_us.get(key, 0.0) + durations_us[key]

    return duration_us
