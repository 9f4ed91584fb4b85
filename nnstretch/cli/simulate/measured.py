"""Measured costs as a simulation wants them."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.cli.simulate.pool import Pool
from nnstretch.errors import BadInput
from nnstretch.files.workload.measured_costs import MeasuredCosts
from nnstretch.schedule.executors.contended import HostCosts
from nnstretch.schedule.simulation.durations import Crowd, MeasuredTimes, Pace
from nnstretch.task import Task, TaskTimes, WorkKey


def measured_times(costs: MeasuredCosts) -> MeasuredTimes:
    """Return a table of measured costs as a simulation wants it."""
    samples_us: dict[tuple[WorkKey, str], Sequence[float]] = {}
    beside_factors: dict[tuple[WorkKey, str], float] = {}
    switched_factors: dict[tuple[WorkKey, str], float] = {}
    crowded_factors: dict[tuple[WorkKey, str], float] = {}
    for row in costs.tasks:
        key = (row.application, row.task), row.processor
        samples_us[key] = row.samples_us
        beside_factors[key] = row.beside
        switched_factors[key] = row.switched
        crowded_factors[key] = row.crowded
    host = HostCosts(costs.decision_us, costs.handover_us, costs.answer_us, costs.wake_us)
    crowd = Crowd(costs.few_under_way, costs.many_under_way, crowded_factors)
    pace = Pace(costs.pace, costs.pace_window_us)
    return MeasuredTimes(samples_us, beside_factors, switched_factors, crowd, pace, host)


def measured_over(name: str, tasks: Sequence[Task], costs: MeasuredCosts, pool: Pool) -> TaskTimes:
    """Return the times of an application: measured where they were. Raises BadInput for a task
    that the table lacks.
    """
    processors = {processor.name for processor in pool.processors}
    times_us: dict[tuple[WorkKey, str], float] = {}
    for row in costs.tasks:
        if row.application == name and row.processor in processors:
            times_us[row.task, row.processor] = row.median_us
    measured = {work for work, _ in times_us}
    for task in tasks:
        if task.subgraph not in measured:
            raise BadInput(
                f"{task.subgraph} of {name} was not measured, costs, the table has"
                f" {', '.join(map(str, sorted(measured))) or 'nothing of it'} on"
                f" {', '.join(processors)}"
            )
    return times_us


def check_measured(costs: MeasuredCosts, pool: Pool) -> None:
    """Check that each processor of a pool was measured. Raises BadInput naming one that was not."""
    for processor in pool.processors:
        if processor.name not in costs.processors:
            raise BadInput(
                f"{processor.name} of the pool was not measured, costs, the table has"
                f" {', '.join(costs.processors)}"
            )
