"""The clock of a host whose processors slow each other: known answers, and the ideal one's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import UnknownName
from nnstretch.schedule import VirtualExecutor, run_tasks
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.executors.contended import ContendedExecutor, HostCosts, Slowing
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.policies.table import PolicySetting, find_policy
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

CORES = (Processor("a", "cpu", 2), Processor("b", "cpu", 2))


def contended(
    times_us: TaskTimes, beside: float = 1.0, host: HostCosts | None = None
) -> ContendedExecutor:
    return ContendedExecutor(
        CORES,
        lambda task, processor: times_us.get((task.work, processor)),
        Slowing(beside=lambda task, processor: beside),
        host or HostCosts(),
    )


def next_span(clock: ContendedExecutor) -> tuple[str, float, float]:
    event = clock.wait()
    assert isinstance(event, Span)
    return event.task.name, event.start_us, event.end_us


def test_tasks_slow_each_other_while_they_overlap() -> None:
    clock = contended({("x", "a"): 10.0, ("y", "b"): 10.0}, beside=2.0)
    clock.submit(Task("x", "x"), CORES[0])
    clock.set_timer(5.0, "later")
    assert clock.wait() == TimerEvent(5.0, "later")
    clock.submit(Task("y", "y"), CORES[1])
    assert next_span(clock) == ("x", 0.0, 15.0), "5 alone, then 5 at half the speed"
    assert next_span(clock) == ("y", 5.0, 20.0), "10 at half the speed, then 5 alone"
    assert clock.wait() is None


def test_deciding_handing_over_and_hearing_take_the_host_time() -> None:
    clock = contended({("x", "a"): 10.0, ("y", "a"): 10.0}, host=HostCosts(1.0, 2.0, 4.0))
    clock.submit(Task("x", "x"), CORES[0])
    clock.submit(Task("y", "y"), CORES[0])
    assert next_span(clock) == ("x", 3.0, 13.0)
    assert clock.now_us == 17.0
    assert next_span(clock) == ("y", 13.0, 23.0), "it lay there already: nothing to hand over"


def test_a_processor_that_came_to_rest_is_woken() -> None:
    host = HostCosts(handover_us=1.0, wake_us=7.0)
    clock = contended({("x", "a"): 10.0, ("x", "b"): 10.0}, host=host)
    clock.submit(Task("1", "x"), CORES[0])
    assert next_span(clock) == ("1", 7.0, 17.0)
    clock.submit(Task("2", "x"), CORES[0])
    assert next_span(clock) == ("2", 18.0, 28.0), "its thread has just ended the one before"
    clock.submit(Task("3", "x"), CORES[1])
    assert next_span(clock) == ("3", 35.0, 45.0), "nothing ever ran there"


def test_a_task_takes_longer_after_one_that_it_does_not_need() -> None:
    clock = ContendedExecutor(
        *(CORES, lambda task, processor: 10.0, Slowing(switched=lambda task, processor: 1.5))
    )
    ends_us = []
    for name, request, needs in (
        ("first of 1", 1, ()),
        ("second of 1", 1, ("first of 1",)),
        ("first of 2", 2, ()),
        ("third of 1", 1, ("second of 1",)),
        ("fourth of 1", 1, ("third of 1",)),
    ):
        clock.submit(Task(name, "x", frozenset(needs), request=request), CORES[0])
        ends_us.append(next_span(clock)[2])
    assert ends_us == [10, 20, 30, 45, 55], (
        "only the third of 1 finds the caches as another left them"
    )


def test_tasks_that_start_in_a_slow_moment_are_slow_together() -> None:
    slowing = Slowing(pace=lambda now_us: 3.0 if 10 <= now_us < 20 else 1.0)
    clock = ContendedExecutor(CORES, lambda task, processor: 10.0, slowing)
    for name, core in (("1", CORES[0]), ("2", CORES[0]), ("3", CORES[1])):
        clock.submit(Task(name, "x"), core)
    assert sorted(next_span(clock) for _ in range(3)) == [
        ("1", 0.0, 10.0),
        ("2", 10.0, 40.0),
        ("3", 0.0, 10.0),
    ]


def test_data_are_waited_for_and_an_unknown_time_fails() -> None:
    clock = contended({("x", "a"): 10.0})
    clock.submit(Task("x", "x"), CORES[0], 7.0)
    assert next_span(clock) == ("x", 7.0, 17.0)
    clock.submit(Task("z", "z"), CORES[0])
    event = clock.wait()
    assert isinstance(event, Failure)
    assert isinstance(event.error, UnknownName)


@pytest.mark.parametrize("policy", ["rr", "eft", "heft_rt"])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_host_at_no_cost_is_the_virtual_clock(policy: str, data: st.DataObject) -> None:
    tasks: list[Task] = []
    times_us = {}
    for number in range(data.draw(st.integers(1, 12))):
        needs = data.draw(st.sets(st.sampled_from([t.name for t in tasks]))) if tasks else set()
        tasks.append(Task(f"t{number}", f"t{number}", frozenset(needs)))
        for core in CORES:
            times_us[f"t{number}", core.name] = float(data.draw(st.integers(1, 20)))
    traces = []
    for clock in (VirtualExecutor(CORES, times_us), contended(times_us)):
        costs = CostRows(CORES, TaskCosts(times_us))
        chosen = find_policy(policy).make(PolicySetting(costs))
        traces.append(run_tasks(tasks, chosen, clock, costs).spans)
    assert sorted(map(str, traces[0])) == sorted(map(str, traces[1]))
