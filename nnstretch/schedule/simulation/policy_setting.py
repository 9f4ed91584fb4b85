"""What the policy of a simulation believes, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from random import Random

from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.policies.priority_classes import PriorityClasses
from nnstretch.schedule.policies.table import PolicySetting, find_policy
from nnstretch.schedule.simulation.run_graph import static_levels_us
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.slowdown import SlowdownEstimator
from nnstretch.task import WorkKey
from nnstretch.task_graph import TaskGraph


def cost_rows(settings: SimulationSettings) -> CostRows:
    """Return what the policy believes tasks to cost; draws wrong costs where these are wanted."""
    times_us = dict(settings.times_us)
    if settings.wrong_costs > 1:
        random, most = Random(f"{settings.seed}/costs"), log(settings.wrong_costs)
        for key, time_us in times_us.items():
            times_us[key] = time_us * exp(random.uniform(-most, most))
    slowdowns = SlowdownEstimator(1.0, 1.0) if settings.correction else None
    costs = CostRows(
        settings.processors, TaskCosts(times_us), slowdowns, settings.transfers_us or None
    )
    for application in settings.applications:
        for task in application.tasks:
            costs.row(task)
    return costs


def make_policy(
    settings: SimulationSettings, costs: CostRows, clock: Executor, is_open: Callable[[int], bool]
) -> Policy:
    """Return the policy, in strict classes where applications differ in priority."""
    entry, setting = find_policy(settings.policy), policy_setting(settings, costs, clock, is_open)
    priorities: set[int] = set()
    for app in settings.applications:
        priorities.update(app.priorities or (app.priority,))
    if len(priorities) > 1:
        return PriorityClasses(lambda: entry.make(setting))
    return entry.make(setting)


def policy_setting(
    settings: SimulationSettings,
    costs: CostRows,
    clock: Executor,
    is_open: Callable[[int], bool] | None = None,
) -> PolicySetting:
    """Return what a policy is made of; `is_open` says of requests whether they have not ended."""
    graphs: dict[str, TaskGraph] = {}
    levels_us: dict[WorkKey, float] = {}
    for application in settings.applications:
        levels_us |= static_levels_us(application.tasks, costs)
        graphs[application.name] = TaskGraph(
            *(application.name, application.tasks, settings.processors),
            *(settings.times_us, settings.transfers_us),
        )

    def wake(at_us: float) -> None:
        clock.set_timer(at_us, "planned start")

    return PolicySetting(costs, settings.seed, levels_us, graphs, wake, is_open)
