"""What a static schedule keeps of an arrived job: its tasks' places in the orders of processors."""

from __future__ import annotations

from dataclasses import dataclass, field

from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph
from nnstretch.task import Task


@dataclass(slots=True, eq=False)
class PlannedJob:
    """One arrived graph: where and when its tasks are expected to end."""

    indexed: IndexedGraph
    ends_us: list[float]
    places: list[int]
    slots: dict[str, list[PlannedSlot]] = field(default_factory=dict)
    """Slots that wait for their task, by its sub-graph, the earliest first."""
    open: int = 0
    """Slots that no processor has been given."""


@dataclass(slots=True, eq=False)
class PlannedSlot:
    """A task's place in the order of its processor."""

    start_us: float
    end_us: float
    number: int
    """Order of planning, between equal times."""
    job: PlannedJob
    index: int
    """Number of the task in its graph."""
    task: Task | None = None
    """None until it may start."""

    def __lt__(self, other: PlannedSlot) -> bool:
        theirs = other.start_us, other.end_us, other.number
        return (self.start_us, self.end_us, self.number) < theirs
