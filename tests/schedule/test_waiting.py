"""Waiting tasks against a plain list, which is slow and cannot be wrong."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.policies.waiting import MOST_STALE, FirstInFirstOut
from nnstretch.soc import Processor
from nnstretch.task import Task

MASKS = {"both": 3, "first": 1, "second": 2}
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "add", "remove", "take")), st.integers(0, 5)), max_size=40
)


def states(open_mask: int) -> tuple[ProcessorState, ...]:
    return tuple(
        ProcessorState(Processor(f"p{n}", "cpu", 1), n, bool(open_mask >> n & 1)) for n in range(2)
    )


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


def test_what_was_withdrawn_does_not_stay_for_ever() -> None:
    queue = FirstInFirstOut(lambda _task: 1)
    first = Task("first", "g")
    queue.add(first)
    for number in range(10 * MOST_STALE):
        task = Task(f"t{number % 3}", "g")
        queue.add(task)
        queue.withdraw(task)
    assert sum(map(len, queue._groups.values())) <= 2 * MOST_STALE
    assert queue.take(states(1)) == (first, 1)
    assert queue.take(states(1)) is None
