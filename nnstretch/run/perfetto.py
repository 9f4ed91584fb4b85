"""Traces as Chrome trace events, for chrome://tracing and ui.perfetto.dev.

One process per trace (predicted, measured), one thread and one counter of handed-over tasks per
processor, an arrow from every branch to the meeting point that waits for it, and an instant for
every task that failed and every timer that rang.

Where requests run by plans, `plans` of `otherData` lists the tasks of a whole request by plan.

Of a pipeline every worker has a thread (`s0 on cpu`), slices are named by stage and item (`s0#17`),
and arrows lead an item from stage to stage (`nnstretch/run/pipelines/item_trace.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from nnstretch.bundle.manifest import Manifest
from nnstretch.errors import one_line
from nnstretch.files.atomic import write_text
from nnstretch.run.pipelines.item_trace import (
    item_args,
    producer_consumer_spans,
    python_workers,
    rows_of_stages,
    stage_args,
    stage_by_name,
)
from nnstretch.task import Task, WorkKey, work_key
from nnstretch.trace import Failure, Span, Trace

Event = dict[str, Any]
Place = tuple[str, str]
"""Shown name of a sub-graph or stage, and its processor."""
INSIDE_US = 0.001
"""An arrow starts this long before its branch ends: at the end itself it would belong to no slice.

No slice is shorter than twice that.
"""


@dataclass(frozen=True, slots=True)
class TraceLabels:
    """What a picture says of tasks that the tasks themselves do not."""

    model: str
    roles: Mapping[WorkKey, tuple[str, int]]
    """Role (branch, merge) and segment of sub-graphs; stages of a pipeline have none."""
    pipeline: Manifest | None = None
    """Where tasks are stages of a pipeline."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage by sub-graph, copy and stage."""
    counters: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Levels by name, each from an instant on, us: bytes in a buffer."""

    @property
    def plans(self) -> dict[str, list[str]]:
        """Return the shown names of a request's tasks by plan, where sub-graphs are of plans."""
        plans: dict[str, list[str]] = {}
        for work in self.roles:
            if isinstance(work, tuple):
                plans.setdefault(work[0], []).append("/".join(work))
        return plans

    def is_merge(self, task: Task) -> bool:
        """Return whether a task merges branches."""
        return self.roles.get(task.work, ("", 0))[0] == "merge"


def manifest_labels(manifest: Manifest, plan: str = "") -> TraceLabels:
    """Return the labels of a bundle's tasks, under the name of their plan if it has one."""
    return TraceLabels(
        manifest.model,
        {work_key(sub.name, plan): (sub.role, sub.segment) for sub in manifest.subgraphs},
        None if manifest.pipeline is None else manifest,
        stage_by_name(manifest),
    )


def write_perfetto(
    path: Path, traces: Mapping[str, Trace], manifest: Manifest, timing: str | None = None
) -> None:
    """Write traces of a bundle side by side, each as a process of its name.

    `timing` says what the times of a run are: measured, emulated or modelled.
    """
    write_traces(path, traces, manifest_labels(manifest), timing)


def write_traces(
    path: Path, traces: Mapping[str, Trace], labels: TraceLabels, timing: str | None = None
) -> None:
    """Write traces of any tasks side by side, each as a process of its name."""
    about: dict[str, Any] = {"model": labels.model}
    if timing is not None:
        about["timing"] = timing
    if labels.plans:
        about["plans"] = labels.plans
    if labels.pipeline is not None:
        about |= stage_args(labels.pipeline)
    document = {
        "traceEvents": list(events(traces, labels)),
        "displayTimeUnit": "ms",
        "otherData": about,
    }
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def events(traces: Mapping[str, Trace], labels: TraceLabels) -> Iterator[Event]:
    """Yield the events of traces, each trace as a process."""
    works = list(chain.from_iterable(map(_spans_and_failures, traces.values())))
    python = frozenset[str]() if labels.pipeline is None else python_workers(labels.pipeline)
    threads = rows_of_stages(works, labels.stages, python)
    rows = dict.fromkeys(threads.values())
    tids = {thread: number for number, thread in enumerate(rows, start=1)}
    places = {work: tids[thread] for work, thread in threads.items()}
    for pid, (name, trace) in enumerate(traces.items(), start=1):
        yield _meta(pid, 0, "process_name", name)
        yield _meta(pid, 0, "process_sort_index", pid, key="sort_index")
        for thread, tid in tids.items():
            yield _meta(pid, tid, "thread_name", thread)
            if labels.stages:
                yield _meta(pid, tid, "thread_sort_index", tid, key="sort_index")
        yield from _slices(pid, places, trace, labels)
        pairs = _meeting_pairs(trace, labels)
        if labels.pipeline is not None:
            pairs = _item_pairs(trace, labels.pipeline)
        yield from _arrows(pid, places, pairs)
        yield from _depths(pid, trace)
        for counter, levels in labels.counters.items():
            yield from (_level(pid, counter, at_us, level) for at_us, level in levels)
        yield from _instants(pid, places, trace)


