"""The proven optimum: the published one, and its place between bounds and heuristics."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadInput
from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.schedule.static_schedules.optimal import optimal, ticks_per_us
from nnstretch.schedule.static_schedules.table import STATIC_POLICIES
from nnstretch.schedule.task_graphs.lower_bounds import lower_bounds
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph, topological_order
from nnstretch.testing.strategies import costed_task_graphs

DATA = Path(__file__).parents[1] / "data" / "task_graphs"
TOPCUOGLU = read_task_graph(DATA / "topcuoglu2002.json")


def test_the_published_graph_has_an_optimum_of_73() -> None:
    pytest.importorskip("ortools")
    proven = optimal(TOPCUOGLU)
    assert proven.trace.makespan_us == proven.lower_bound_us == 73
    assert schedule_faults(proven.trace, TOPCUOGLU, exact=True) == ()


@pytest.mark.parametrize("unit", [1e-300, 1e-9, 1e-6 / 7, 1e7])
def test_the_optimum_is_proven_in_any_unit(unit: float) -> None:
    pytest.importorskip("ortools")
    costs_us = {key: us * unit for key, us in TOPCUOGLU.cost_us.items()}
    moves_us = {key: us * unit for key, us in TOPCUOGLU.transfer_us.items()}
    graph = replace(TOPCUOGLU, cost_us=costs_us, transfer_us=moves_us)
    proven = optimal(graph)
    assert proven.trace.makespan_us == proven.lower_bound_us == pytest.approx(73 * unit, abs=0)
    assert schedule_faults(proven.trace, graph, exact=True) == ()


def test_a_rule_that_ends_at_a_bound_needs_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    graph = read_task_graph(DATA / "fpppp.stg", "8")
    assert optimal(graph).trace.makespan_us == 1062


def test_without_the_solver_the_refusal_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(BadInput, match=r"pip install 'nnstretch\[optimal\]'"):
        optimal(TOPCUOGLU)


NEEDS_BOTH = TaskGraph(
    "needs both",
    (Task("a", "a"), Task("b", "b"), Task("c", "c", frozenset({"a", "b"}))),
    tuple(Processor(name, name, 1) for name in ("p0", "p1")),
    {("a", "p0"): 1.0, ("b", "p0"): 1.0, ("c", "p0"): 3.0, ("c", "p1"): 1.0},
    {},
)


def test_what_ends_soonest_on_two_processors_is_proven() -> None:
    """OR-Tools 9.15 said that this model has no solution."""
    pytest.importorskip("ortools")
    proven = optimal(NEEDS_BOTH)
    assert proven.trace.makespan_us == proven.lower_bound_us == 3.0


def test_a_solver_that_finds_no_schedule_where_there_is_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    monkeypatch.setattr(cp_model.CpSolver, "solve", lambda *_: cp_model.INFEASIBLE)
    with pytest.raises(BadInput, match=r"OR-Tools [\d.]+ finds no schedule where there is one"):
        optimal(NEEDS_BOTH)


@pytest.mark.parametrize(("slow_us", "far_us"), [(1e15, 1e15), (4.0, 1e15), (1e15, 2.0)])
def test_times_far_beyond_the_best_schedule_are_no_trouble(slow_us: float, far_us: float) -> None:
    pytest.importorskip("ortools")
    costs = {"a": (3.123456, slow_us), "b": (2.5, 2.7), "c": (2.1, 3.3), "d": (1.7, 1.9)}
    names = ("p0", "p1")
    graph = TaskGraph(
        "far",
        tuple(Task(name, name, frozenset({"b"} if name == "d" else ())) for name in costs),
        tuple(Processor(name, name, 1) for name in names),
        {(task, name): us for task in costs for name, us in zip(names, costs[task], strict=True)},
        {("b", "d"): far_us},
    )
    proven = optimal(graph)
    assert proven.trace.makespan_us == pytest.approx(proven.lower_bound_us)
    assert proven.trace.makespan_us < 8
    assert schedule_faults(proven.trace, graph, exact=True) == ()


def test_when_the_time_is_over_the_bound_stays_a_bound() -> None:
    pytest.importorskip("ortools")
    graph = read_task_graph(DATA / "robot.stg", "4")
    proven = optimal(graph, time_limit_s=0.05)
    assert lower_bounds(graph).us <= proven.lower_bound_us < proven.trace.makespan_us <= 677
    assert schedule_faults(proven.trace, graph, exact=True) == ()


def brute_force_us(graph: TaskGraph) -> float:
    """Try every order and every placement of a few tasks."""
    tasks = topological_order(graph.tasks)
    names = [processor.name for processor in graph.processors]
    best_us = float("inf")
    for order in permutations(tasks):
        position = {task.name: number for number, task in enumerate(order)}
        if any(position[need] > position[task.name] for task in order for need in task.needs):
            continue
        for places in product(names, repeat=len(order)):
            free_us = dict.fromkeys(names, 0.0)
            ended: dict[str, tuple[float, str, object]] = {}
            for task, place in zip(order, places, strict=True):
                start_us = free_us[place]
                for need in task.needs:
                    end_us, where, work = ended[need]
                    moved_us = graph.transfer_us.get((work, task.work), 0.0)  # type: ignore[call-overload]
                    start_us = max(start_us, end_us + (moved_us if where != place else 0.0))
                cost_us = graph.cost_us.get((task.work, place), float("inf"))
                free_us[place] = start_us + cost_us
                ended[task.name] = (free_us[place], place, task.work)
            best_us = min(best_us, max(free_us.values()))
    return best_us


@settings(max_examples=25, deadline=None)
@given(graph=costed_task_graphs(max_tasks=4))
def test_the_optimum_is_that_of_brute_force(graph: TaskGraph) -> None:
    pytest.importorskip("ortools")
    proven = optimal(graph, 10.0)
    assert proven.trace.makespan_us == proven.lower_bound_us == brute_force_us(graph)
    assert schedule_faults(proven.trace, graph, exact=True) == ()


@settings(max_examples=25, deadline=None)
@given(graph=costed_task_graphs(max_tasks=9))
def test_heuristics_are_not_below_the_optimum_nor_that_below_the_bounds(graph: TaskGraph) -> None:
    pytest.importorskip("ortools")
    proven = optimal(graph, 10.0)
    assert lower_bounds(graph).us <= proven.lower_bound_us * (1 + 1e-9)
    for policy in STATIC_POLICIES.values():
        trace = policy.make(graph)
        end_us = max(span.end_us for span in trace.spans)
        assert proven.lower_bound_us <= end_us


@given(st.lists(st.decimals(0, 1000, places=3).map(float), min_size=1))
def test_times_with_three_decimals_are_counted_exactly(times_us: list[float]) -> None:
    ticks = ticks_per_us(times_us, 1e6)
    assert ticks <= 1000
    for time_us in times_us:
        assert round(time_us * ticks) == pytest.approx(time_us * ticks, abs=1e-9)


def test_tasks_too_short_for_the_solver_to_count_keep_their_order() -> None:
    pytest.importorskip("ortools")
    short = (Task("first", "first"), Task("second", "second", frozenset({"first"})))
    costs = {("first", "P1"): 1e-7, ("second", "P2"): 0.0}
    graph = replace(
        TOPCUOGLU, tasks=TOPCUOGLU.tasks + short, cost_us={**TOPCUOGLU.cost_us, **costs}
    )
    proven = optimal(graph)
    assert schedule_faults(proven.trace, graph, exact=True) == ()
