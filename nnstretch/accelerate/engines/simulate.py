"""Instructions -> trace: starts are longest paths.

All orders are fixed when the schedule is made, so an instruction starts when the last of those that
it waits for has ended. The one loop of `schedule/` gives the same trace, since there is never a
choice: each engine's next task needs the one before it (a test compares both); walking the list
once takes a microsecond a task where the loop asks a policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.accelerate.engines.dependencies import Needs
from nnstretch.chip.instances import Instruction
from nnstretch.task import Task
from nnstretch.trace import Span, Trace


def end_times_us(instructions: Sequence[Instruction], needs: Needs) -> list[float]:
    """Return when each instruction ends."""
    ends: list[float] = []
    for instruction, needed in zip(instructions, needs, strict=True):
        start_us = 0.0
        for place in needed:
            if ends[place] > start_us:
                start_us = ends[place]
        ends.append(start_us + instruction.duration_us)
    return ends


def tasks_of(instructions: Sequence[Instruction], needs: Needs) -> tuple[Task, ...]:
    """Return instructions as tasks on the engines as processors."""
    names = [f"{place}: {item.name}" for place, item in enumerate(instructions)]
    tasks: list[Task] = []
    for name, instruction, needed in zip(names, instructions, needs, strict=True):
        task = Task(
            name, name, frozenset(names[place] for place in needed), processor=instruction.engine
        )
        tasks.append(task)
    return tuple(tasks)


def trace_of(instructions: Sequence[Instruction], needs: Needs) -> Trace:
    """Return the trace of a schedule, spans in the order in which they end."""
    ends = end_times_us(instructions, needs)
    tasks = tasks_of(instructions, needs)
    spans: list[Span] = []
    for instruction, task, end_us in zip(instructions, tasks, ends, strict=True):
        start_us = end_us - instruction.duration_us
        spans.append(Span(start_us, end_us, task, instruction.engine))
    return Trace(tuple(sorted(spans, key=lambda span: span.end_us)))
