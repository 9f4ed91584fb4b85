"""Which task runs where and when: the one loop, its policies and executors.

task_graph.py         manifest/trial -> tasks and costs
event_loop.py         give waiting tasks to processors until done
finish_times.py       what tasks cost, and when they end if nothing goes wrong
request.py            a request, its end, and the deadlines of several
request_scheduler.py  requests with deadlines, cancellation, failover
slowdown.py           how much slower than predicted each processor is
plan_selection.py     which plan to use now
multi_plan.py         several plans behind one scheduler
rebalancing.py        move ready tasks off slow processors
disturbances.py       injected interference and outages
elide.py              drop no-op tasks from a task graph
pipeline_graph.py     pipeline dependencies and windows
meeting_waits.py      who waits at a meeting point
cpu_affinity.py       pinning, spinning, precise sleep
timeout.py            one timeout over several waits
loop/                 what the loop keeps of tasks and processors
costs/                what tasks are expected to cost on each processor
task_graphs/          what holds for every schedule of a task graph
static_schedules/     HEFT and its kin, made before anything runs
policies/             which waiting task goes to which processor now
simulation/           task graphs and workloads on the virtual clock
executors/            virtual clock, threads, static orders
"""

from nnstretch.schedule.disturbances import Disturbances, Interference, Outage
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.static_order import StaticOrderRunner, static_order
from nnstretch.schedule.executors.threads import ThreadExecutor
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.finish_times import critical_path_us, duration_as_placed
from nnstretch.schedule.policies.static_placement import StaticPlacement
from nnstretch.schedule.request import Request
from nnstretch.schedule.request_scheduler import RequestScheduler
from nnstretch.schedule.task_graph import (
    enqueue_times_us,
    serialize,
    subgraph_tasks,
    task_durations_us,
    task_graph,
)

__all__ = [
    "Disturbances",
    "Interference",
    "Outage",
    "Request",
    "RequestScheduler",
    "StaticOrderRunner",
    "StaticPlacement",
    "ThreadExecutor",
    "VirtualExecutor",
    "critical_path_us",
    "duration_as_placed",
    "enqueue_times_us",
    "run_tasks",
    "serialize",
    "static_order",
    "subgraph_tasks",
    "task_durations_us",
    "task_graph",
]
