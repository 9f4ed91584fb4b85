"""Static schedules as a policy: the plan is kept, jobs share gaps, nothing is stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.event_loop import EventLoop
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.request import Request
from nnstretch.schedule.request_scheduler import RequestScheduler
from nnstretch.schedule.static_schedules.insertion import (
    PlaceAll,
    cpop,
    heft,
    peft,
    place_by_cpop,
    place_by_heft,
    place_by_peft,
)
from nnstretch.schedule.static_schedules.planned_jobs import PlannedJobs
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.testing.strategies import costed_task_graphs
from nnstretch.trace import Span, Trace

DATA = Path(__file__).parents[1] / "data" / "task_graphs"
TOPCUOGLU = read_task_graph(DATA / "topcuoglu2002.json")
RULES = {place_by_heft: heft, place_by_cpop: cpop, place_by_peft: peft}


def instance(graph: TaskGraph, number: int) -> tuple[Task, ...]:
    tasks = []
    for task in graph.tasks:
        needs = frozenset(f"{need}#{number}" for need in task.needs)
        tasks.append(replace(task, name=f"{task.name}#{number}", needs=needs, request=number))
    return tuple(tasks)


def run(
    graph: TaskGraph,
    arrivals_us: Sequence[float],
    place_all: PlaceAll = place_by_heft,
    factor: float = 1.0,
    withdrawn: Sequence[int] = (),
    wakes: bool = True,
) -> Trace:
    """Let instances of a graph arrive; durations are `factor` times what the policy believes."""
    durations = {key: cost_us * factor for key, cost_us in graph.cost_us.items()}
    clock = VirtualExecutor(graph.processors, durations)
    costs = CostRows(
        graph.processors, TaskCosts(graph.cost_us), transfers_us=graph.transfer_us or None
    )

    def wake(at_us: float) -> None:
        clock.set_timer(at_us, "wake")

    policy = PlannedJobs(costs, {"": graph}, place_all, wake if wakes else None)
    loop = EventLoop(graph.processors, policy, clock, costs, Queueing.UNBOUNDED)
    for number, at_us in enumerate(arrivals_us):
        clock.set_timer(at_us, number)
    spans: list[Span] = []
    while (event := clock.wait()) is not None:
        if isinstance(event, Span):
            spans.append(event)
            loop.end(event)
        elif isinstance(event.tag, int):  # type: ignore[union-attr]
            tasks = instance(graph, event.tag)  # type: ignore[union-attr]
            loop.add(tasks)
        if not clock.more():
            loop.dispatch()
            for number in withdrawn:
                loop.withdraw([task.name for task in instance(graph, number)])
    assert set(loop.unfinished()) == set()
    return Trace(tuple(spans))


def faults(trace: Trace, graph: TaskGraph, arrivals_us: Sequence[float], exact: bool) -> object:
    tasks: list[Task] = []
    arrived: dict[str, float] = {}
    for number, at_us in enumerate(arrivals_us):
        for task in instance(graph, number):
            tasks.append(task)
            arrived[task.name] = at_us
    whole = replace(graph, tasks=tuple(tasks))
    return schedule_faults(trace, whole, arrived, exact=exact)


@pytest.mark.parametrize("place_all", RULES)
def test_one_job_runs_as_planned(place_all: PlaceAll) -> None:
    planned = {(s.task.name, s.processor, s.start_us) for s in RULES[place_all](TOPCUOGLU).spans}
    trace = run(TOPCUOGLU, [0.0], place_all)
    ran = {(s.task.name.removesuffix("#0"), s.processor, s.start_us) for s in trace.spans}
    assert ran == planned


def test_a_second_job_at_10_goes_into_the_gaps_of_the_first() -> None:
    trace = run(TOPCUOGLU, [0.0, 10.0])
    assert max(span.end_us for span in trace.spans) == 109
    assert max(span.end_us for span in trace.spans if span.task.request == 0) == 80
    assert faults(trace, TOPCUOGLU, [0.0, 10.0], exact=True) == ()


@settings(max_examples=60, deadline=None)
@given(graph=costed_task_graphs(max_tasks=8), rule=st.sampled_from(list(RULES)))
def test_any_job_alone_ends_when_its_static_schedule_does(graph: TaskGraph, rule: PlaceAll) -> None:
    # Tasks that take no time end at the instant of the decision, and may be overtaken by it.
    graph = replace(graph, cost_us={key: cost_us + 1 for key, cost_us in graph.cost_us.items()})
    planned = RULES[rule](graph)
    assert run(graph, [0.0], rule).makespan_us == pytest.approx(planned.makespan_us)


@pytest.mark.parametrize("place_all", RULES)
def test_a_task_that_ends_early_lets_the_next_begin(place_all: PlaceAll) -> None:
    cpu = replace(TOPCUOGLU.processors[0], name="cpu")
    tasks = tuple(
        replace(TOPCUOGLU.tasks[number], name=name, subgraph=name, needs=frozenset(needs))
        for number, (name, needs) in enumerate({"a": "", "b": "a", "c": "b"}.items())
    )
    costs = {(task.work, "cpu"): 10.0 for task in tasks}
    chain = replace(TOPCUOGLU, tasks=tasks, processors=(cpu,), cost_us=costs, transfer_us={})
    assert run(chain, [0.0], place_all, factor=0.5).makespan_us == 15.0


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    graph=costed_task_graphs(max_tasks=6),
    gaps=st.lists(st.integers(0, 800), min_size=1, max_size=5),
    factor=st.sampled_from([0.5, 1.0, 1.0, 1.7]),
    wakes=st.booleans(),
)
def test_jobs_that_arrive_any_time_become_a_schedule_whatever_they_really_take(
    graph: TaskGraph, gaps: list[int], factor: float, wakes: bool
) -> None:
    arrivals = [float(sum(gaps[: number + 1])) for number in range(len(gaps))]
    trace = run(graph, arrivals, factor=factor, wakes=wakes)
    assert faults(trace, graph, arrivals, exact=factor == 1.0) == ()


@settings(max_examples=40, deadline=None)
@given(graph=costed_task_graphs(max_tasks=6))
def test_a_withdrawn_job_holds_no_other(graph: TaskGraph) -> None:
    trace = run(graph, [0.0, 5.0, 7.0], withdrawn=[1])
    ended = {span.task.name for span in trace.spans}
    for number in (0, 2):
        assert ended >= {task.name for task in instance(graph, number)}


def test_the_time_of_a_cancelled_job_is_free_for_the_next() -> None:
    processors = Processor("fast", "cpu", 2), Processor("slow", "gpu", 2)
    first = (Task("a", "a", plan="long"), Task("b", "b", frozenset({"a"}), plan="long"))
    then = (Task("c", "c", plan="short"),)
    cost_us = {
        (("long", "a"), "fast"): 10.0,
        (("long", "a"), "slow"): 1000.0,
        (("long", "b"), "fast"): 100.0,
        (("long", "b"), "slow"): 10000.0,
        (("short", "c"), "fast"): 10.0,
        (("short", "c"), "slow"): 60.0,
    }
    graphs = {}
    for name, tasks in (("long", first), ("short", then)):
        own_us = {key: us for key, us in cost_us.items() if key[0][0] == name}
        graphs[name] = TaskGraph(name, tasks, processors, own_us, {})
    clock, costs = VirtualExecutor(processors, cost_us), CostRows(processors, TaskCosts(cost_us))
    policy = PlannedJobs(
        *(costs, graphs, place_by_heft, lambda at_us: clock.set_timer(at_us, "")),
        is_open=lambda number: scheduler.is_open(number),
    )
    spans: list[Span] = []
    scheduler = RequestScheduler(
        *(processors, policy, clock, lambda request: None, cost_us, spans.append),
        costs=costs,
        queueing=Queueing.UNBOUNDED,
        placed=False,
    )
    scheduler.submit(Request(1, instance(graphs["long"], 1)))
    clock.set_timer(5.0, "cancel")
    clock.set_timer(6.0, "arrive")
    while (tag := scheduler.step()) is not None:
        if tag == "cancel":
            scheduler.cancel(1)
        if tag == "arrive":
            scheduler.submit(Request(2, instance(graphs["short"], 2)))
    assert [(s.task.name, s.processor, s.start_us, s.end_us) for s in spans] == [
        ("a#1", "fast", 0.0, 10.0),
        ("c#2", "fast", 10.0, 20.0),
    ]
