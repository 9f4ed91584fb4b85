"""Static schedules: published numbers, and what holds for the schedule of any task graph."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings

from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.schedule.static_schedules.insertion import (
    critical_path,
    critical_path_priorities_us,
    critical_path_processor,
    heft,
)
from nnstretch.schedule.static_schedules.partial_schedule import list_order
from nnstretch.schedule.static_schedules.ranks import (
    downward_ranks_us,
    optimistic_costs_us,
    upward_ranks_us,
)
from nnstretch.schedule.static_schedules.table import STATIC_POLICIES
from nnstretch.schedule.task_graphs.indexed_graph import index_graph
from nnstretch.schedule.task_graphs.lower_bounds import lower_bounds
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph
from nnstretch.testing.strategies import costed_task_graphs
from nnstretch.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "task_graphs"
GRAPH = read_task_graph(DATA / "topcuoglu2002.json")
EXPECTED: dict[str, Any] = json.loads((DATA / "topcuoglu2002.json").read_text())["expected"]
INDEXED = index_graph(GRAPH)
NAMES = [task.name for task in GRAPH.tasks]
MAKESPANS = {
    "heft": 80,
    "cpop": 86,
    "peft": 85,
    "min_min": 76,
    "max_min": 97,
    "etf_start": 93,
    "mct": 88,
    "met_static": 82,
    "olb": 114,
}


def placed(trace: Trace) -> set[tuple[str, str, float, float]]:
    return {(s.task.name, s.processor, s.start_us, s.end_us) for s in trace.spans}


def test_every_policy_of_the_table_has_a_published_or_recomputed_makespan() -> None:
    assert MAKESPANS.keys() == STATIC_POLICIES.keys()


@pytest.mark.parametrize("name", MAKESPANS)
def test_makespans_of_the_published_graph(name: str) -> None:
    assert STATIC_POLICIES[name].make(GRAPH).makespan_us == MAKESPANS[name]


@pytest.mark.parametrize("name", ["heft", "cpop", "peft"])
def test_the_published_schedules_in_every_number(name: str) -> None:
    rows = EXPECTED[name]["schedule"]
    published = {(r["task"], r["processor"], r["start"], r["finish"]) for r in rows}
    assert placed(STATIC_POLICIES[name].make(GRAPH)) == published


def test_the_example_of_peft_in_every_number() -> None:
    path = DATA / "arabnejad2014.json"
    graph = read_task_graph(path)
    expected: dict[str, Any] = json.loads(path.read_text())["expected"]
    rows = expected["peft"]["schedule"]
    published = {(r["task"], r["processor"], r["start"], r["finish"]) for r in rows}
    assert placed(STATIC_POLICIES["peft"].make(graph)) == published
    table = optimistic_costs_us(index_graph(graph))
    assert table == [list(row.values()) for row in expected["peft"]["oct"].values()]
    assert STATIC_POLICIES["heft"].make(graph).makespan_us == expected["heft"]["makespan"]


def by_name(values: list[float]) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=True))


def test_ranks_and_the_optimistic_cost_table_are_the_published_ones() -> None:
    assert by_name(upward_ranks_us(INDEXED)) == pytest.approx(EXPECTED["rank_u"])
    assert by_name(downward_ranks_us(INDEXED)) == pytest.approx(EXPECTED["rank_d"])
    priorities = critical_path_priorities_us(INDEXED)
    assert by_name(priorities) == pytest.approx(EXPECTED["cpop"]["priority"])
    table = optimistic_costs_us(INDEXED)
    for name, row in zip(NAMES, table, strict=True):
        assert row == list(EXPECTED["peft"]["oct"][name].values())
    ranks = [sum(row) / len(row) for row in table]
    assert by_name(ranks) == pytest.approx(EXPECTED["peft"]["rank_oct"])


def test_orders_and_the_critical_path_are_the_published_ones() -> None:
    def order(priority: list[float]) -> list[str]:
        return [NAMES[task] for task in list_order(INDEXED, priority)]

    assert order(upward_ranks_us(INDEXED)) == EXPECTED["heft"]["order"]
    priorities = critical_path_priorities_us(INDEXED)
    assert order(priorities) == EXPECTED["cpop"]["order"]
    ranks = [sum(row) / len(row) for row in optimistic_costs_us(INDEXED)]
    assert order(ranks) == EXPECTED["peft"]["order"]
    path = critical_path(INDEXED, priorities)
    assert [NAMES[task] for task in path] == EXPECTED["cpop"]["critical_path"]
    home = critical_path_processor(INDEXED, frozenset(path))
    assert GRAPH.processors[home].name == EXPECTED["cpop"]["critical_processor"]


def test_bounds_of_the_published_graph() -> None:
    assert lower_bounds(GRAPH).critical_path_us == EXPECTED["cp_min"]


def occupied_by(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    intervals: dict[str, list[tuple[float, float]]] = {}
    for span in trace.spans:
        intervals.setdefault(span.processor, []).append((span.start_us, span.end_us))
    return intervals


def test_the_same_graph_once_more_is_planned_into_the_gaps() -> None:
    second = heft(GRAPH, occupied_by(heft(GRAPH)), 10.0)
    assert max(span.end_us for span in second.spans) == EXPECTED["second_job_at_10"]["finish"]
    assert min(span.start_us for span in second.spans) >= 10.0


STANDARD = [
    *[("robot", count) for count in (2, 3, 4, 5, 6, 8, 12, 16)],
    *[("fpppp", count) for count in (2, 3, 4, 5, 6, 8, 12, 16)],
    *[("sparse", count) for count in (2, 3, 4, 6, 8, 12, 16)],
]


@pytest.mark.parametrize(("name", "count"), STANDARD)
def test_standard_task_graphs_end_within_a_tenth_of_their_bounds(name: str, count: int) -> None:
    graph = read_task_graph(DATA / f"{name}.stg", str(count))
    trace = heft(graph)
    assert schedule_faults(trace, graph, exact=True) == ()
    bounds = lower_bounds(graph)
    assert bounds.us <= trace.makespan_us <= 1.1 * bounds.us


@pytest.mark.parametrize(("name", "count", "makespan"), [("fpppp", 8, 1062), ("robot", 6, 569)])
def test_standard_task_graphs_end_at_their_critical_path(
    name: str, count: int, makespan: float
) -> None:
    graph = read_task_graph(DATA / f"{name}.stg", str(count))
    assert heft(graph).makespan_us == lower_bounds(graph).critical_path_us == makespan


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC_POLICIES)
@settings(max_examples=60, deadline=None)
@given(graph=costed_task_graphs())
def test_any_task_graph_becomes_a_schedule(name: str, graph: TaskGraph) -> None:
    trace = STATIC_POLICIES[name].make(graph)
    assert schedule_faults(trace, graph, exact=True) == ()
    assert max(span.end_us for span in trace.spans) >= lower_bounds(graph).us - 1e-9
    assert STATIC_POLICIES[name].make(graph) == trace


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(first=costed_task_graphs(), second=costed_task_graphs())
def test_a_second_job_takes_only_gaps(first: TaskGraph, second: TaskGraph) -> None:
    before = heft(first)
    occupied = occupied_by(before)
    after = heft(second, occupied, 100.0)
    arrivals = {task.name: 100.0 for task in second.tasks}
    assert schedule_faults(after, second, arrivals, exact=True) == ()
    for span in after.spans:
        for start_us, end_us in occupied.get(span.processor, ()):
            assert span.end_us <= start_us or end_us <= span.start_us


@pytest.mark.slow
def test_ten_thousand_tasks_take_heft_less_than_two_seconds() -> None:
    draw = Random(0)
    processors = tuple(Processor(f"p{number}", "cpu", 1) for number in range(8))
    tasks: list[Task] = []
    costs: dict[tuple[WorkKey, str], float] = {}
    for number in range(10_000):
        earlier = range(max(number - 1000, 0), number)
        needs = [f"t{need}" for need in draw.sample(earlier, min(3, len(earlier)))]
        tasks.append(Task(f"t{number}", f"t{number}", frozenset(needs)))
        for processor in processors:
            costs[f"t{number}", processor.name] = draw.uniform(1, 100)
    graph = TaskGraph("large", tuple(tasks), processors, costs)
    began = process_time()
    trace = heft(graph)
    assert process_time() - began < 2.0
    assert schedule_faults(trace, graph, exact=True) == ()


def test_of_many_sets_of_processors_those_with_most_work_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, random = [f"p{n}" for n in range(8)], Random(1)
    tasks = tuple(Task(f"t{n}", f"t{n}", frozenset()) for n in range(60))
    costs: dict[tuple[WorkKey, str], float] = {("t0", "p0"): 500.0}
    for task in tasks[1:]:
        for name in random.sample(names, random.randint(1, 8)):
            costs[task.name, name] = random.uniform(1, 9)
    graph = TaskGraph("sets", tasks, tuple(Processor(n, n, 1) for n in names), costs)
    all_us = lower_bounds(graph).work_us
    assert all_us > 500  # of what only p0 can run
    monkeypatch.setattr("nnstretch.schedule.task_graphs.lower_bounds.MOST_PAIRS", 200)
    assert 500 <= lower_bounds(graph).work_us <= all_us
    monkeypatch.setattr("nnstretch.schedule.task_graphs.lower_bounds.MOST_PAIRS", 1)
    assert 0 < lower_bounds(graph).work_us < 500
