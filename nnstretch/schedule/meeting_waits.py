"""Who waits for whom at a meeting point, and how long, read off a trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.task import Task
from nnstretch.trace import Trace


@dataclass(frozen=True, slots=True)
class MeetingWait:
    """One branch at one meeting point, microseconds."""

    meeting: str
    """The task that needs all branches."""
    task: str
    processor: str
    host_us: float
    """The host's wait for this branch, from when the last branch was handed over.

    0 where it had ended by then.
    """
    idle_us: float
    """The branch's wait for the slowest."""


def meeting_waits(tasks: Iterable[Task], trace: Trace) -> tuple[MeetingWait, ...]:
    """Return the waits at every task that needs more than one other, in the order of its
    needs' names.

    Waking the host is the meeting task's own time.
    """
    spans = trace.spans_by_task()
    waits: list[MeetingWait] = []
    for task in tasks:
        branches = [spans[need] for need in sorted(task.needs)] if len(task.needs) > 1 else []
        handed_us = max(
            (span.start_us if span.handed_us is None else span.handed_us for span in branches),
            default=0.0,
        )
        last_us = max((span.end_us for span in branches), default=0.0)
        for span in branches:
            host_us, idle_us = max(0.0, span.end_us - handed_us), last_us - span.end_us
            names = task.name, span.task.name, span.processor
            waits.append(MeetingWait(*names, host_us, idle_us))
    return tuple(waits)
