"""A task between its arrival and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nnstretch.schedule.costs.cost_rows import KindCosts
from nnstretch.schedule.loop.instance_tasks import InstanceTasks
from nnstretch.task import Task


@dataclass(slots=True, eq=False)
class OpenGraph:
    """Tasks that were added together, while one of them has not ended."""

    first: int
    """Number of the task at position 0."""
    unmet: list[int]
    """By position, how many needs have not ended; 0 also for withdrawn tasks."""
    readers: Sequence[Sequence[int]]
    """By position, the positions of the tasks that need it."""
    instance: InstanceTasks | None = None
    """Builds tasks when they are first looked up; None where all are built."""
    needy: dict[int, OpenTask] = field(default_factory=dict)
    """Tasks that are built and have unmet needs."""


@dataclass(slots=True, eq=False)
class OpenTask:
    """A task that has not ended, with all that the loop knows of it, so nothing needs its name.

    One record lasts from arrival to end; a task that starts again gets a new one.
    """

    task: Task
    number: int
    """In the order in which tasks were added."""
    graph: OpenGraph | None
    """None for a task that was added alone."""
    waits: bool = False
    """Whether the policy was given it and has not chosen it."""
    withdrawn: bool = False
    place: int | None = None
    """Number of the processor that was given it; the queue of that processor orders its tasks."""
    handed: bool = False
    """Whether the executor has it."""
    over: bool = False
    """Whether the executor ended it or gave it back."""
    costs: KindCosts = field(init=False)
    """Costs of its kind, set once a processor was given it; only where costs are known."""
    cost_us: float = field(init=False)
    """What it is expected to take."""
    due_us: float = field(init=False)
    """When it is expected to end, without the queue's shift."""
    ready_us: float = field(init=False)
    """When its data are on the processor."""
