"""One task graph under a run-time policy, on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.finish_times import TaskCosts, finish_times
from nnstretch.schedule.loop.arrivals import Transfers
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.table import PolicySetting, find_policy
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes, WorkKey
from nnstretch.trace import Trace


def run_graph(
    tasks: Sequence[Task],
    processors: Sequence[Processor],
    times_us: TaskTimes,
    policy: str,
    *,
    transfers_us: Transfers | None = None,
    queueing: bool = True,
    seed: int = 0,
) -> Trace:
    """Run a task graph under a policy of the table; every task takes exactly what it costs.

    `times_us` is by work and processor, an absent pair cannot run; `transfers_us` by writer and
    reader, paid unless both are on one processor. With `queueing` a processor may be given any
    number of tasks, without only an idle one gets work.

    Raises UnknownName for an unknown policy, BadInput for a task that no processor can run.
    """
    entry = find_policy(policy)
    costs = CostRows(processors, TaskCosts(times_us), transfers_us=transfers_us)
    for task in tasks:
        costs.row(task)
    setting = PolicySetting(costs, seed, static_levels_us(tasks, costs))
    clock = VirtualExecutor(tuple(processors), times_us)
    how = Queueing.UNBOUNDED if queueing else Queueing.IDLE
    return run_tasks(tasks, entry.make(setting), clock, costs, how)


def static_levels_us(tasks: Sequence[Task], costs: CostRows) -> Mapping[WorkKey, float]:
    """Return the longest chain of mean costs from each task to an exit, us, by its work."""
    means_us: dict[str, float] = {}
    readers: dict[str, list[str]] = {task.name: [] for task in tasks}
    for task in tasks:
        finite = [cost_us for cost_us in costs.row(task) if isfinite(cost_us)]
        means_us[task.name] = sum(finite) / len(finite)
        for need in task.needs:
            readers.setdefault(need, []).append(task.name)
    levels_us: dict[WorkKey, float] = {}
    reversed_tasks = [Task(t.name, t.subgraph, frozenset(readers[t.name])) for t in tasks]
    for task in tasks:
        levels_us[task.work] = 0.0
    ends_us = finish_times(reversed_tasks, means_us)
    for task in tasks:
        levels_us[task.work] = max(levels_us[task.work], ends_us.get(task.name, 0.0))
    return levels_us
