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
    """By position, how many needs have not ended; 0 for what was withdrawn, too."""
    readers: Sequence[Sequence[int]]
    """By position, those that need it."""
    instance: InstanceTasks | None = None
    """What builds tasks that nobody has looked at; None where all are built."""
    needy: dict[int, OpenTask] = field(default_factory=dict)
    """Tasks that are built and need something that has not ended."""


@dataclass(slots=True, eq=False)
class OpenTask:
    """A task that has not ended: nothing about it is looked up by name.

    One record from arrival to end, and another one if it has to start again.
    """

    task: Task
    number: int
    """In the order in which tasks were added."""
    graph: OpenGraph | None
    """None for a task that was added alone."""
    waits: bool = False
    """Whether the policy has heard of it and not chosen it."""
    withdrawn: bool = False
    place: int | None = None
    """Number of the processor that has been given it, whose queue says what follows."""
    handed: bool = False
    """Whether the executor has it."""
    over: bool = False
    """Whether it has ended there, or was taken back."""
    costs: KindCosts = field(init=False)
    """Of its kind, once a processor has been given it; only where costs are known."""
    cost_us: float = field(init=False)
    """What it is expected to take."""
    due_us: float = field(init=False)
    """When it is expected to end, without the queue's shift."""
    ready_us: float = field(init=False)
    """When its data are on the processor."""
