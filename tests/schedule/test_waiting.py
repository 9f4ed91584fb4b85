"""Waiting tasks against a plain list, which is slow and cannot be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.policies.waiting import (
    MOST_STALE,
    CheapestFirst,
    FirstInFirstOut,
    LeastKeyFirst,
)
from nnstretch.schedule.slowdown import SlowdownEstimator
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.trace import Span

MASKS = {"both": 3, "first": 1, "second": 2}
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "add", "remove", "take")), st.integers(0, 5)), max_size=40
)


def states(open_mask: int) -> tuple[ProcessorState, ...]:
    return tuple(
        ProcessorState(Processor(f"p{n}", "cpu", 1), n, bool(open_mask >> n & 1)) for n in range(2)
    )


def cost_rows() -> CostRows:
    """Return costs of three kinds on two processors: one can run on both, others on one alone."""
    times_us: dict[tuple[WorkKey, str], float] = {}
    for number, (kind, mask) in enumerate(MASKS.items()):
        for index in range(2):
            if mask >> index & 1:
                times_us[kind, f"p{index}"] = 10.0 + 10 * number
    processors = tuple(state.processor for state in states(3))
    return CostRows(processors, TaskCosts(times_us), SlowdownEstimator(1.0, 1.0))


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_first_in_first_out_takes_what_a_list_would_take(steps: list[tuple[str, int]]) -> None:
    queue, listed, added = FirstInFirstOut(lambda task: MASKS[task.subgraph]), list[Task](), 0
    for verb, number in steps:
        if verb == "add":
            task = Task(f"t{added % 7}", list(MASKS)[number % 3])
            if task.name not in [waiting.name for waiting in listed]:
                queue.add(task)
                listed.append(task)
            added += 1
        elif verb == "remove" and listed:
            queue.withdraw(listed.pop(number % len(listed)))
        elif verb == "take":
            can_run = [task for task in listed if MASKS[task.subgraph] & number & 3]
            expected = can_run[0] if can_run else None
            taken = queue.take(states(number & 3))
            assert taken == (None if expected is None else (expected, MASKS[expected.subgraph]))
            if expected is not None:
                listed.remove(expected)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_least_key_first_takes_what_a_sorted_list_would_take(steps: list[tuple[str, int]]) -> None:
    queue, listed, added = LeastKeyFirst(), list[tuple[float, int, Task]](), 0
    for verb, number in steps:
        if verb == "add":
            task = Task(f"t{added % 7}", list(MASKS)[number % 3])
            if task.name not in [waiting.name for _, _, waiting in listed]:
                queue.add(task, float(number // 2), MASKS[task.subgraph])
                listed.append((float(number // 2), added, task))
            added += 1
        elif verb == "remove" and listed:
            queue.withdraw(listed.pop(number % len(listed))[2])
        elif verb == "take":
            can_run = [entry for entry in sorted(listed) if MASKS[entry[2].subgraph] & number & 3]
            assert queue.take(states(number & 3)) == (can_run[0][2] if can_run else None)
            if can_run:
                listed.remove(can_run[0])


@pytest.mark.parametrize("by_key", [False, True])
def test_what_was_withdrawn_does_not_stay_for_ever(by_key: bool) -> None:
    in_order, by_least_key = FirstInFirstOut(lambda _task: 3), LeastKeyFirst()
    queue: FirstInFirstOut | LeastKeyFirst = by_least_key if by_key else in_order

    def add(task: Task, key: float) -> None:
        if by_key:
            by_least_key.add(task, key, 3)
        else:
            in_order.add(task)

    first = Task("first", "both")
    add(first, 0.0)
    for number in range(10 * MOST_STALE):
        task = Task(f"t{number % 3}", "both")
        add(task, 1.0)
        queue.withdraw(task)
    assert sum(map(len, queue._groups.values())) <= 2 * MOST_STALE
    assert queue.take(states(3)) == (first if by_key else (first, 3))
    assert queue.take(states(3)) is None


@pytest.mark.parametrize("corrected", [False, True])
def test_behind_a_task_that_waits_for_ever_nothing_piles_up(corrected: bool) -> None:
    costs = cost_rows()
    queue = CheapestFirst(costs)
    queue.add(Task("waits", "first"))
    long = Task("long", "both")
    queue.add(long)
    for number in range(10 * MOST_STALE):
        if corrected:
            costs.observe(costs.of(long), Span(0.0, 11.0 + number % 5, long, "p1"), 1)
        task = Task(f"t{number}", "both")
        queue.add(task)
        queue.remove(task if corrected else long)
        long = long if corrected else task
    assert max(map(len, queue._heaps)) <= 2 * MOST_STALE
    cheapest = queue.cheapest(1)
    assert cheapest is not None
    assert queue.take(cheapest[2]) == long