def shown_name(task: Task) -> str:
    """Return a sub-graph's name as pictures show it, behind its plan where there are several."""
    return f"{task.plan}/{task.subgraph}" if task.plan else task.subgraph


def _place(event: Span | Failure) -> Place:
    return shown_name(event.task), event.processor


def _spans_and_failures(trace: Trace) -> list[Place]:
    """Return places of spans and failures in the order of their starts."""
    spans = sorted(trace.spans, key=lambda span: span.start_us)
    failures = [mark for mark in trace.marks if isinstance(mark, Failure)]
    return [*map(_place, spans), *map(_place, failures)]


def _meta(pid: int, tid: int, what: str, value: str | int, key: str = "name") -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}


def _slices(
    pid: int, places: Mapping[Place, int], trace: Trace, labels: TraceLabels
) -> Iterator[Event]:
    for span in sorted(trace.spans, key=lambda s: (s.start_us, s.task.name)):
        task = span.task
        args: Event = {"task": task.name, "request": task.request}
        args |= item_args(task, labels.stages)
        category = "stage"  # of several sub-graphs, or in Python
        if task.work in labels.roles:
            category, segment = labels.roles[task.work]
            args["segment"] = segment
        yield {
            "ph": "X",
            "name": task.name if labels.stages else shown_name(task),
            "cat": category,
            "pid": pid,
            "tid": places[_place(span)],
            "ts": round(span.start_us, 3),
            "dur": max(round(span.duration_us, 3), 2 * INSIDE_US),
            "args": args,
        }


def _arrows(
    pid: int, places: Mapping[Place, int], pairs: Iterator[tuple[str, Span, Span]]
) -> Iterator[Event]:
    """Yield flow events: an `s` inside what comes first, an `f` where what waits for it begins."""
    for number, (name, before, after) in enumerate(pairs, start=1):
        flow = {
            "name": name,
            "cat": name.partition(" ")[0],
            "id": pid * 1_000_000 + number,
            "pid": pid,
        }
        yield {"ph": "s", **flow, "tid": places[_place(before)], "ts": _just_inside(before)}
        start_us = round(after.start_us, 3)
        yield {"ph": "f", "bp": "e", **flow, "tid": places[_place(after)], "ts": start_us}


def _meeting_pairs(trace: Trace, labels: TraceLabels) -> Iterator[tuple[str, Span, Span]]:
    """Yield every branch with the meeting point that waits for it."""
    spans = trace.spans_by_task()
    order = {work: number for number, work in enumerate(labels.roles)}
    merges = [span for span in trace.spans if labels.is_merge(span.task)]
    for merge in sorted(merges, key=lambda span: (span.task.request, order[span.task.work])):
        for need in sorted(merge.task.needs):
            yield "meet", spans[need], merge


def _item_pairs(trace: Trace, manifest: Manifest) -> Iterator[tuple[str, Span, Span]]:
    """Yield pairs of spans: what writes a tensor of an item, and what reads it."""
    for before, after in producer_consumer_spans(trace, manifest):
        yield f"item {after.task.request}", before, after


def _depths(pid: int, trace: Trace) -> Iterator[Event]:
    """Yield counters of tasks in a processor's own queue, at work or behind it, from when the host
    has handed them over; where that is known. What a scheduler still keeps is not among them.
    """
    for processor in trace.processors:
        spans = [span for span in trace.spans if span.processor == processor]
        handed = [span.handed_us for span in spans if span.handed_us is not None]
        if len(handed) < len(spans):
            continue
        changes = sorted([(at_us, 1) for at_us in handed] + [(span.end_us, -1) for span in spans])
        depth = 0
        for at_us, together in groupby(changes, key=lambda change: round(change[0], 3)):
            depth += sum(change for _, change in together)
            yield _level(pid, f"handed to {processor}", at_us, depth, "tasks")


def _level(pid: int, name: str, at_us: float, level: float, unit: str = "bytes") -> Event:
    args = {unit: level}
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at_us, "args": args}


def _instants(pid: int, places: Mapping[Place, int], trace: Trace) -> Iterator[Event]:
    for mark in trace.marks:
        at = {"ph": "i", "pid": pid, "ts": round(mark.at_us, 3)}
        if isinstance(mark, Failure):
            args = {"task": mark.task.name, "error": one_line(mark.error)}
            yield {
                **at,
                "tid": places[_place(mark)],
                "name": f"{mark.task.name} failed",
                "cat": "failure",
                "s": "t",
                "args": args,
            }
        else:
            yield {**at, "tid": 0, "name": one_line(mark.tag), "cat": "alarm", "s": "p"}


def _just_inside(span: Span) -> float:
    return round(max(span.start_us, span.end_us - INSIDE_US), 3)
