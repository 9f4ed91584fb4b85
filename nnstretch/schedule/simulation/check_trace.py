"""Whether a trace is a schedule of some tasks, whoever made it: it knows nothing of policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from nnstretch.errors import BrokenSchedule
from nnstretch.schedule.loop.arrivals import Transfers
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Span, Trace

SLACK = 1e-9
"""Share of a time that its float may be off."""


def check_trace(
    trace: Trace,
    tasks: Sequence[Task],
    times_us: TaskTimes | None = None,
    transfers_us: Transfers | None = None,
    arrivals_us: Mapping[str, float] | None = None,
    withdrawn: Collection[str] = (),
) -> None:
    """Check that no two tasks overlap on a processor, needs and transfers are kept, and each task
    ran once, where it can run and not before it arrived.

    `arrivals_us` is by task; `withdrawn` tasks need not have run. Raises BrokenSchedule naming the
    first task that breaks a rule.
    """
    by_name = {task.name: task for task in tasks}
    spans: dict[str, Span] = {}
    for span in trace.spans:
        name = span.task.name
        if name in spans:
            raise BrokenSchedule(f"{name} ran twice, schedule, on {span.processor} the second time")
        if name not in by_name:
            raise BrokenSchedule(f"{name} ran on {span.processor}, schedule, nobody asked for it")
        spans[name] = span
    for task in tasks:
        if task.name in spans:
            check_span(spans[task.name], task, times_us, (arrivals_us or {}).get(task.name, 0.0))
            check_needs(task, spans, transfers_us or {})
        elif task.name not in withdrawn:
            raise BrokenSchedule(f"{task.name} never ran, schedule, {len(spans)} tasks did")
    check_overlaps(trace.spans)


def check_span(span: Span, task: Task, times_us: TaskTimes | None, arrival_us: float) -> None:
    """Check one task by itself: when it started, and where. Raises BrokenSchedule."""
    name, processor = task.name, span.processor
    if span.start_us < arrival_us - slack_us(arrival_us):
        raise BrokenSchedule(
            f"{name} started at {span.start_us:g} us, schedule, it arrived at {arrival_us:g} us"
        )
    if span.end_us < span.start_us:
        raise BrokenSchedule(f"{name} ended before it started, schedule, at {span.end_us:g} us")
    if times_us is not None and (task.work, processor) not in times_us:
        raise BrokenSchedule(f"{name} ran on {processor}, schedule, it cannot run there")
    if task.processor not in (None, processor):
        raise BrokenSchedule(f"{name} ran on {processor}, schedule, it belongs on {task.processor}")


def check_needs(task: Task, spans: Mapping[str, Span], transfers_us: Transfers) -> None:
    """Check that a task started when its data were there. Raises BrokenSchedule."""
    span = spans[task.name]
    for need in sorted(task.needs):
        if need not in spans:
            raise BrokenSchedule(f"{task.name} ran, schedule, {need} that it needs did not")
        writer = spans[need]
        there_us = writer.end_us
        if writer.processor != span.processor:
            there_us += transfers_us.get((writer.task.work, task.work), 0.0)
        if span.start_us < there_us - slack_us(there_us):
            raise BrokenSchedule(
                f"{task.name} started at {span.start_us:g} us, schedule, what {need} wrote was"
                f" there at {there_us:g} us"
            )


def check_overlaps(spans: Sequence[Span]) -> None:
    """Check that every processor ran one task at a time. Raises BrokenSchedule."""
    by_processor: dict[str, list[Span]] = {}
    for span in spans:
        by_processor.setdefault(span.processor, []).append(span)
    for processor, on_it in by_processor.items():
        on_it.sort(key=start_and_end)
        for earlier, later in pairwise(on_it):
            if later.start_us < earlier.end_us - slack_us(earlier.end_us):
                raise BrokenSchedule(
                    f"{later.task.name} started at {later.start_us:g} us on {processor}, schedule,"
                    f" {earlier.task.name} was there until {earlier.end_us:g} us"
                )


def start_and_end(span: Span) -> tuple[float, float]:
    """Return when a span starts and ends, for sorting."""
    return span.start_us, span.end_us


def slack_us(time_us: float) -> float:
    """Return how far a time may be off because it is a float."""
    return SLACK * max(1.0, abs(time_us))
