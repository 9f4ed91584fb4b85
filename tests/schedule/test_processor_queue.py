"""When a processor is expected to be free, whatever was taken back or came early or late."""

from __future__ import annotations

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


def give(queue: ProcessorQueue, number: int, cost_us: float, now_us: float) -> OpenTask:
    given = OpenTask(named_task(f"t#{number}"), number, None)
    queue.give(given, cost_us, 0.0, now_us)
    return given


def test_a_task_that_is_taken_back_is_subtracted_once() -> None:
    queue = queue_of()
    first, second, third = (
        give(queue, number, cost_us, 0.0) for number, cost_us in enumerate((10.0, 5.0, 5.0))
    )
    queue.take_back(second, 1.0)
    give(queue, 3, 5.0, 2.0)
    assert queue.state.free_us == 20.0
    queue.end(first, 10.0)
    queue.end(third, 15.0)
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
                queue.reserved.remove(task)
                queue.handed += 1
    lost = together.take_back_reserved(1.0)
    assert [task.task.name for task in lost] == [f"t#{n}" for n in range(handed, len(costs_us))]
    reserved = list(in_turns.reserved)
    for task in reserved if from_the_front else reversed(reserved):
        in_turns.take_back(task, 1.0)
    assert together.state.free_us == pytest.approx(in_turns.state.free_us)
    assert together.head_due_us == pytest.approx(in_turns.head_due_us)
    assert (together.count, list(together.reserved)) == (in_turns.count, [])
