"""The latency of an instance that has the chip to itself."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.virtual import duration_from
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.table import find_policy
from nnstretch.schedule.simulation.application import Application
from nnstretch.schedule.simulation.durations import Pace
from nnstretch.schedule.simulation.policy_setting import policy_setting
from nnstretch.schedule.simulation.settings import SimulationSettings, clock_of


def alone_latency_us(application: Application, settings: SimulationSettings) -> float:
    """Return the latency of an instance that has the chip to itself, us.

    Its tasks take what they are expected to, on the clock of the simulation: what the host takes
    beside them counts, what else happens to processors, and slow moments of the host, do not.
    """
    alone = undisturbed(replace(settings, applications=(application,)))
    costs = CostRows(
        settings.processors,
        TaskCosts(settings.times_us),
        transfers_us=settings.transfers_us or None,
    )
    duration_us = duration_from(settings.times_us)
    clock = clock_of(alone, duration_us, lambda _task: True, lambda: 1)
    policy = find_policy(settings.policy).make(policy_setting(alone, costs, clock))
    how = Queueing.UNBOUNDED if settings.queueing else Queueing.IDLE
    run_tasks(application.tasks, policy, clock, costs, how)
    return clock.now_us


def undisturbed(settings: SimulationSettings) -> SimulationSettings:
    """Return settings without what happens to processors and hosts at times of their own."""
    measured = settings.measured
    if measured is not None:
        measured = replace(measured, pace=Pace())
    return replace(settings, disturbances=Disturbances(), measured=measured)
