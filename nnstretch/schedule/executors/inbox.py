"""What the threads of an executor send each other."""

from __future__ import annotations

import queue
from collections.abc import Hashable
from dataclasses import dataclass

from nnstretch.schedule.executors.timetable import TimeSlot
from nnstretch.task import Task

Inbox = queue.SimpleQueue
"""Bounded by the count in `submit`; wakes its reader three times faster than a Queue."""


@dataclass(frozen=True, slots=True)
class Message:
    """What another thread sends to the thread that waits."""

    content: Hashable


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task in the queue of its processor."""

    task: Task
    submitted_us: float
    slot: TimeSlot | None
    """Its time, where that was predicted."""
