"""Forecasts of when tasks end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.schedule import (
    StaticPlacement,
    VirtualExecutor,
    critical_path_us,
    duration_as_placed,
    run_tasks,
)
from nnstretch.schedule.finish_times import TaskCosts, finish_times
from nnstretch.soc import Processor
from nnstretch.task import Task

NAMES = ("cpu", "gpu", "dsp")
DEEP = tuple(Processor(name, name, 64) for name in NAMES)


@st.composite
def placed_tasks(draw: st.DrawFn) -> tuple[tuple[Task, ...], dict[tuple[str, str], float]]:
    """A random DAG of placed tasks, and the time of each; no two ends are equal."""
    tasks: list[Task] = []
    times_us: dict[tuple[str, str], float] = {}
    for number in range(draw(st.integers(0, 12))):
        before = [task.name for task in tasks]
        needs = draw(st.frozensets(st.sampled_from(before), max_size=3)) if before else frozenset()
        task = Task(f"t{number}", f"g{number}", needs, draw(st.sampled_from(NAMES)))
        tasks.append(task)
        times_us[task.subgraph, task.processor or ""] = 2.0**number * draw(st.integers(1, 3))
    return tuple(tasks), times_us


def brute_force_us(
    tasks: tuple[Task, ...], cost_us: dict[str, float], free_us: dict[str, float], now_us: float
) -> dict[str, float]:
    """One task after another: of those whose needs have an end, that which is ready first."""
    ends_us: dict[str, float] = {}
    free_us = dict(free_us)
    while len(ends_us) < len(tasks):
        ready = [t for t in tasks if t.name not in ends_us and t.needs <= ends_us.keys()]
        at_us = [max([now_us, *(ends_us[need] for need in task.needs)]) for task in ready]
        task = ready[at_us.index(min(at_us))]
        processor = task.processor or ""
        start_us = max(min(at_us), free_us.get(processor, now_us))
        ends_us[task.name] = free_us[processor] = start_us + cost_us[task.name]
    return ends_us


@pytest.mark.slow
@given(placed_tasks(), st.fixed_dictionaries({name: st.floats(100, 1000) for name in NAMES}))
def test_processors_take_tasks_in_the_order_in_which_they_become_ready(
    case: tuple, free_us: dict[str, float]
) -> None:
    tasks, times_us = case
    cost_us = {task.name: TaskCosts(times_us).us(task) for task in tasks}
    expected = brute_force_us(tasks, cost_us, free_us, 100.0)
    assert finish_times(tasks, cost_us, free_us, 100.0) == expected


@pytest.mark.slow
@given(placed_tasks())
def test_it_forecasts_what_the_virtual_clock_plays(case: tuple) -> None:
    tasks, times_us = case
    trace = run_tasks(tasks, StaticPlacement(NAMES), VirtualExecutor(DEEP, times_us))
    cost_us = {task.name: TaskCosts(times_us).us(task) for task in tasks}
    played = {span.task.name: span.end_us for span in trace.spans}
    assert max(finish_times(tasks, cost_us).values(), default=0.0) == pytest.approx(
        max(played.values(), default=0.0)
    )


@pytest.mark.slow
@given(placed_tasks())
def test_without_processors_only_needs_count(case: tuple) -> None:
    tasks, times_us = case
    ends_us: dict[str, float] = {}
    for task in tasks:
        before_us = max((ends_us[need] for need in task.needs), default=0.0)
        ends_us[task.name] = before_us + times_us[task.subgraph, task.processor or ""]
    path_us = critical_path_us(tasks, duration_as_placed(times_us))
    assert path_us == max(ends_us.values(), default=0.0)


def test_needs_outside_have_ended_or_end_when_it_is_said() -> None:
    tasks = (Task("a", "a", frozenset({"x"}), "cpu"), Task("b", "b", frozenset({"y"}), "gpu"))
    ends_us = finish_times(tasks, {"a": 5.0, "b": 5.0}, {"gpu": 30.0}, 10.0, {"x": 20.0})
    assert ends_us == {"a": 25.0, "b": 35.0}


def test_what_nobody_predicted_never_ends_and_what_takes_no_time_is_never_late() -> None:
    costs = TaskCosts({("free", "cpu"): 0.0}, {("free", "cpu"): 3.0})
    assert costs.us(Task("a", "free", processor="cpu"), float("inf")) == 3.0
    assert costs.us(Task("a", "unknown", processor="cpu")) == float("inf")
