"""The checker of schedules: it knows the task graph and what ran when, and nothing of policies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isclose
from types import MappingProxyType

from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace

NO_ARRIVALS: Mapping[str, float] = MappingProxyType({})


def schedule_faults(
    trace: Trace,
    graph: TaskGraph,
    arrival_us: Mapping[str, float] = NO_ARRIVALS,
    exact: bool = False,
) -> tuple[str, ...]:
    """Return every way in which a trace is no schedule of a task graph, a sentence each.

    Each task runs once, where it can run, not before it arrives and not before what it needs has
    ended and its data is there; a processor runs one task at a time.

    `arrival_us` is by task, the beginning of time where absent. `exact`: each task takes what the
    cost table says, as on the virtual clock.
    """
    faults = list(_counting_faults(trace, graph))
    tasks = {task.name: task for task in graph.tasks}
    spans = {span.task.name: span for span in trace.spans if span.task.name in tasks}
    processors = {processor.name for processor in graph.processors}
    for name, span in spans.items():
        task = tasks[name]
        if span.processor not in processors:
            faults.append(f"{name} ran on {span.processor}, which is not among the processors")
        else:
            faults += _cost_faults(span, task, graph, exact)
        if span.start_us < arrival_us.get(name, span.start_us):
            faults.append(
                f"{name} starts at {span.start_us:g}, before it arrives at {arrival_us[name]:g}"
            )
        faults += _need_faults(span, task, spans, graph.transfer_us)
    return (*faults, *_overlap_faults(trace))


def _counting_faults(trace: Trace, graph: TaskGraph) -> Iterator[str]:
    counts = dict.fromkeys((task.name for task in graph.tasks), 0)
    for span in trace.spans:
        if span.task.name not in counts:
            yield f"{span.task.name} ran, which is not among the tasks"
        else:
            counts[span.task.name] += 1
    for name, count in counts.items():
        if count != 1:
            yield f"{name} ran {count} times, each task runs once"


def _cost_faults(span: Span, task: Task, graph: TaskGraph, exact: bool) -> Iterator[str]:
    cost_us = graph.cost_us.get((task.work, span.processor))
    if cost_us is None:
        yield f"{task.name} ran on {span.processor}, which cannot run it"
    elif exact and not isclose(span.end_us, span.start_us + cost_us, rel_tol=1e-9, abs_tol=1e-9):
        yield (
            f"{task.name} takes {span.duration_us:g} on {span.processor}, its cost is {cost_us:g}"
        )
    if span.end_us < span.start_us:
        yield f"{task.name} ends at {span.end_us:g}, before it starts at {span.start_us:g}"


def _need_faults(
    span: Span,
    task: Task,
    spans: Mapping[str, Span],
    transfer_us: Mapping[tuple[WorkKey, WorkKey], float],
) -> Iterator[str]:
    for need in sorted(task.needs & spans.keys()):
        before = spans[need]
        if span.start_us < before.end_us:
            yield f"{task.name} starts at {span.start_us:g}, {need} ends at {before.end_us:g}"
        elif before.processor != span.processor:
            there_us = before.end_us + transfer_us.get((before.task.work, task.work), 0.0)
            if span.start_us < there_us and not isclose(span.start_us, there_us, rel_tol=1e-12):
                yield (
                    f"{task.name} starts at {span.start_us:g}, data of {need} is there at"
                    f" {there_us:g}"
                )


def _overlap_faults(trace: Trace) -> Iterator[str]:
    by_processor: dict[str, list[Span]] = defaultdict(list)
    for span in trace.spans:
        by_processor[span.processor].append(span)
    for processor, spans in by_processor.items():
        spans.sort(key=lambda span: (span.start_us, span.end_us))
        for before, after in pairwise(spans):
            if after.start_us < before.end_us:
                yield (
                    f"{after.task.name} starts at {after.start_us:g} on {processor},"
                    f" {before.task.name} ends there at {before.end_us:g}"
                )
