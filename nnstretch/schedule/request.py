"""A request and its end, and the deadlines of several."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from nnstretch.errors import DeadlineMissed, ProcessorFailed
from nnstretch.task import Task

SLACK = 64
"""Deadlines of answered requests that may stay in the heap beside as many as are open."""


@dataclass(slots=True, eq=False)
class Request:
    """One input on its way through a network, submitted once, and what becomes of it."""

    number: int
    tasks: Sequence[Task]
    """They need only each other, and have the request's number."""
    deadline_us: float = inf
    """On the executor's clock."""
    stays: bool = False
    """Its tasks are not moved because a processor is slow, only where it is lost."""
    source: Any = None
    """What the caller wants back with its end."""
    arrived_us: float = inf
    """When the scheduler heard of it."""
    unfinished: int = 0
    """How many of its tasks have not ended."""
    first_us: float = inf
    """When its first task started."""
    worked_us: float = 0.0
    """What its tasks took, added up."""
    replaced: int = 0
    """Tasks that ran elsewhere than planned, because their processor was lost or slow."""
    ended_us: float = inf
    error: Exception | None = None
    """None where all of its tasks ended."""

    @property
    def latency_us(self) -> float:
        """Return the time from arrival to end, us."""
        return self.ended_us - self.arrived_us


@dataclass(slots=True)
class Deadlines:
    """Deadlines of open requests, the earliest first."""

    _heap: list[tuple[float, int]] = field(default_factory=list)
    """Answered requests leave it when they come to its top, or outnumber the open ones."""

    def add(self, request: Request) -> None:
        """Add the deadline of a request."""
        heapq.heappush(self._heap, (request.deadline_us, request.number))

    def next_us(self, open_requests: Collection[int]) -> float:
        """Return the earliest deadline of an open request, us; infinite where there is none."""
        if len(self._heap) > 2 * len(open_requests) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in open_requests]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][1] not in open_requests:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def pop_missed(self, now_us: float) -> list[tuple[float, int]]:
        """Remove the deadlines that are over; return them with the numbers of their requests."""
        missed: list[tuple[float, int]] = []
        while self._heap and self._heap[0][0] <= now_us:
            missed.append(heapq.heappop(self._heap))
        return missed


def deadline_error(number: int, at_us: float) -> DeadlineMissed:
    """Return the error of a request that missed its deadline."""
    return DeadlineMissed(f"request {number} missed its deadline at {at_us / 1000:.3f} ms, service")


def stranded_error(task: Task, failed: Collection[str]) -> ProcessorFailed:
    """Return the error of a request of which a task has a time on no processor that is left."""
    return ProcessorFailed(
        f"request {task.request} cannot run, service, {', '.join(sorted(failed))} has failed and"
        f" {task.subgraph} has no time on another processor"
    )


def no_processor_error(number: int) -> ProcessorFailed:
    """Return the error of a request without a processor that could serve it."""
    return ProcessorFailed(f"request {number} cannot run, service, every processor has failed")
