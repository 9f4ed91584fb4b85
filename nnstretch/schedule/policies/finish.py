"""Where a task would end first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.task import Task


def earliest_finish(
    task: Task, costs: CostRows, now_us: float, processors: Iterable[ProcessorState]
) -> tuple[float, ProcessorState | None]:
    """Return when a task ends first on an open processor, us, and where: the first of equals.

    It starts when the processor is free and its data are there. Infinite where none can run it.
    """
    row = costs.of(task).row
    ready_us = None if costs.arrivals is None else costs.ready_us(task)
    best_us, best = inf, None
    for state in processors:
        if state.open:
            index, start_us = state.index, state.free_us
            if start_us < now_us:
                start_us = now_us
            if ready_us is not None and ready_us[index] > start_us:
                start_us = ready_us[index]
            end_us = start_us + row[index]
            if end_us < best_us:
                best_us, best = end_us, state
    return best_us, best


def earliest_start(
    task: Task, costs: CostRows, now_us: float, processors: Sequence[ProcessorState]
) -> tuple[float, ProcessorState | None]:
    """Return when a task starts first on an open processor, us, and where: the first of equals."""
    mask = costs.mask(task)
    ready_us = costs.ready_us(task)
    best_us, best = inf, None
    for state in processors:
        if state.open and mask >> state.index & 1:
            there_us = 0.0 if ready_us is None else ready_us[state.index]
            start_us = max(now_us, state.free_us, there_us)
            if start_us < best_us:
                best_us, best = start_us, state
    return best_us, best
