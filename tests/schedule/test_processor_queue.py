"""When a processor is expected to be free, whatever was taken back or came early or late."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import named_task

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.loop.open_task import OpenTask
from nnstretch.schedule.loop.processor_queue import ProcessorQueue
from nnstretch.soc import Processor


def queue_of() -> ProcessorQueue:
    return ProcessorQueue(ProcessorState(Processor("dsp", "dsp", 1), 0), 1, float("inf"))


def give(
    queue: ProcessorQueue, number: int, cost_us: float, now_us: float, priority: int = 0
) -> OpenTask:
    given = OpenTask(replace(named_task(f"t#{number}"), priority=priority), number, None)
    queue.give(given, cost_us, 0.0, now_us)
    return given


def test_a_task_that_is_taken_back_is_subtracted_once() -> None:
    queue = queue_of()
    first, second, third = (
        give(queue, number, cost_us, 0.0) for number, cost_us in enumerate((10.0, 5.0, 5.0))
    )
    assert queue.hand_over() is first
    queue.take_back(second, 1.0)
    fourth = give(queue, 3, 5.0, 2.0)
    assert queue.state.free_us == 20.0
    queue.end(first, 10.0)
    assert queue.hand_over() is third
    queue.end(third, 15.0)
    assert queue.hand_over() is fourth
    assert queue.state.free_us == 20.0
    assert queue.head_due_us == 20.0


@given(st.integers(0, 1 << 30))
def test_it_is_free_when_all_that_was_given_and_kept_has_ended(seed: int) -> None:
    random, queue = Random(seed), queue_of()
    waiting = [give(queue, number, float(random.randint(1, 9)), 0.0) for number in range(8)]
    now_us = 0.0
    while waiting:
        if len(waiting) > 1 and random.random() < 0.4:
            queue.take_back(waiting.pop(random.randrange(1, len(waiting))), now_us)
        else:
            ended = waiting.pop(0)
            assert queue.hand_over() is ended
            now_us += ended.cost_us + random.randint(-2, 2) / 4
            queue.end(ended, now_us)
        expected_us = now_us + sum(each.cost_us for each in waiting)
        assert queue.state.free_us == pytest.approx(expected_us)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 8), st.booleans())
def test_what_is_reserved_is_taken_back_together_as_one_by_one(
    costs_us: list[int], handed: int, from_the_front: bool
) -> None:
    together, in_turns = queue_of(), queue_of()
    for number, cost_us in enumerate(costs_us):
        for queue in (together, in_turns):
            task = give(queue, number, cost_us / 7, 0.0)
            if number < handed:
                assert queue.hand_over() is task
    lost = together.take_back_reserved(1.0)
    assert [task.task.name for task in lost] == [f"t#{n}" for n in range(handed, len(costs_us))]
    reserved = list(in_turns._reserved[0].tasks)
    for task in reserved if from_the_front else reversed(reserved):
        in_turns.take_back(task, 1.0)
    assert together.state.free_us == pytest.approx(in_turns.state.free_us)
    assert together.head_due_us == pytest.approx(in_turns.head_due_us)
    assert (together.count, together.hand_over()) == (in_turns.count, None)


def test_the_greater_priority_starts_first_and_equal_ones_in_the_order_given() -> None:
    queue = queue_of()
    first = give(queue, 0, 10.0, 0.0)
    assert queue.hand_over() is first
    low, lower = give(queue, 1, 10.0, 0.0), give(queue, 2, 10.0, 0.0, priority=-1)
    high = give(queue, 3, 1.0, 1.0, priority=9)
    again = give(queue, 4, 1.0, 2.0, priority=9)
    assert queue.state.free_us == 32.0
    assert [queue.state.free_us_for(priority) for priority in (9, 1, 0, -1)] == [12, 12, 22, 32]
    now_us = 10.0
    queue.end(first, now_us)
    for task in (high, again, low, lower):
        assert queue.hand_over() is task
        now_us += task.cost_us
        assert queue.head_due_us == now_us
        queue.end(task, now_us)
        assert queue.state.free_us == 32.0
    assert not queue.state.has_lesser(100)


@given(st.integers(0, 1 << 30))
def test_it_is_free_when_all_has_ended_whatever_priorities_came(seed: int) -> None:
    random, queue = Random(seed), queue_of()
    running: OpenTask | None = None
    waiting: list[OpenTask] = []
    now_us = due_us = 0.0
    for number in range(30):
        draw = random.random()
        if draw < 0.5:
            cost_us, priority = float(random.randint(0, 9)), random.randint(0, 3)
            waiting.append(give(queue, number, cost_us, now_us, priority))
        elif draw < 0.6 and waiting:
            queue.take_back(waiting.pop(random.randrange(len(waiting))), now_us)
        elif running is not None:
            now_us = max(now_us, due_us + random.randint(-2, 2) / 4)
            queue.end(running, now_us)
            running = None
        if running is None and waiting:
            waiting.sort(key=lambda task: (-task.task.priority, task.number))
            running = waiting.pop(0)
            assert queue.hand_over() is running
            due_us = now_us + running.cost_us
            assert queue.head_due_us == pytest.approx(due_us)
        if running is not None:
            for priority in range(4):
                ahead = [task for task in waiting if task.task.priority >= priority]
                free_us = due_us + sum(task.cost_us for task in ahead)
                assert queue.state.free_us_for(priority) == pytest.approx(free_us)
            assert queue.state.free_us == pytest.approx(queue.state.free_us_for(0))
