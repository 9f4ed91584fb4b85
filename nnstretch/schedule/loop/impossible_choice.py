"""The error for a policy's choice that is not allowed."""

from __future__ import annotations

from nnstretch.errors import BadInput
from nnstretch.protocols import Policy, ProcessorState
from nnstretch.schedule.loop.open_task import OpenTask
from nnstretch.task import Task


def impossible_choice(
    policy: Policy, task: Task, state: ProcessorState | None, open_task: OpenTask | None
) -> BadInput:
    """Return the error of a choice that is not of a waiting task and an open processor."""
    if open_task is None:
        why = "it has ended, was withdrawn or never came"
    elif not open_task.waits:
        why = "it was chosen before or cannot start yet"
    elif state is not None and not state.alive:
        why = f"{state.name} has failed"
    else:
        why = "that processor is not open"
    where = "nowhere" if state is None else state.name
    return BadInput(f"{type(policy).__name__} chose {task.name} for {where}, policy, {why}")
