"""Failover: the work of a lost processor goes to the fastest of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes


def fastest_processor(task: Task, names: Iterable[str], durations_us: TaskTimes) -> str | None:
    """Return the processor predicted to be fastest for a task, None where none is predicted."""
    predicted = [name for name in names if (task.work, name) in durations_us]
    return min(predicted, key=lambda name: durations_us[task.work, name], default=None)


def fail_over(task: Task, alive: Sequence[Processor], durations_us: TaskTimes) -> Task:
    """Return a task on its own processor, or on another where that is not alive.

    The fastest of the others; where no time is predicted, a CPU, or the first.
    """
    names = [processor.name for processor in alive]
    if task.processor is None or task.processor in names:
        return task
    fallback = next((processor.name for processor in alive if processor.kind == "cpu"), names[0])
    fastest = fastest_processor(task, names, durations_us)
    return replace(task, processor=fallback if fastest is None else fastest)
