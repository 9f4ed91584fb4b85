"""The checker accepts schedules, and catches one that is broken on purpose in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace

A, B, C = Task("a", "a"), Task("b", "b", frozenset("a")), Task("c", "c", frozenset("a"))
GRAPH = TaskGraph(
    "fork",
    (A, B, C),
    (Processor("p", "cpu", 1), Processor("q", "gpu", 1)),
    {("a", "p"): 10.0, ("b", "p"): 5.0, ("b", "q"): 4.0, ("c", "p"): 7.0},
    {("a", "b"): 3.0, ("a", "c"): 3.0},
)
SPANS = (
    Span(0.0, 10.0, A, "p"),
    Span(13.0, 17.0, B, "q"),
    Span(10.0, 17.0, C, "p"),
)


def faults(*spans: Span, arrival_us: float = 0.0) -> tuple[str, ...]:
    return schedule_faults(Trace(spans), GRAPH, {"a": arrival_us}, exact=True)


def test_a_schedule_has_no_faults() -> None:
    assert faults(*SPANS) == ()


def moved(number: int, **how: object) -> tuple[Span, ...]:
    spans = list(SPANS)
    spans[number] = replace(spans[number], **how)  # type: ignore[arg-type]
    return tuple(spans)


BROKEN: dict[str, Callable[[], tuple[str, ...]]] = {
    "c ran 0 times": lambda: faults(*SPANS[:2]),
    "c ran 2 times": lambda: faults(*SPANS, Span(17.0, 24.0, C, "p")),
    "d ran, which is not among the tasks": lambda: faults(*SPANS, Span(0, 1, Task("d", "d"), "q")),
    "c ran on q, which cannot run it": lambda: faults(
        *moved(2, processor="q", start_us=20.0, end_us=27.0)
    ),
    "b ran on r, which is not among the processors": lambda: faults(*moved(1, processor="r")),
    "b takes 3 on q, its cost is 4": lambda: faults(*moved(1, end_us=16.0)),
    "a starts at 0, before it arrives at 1": lambda: faults(*SPANS, arrival_us=1.0),
    "b starts at 9, a ends at 10": lambda: faults(*moved(1, start_us=9.0, end_us=13.0)),
    "b starts at 12, data of a is there at 13": lambda: faults(
        *moved(1, start_us=12.0, end_us=16.0)
    ),
    "b starts at 16 on p, c ends there at 17": lambda: faults(
        *moved(1, processor="p", start_us=16.0, end_us=21.0)
    ),
    "b ends at 9, before it starts at 13": lambda: faults(*moved(1, end_us=9.0)),
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_schedule_broken_on_purpose_is_caught(words: str) -> None:
    assert any(words in fault for fault in BROKEN[words]())


def test_durations_are_free_on_a_real_clock() -> None:
    slow = (SPANS[0], replace(SPANS[1], end_us=30.0), SPANS[2])
    assert schedule_faults(Trace(slow), GRAPH) == ()
