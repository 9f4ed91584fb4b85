"""The checker accepts schedules, and catches one that is broken on purpose in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from nnstretch.errors import BrokenSchedule
from nnstretch.schedule.simulation.check_trace import check_trace
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


def check(*spans: Span, arrival_us: float = 0.0) -> None:
    times, copies = GRAPH.cost_us, GRAPH.transfer_us
    check_trace(Trace(spans), GRAPH.tasks, times, copies, {"a": arrival_us}, exact=True)


def test_a_schedule_passes() -> None:
    check(*SPANS)


def moved(number: int, **how: object) -> tuple[Span, ...]:
    spans = list(SPANS)
    spans[number] = replace(spans[number], **how)  # type: ignore[arg-type]
    return tuple(spans)


BROKEN: dict[str, Callable[[], None]] = {
    "c never ran": lambda: check(*SPANS[:2]),
    "c ran twice": lambda: check(*SPANS, Span(17.0, 24.0, C, "p")),
    "d ran on q, schedule, nobody asked": lambda: check(*SPANS, Span(0, 1, Task("d", "d"), "q")),
    "c ran on q, schedule, it cannot": lambda: check(
        *moved(2, processor="q", start_us=20.0, end_us=27.0)
    ),
    "b ran on r, schedule, it cannot": lambda: check(*moved(1, processor="r")),
    "b took 3 us on q, schedule, it costs 4 us": lambda: check(*moved(1, end_us=16.0)),
    "a started at 0 us, schedule, it arrived at 1": lambda: check(*SPANS, arrival_us=1.0),
    "b started at 9 us, schedule, what a wrote": lambda: check(
        *moved(1, start_us=9.0, end_us=13.0)
    ),
    "b started at 12 us, schedule, what a wrote was there at 13": lambda: check(
        *moved(1, start_us=12.0, end_us=16.0)
    ),
    "b started at 16 us on p, schedule, c was there until 17": lambda: check(
        *moved(1, processor="p", start_us=16.0, end_us=21.0)
    ),
    "b ended before it started": lambda: check(*moved(1, end_us=9.0)),
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_schedule_broken_on_purpose_is_caught(words: str) -> None:
    with pytest.raises(BrokenSchedule, match=words):
        BROKEN[words]()


def test_durations_are_free_on_a_real_clock() -> None:
    slow = (SPANS[0], replace(SPANS[1], end_us=30.0), SPANS[2])
    check_trace(Trace(slow), GRAPH.tasks, GRAPH.cost_us, GRAPH.transfer_us)
