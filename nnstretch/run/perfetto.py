"""Traces as Chrome trace events, for chrome://tracing and ui.perfetto.dev.

One process per trace (predicted, measured), one thread and one counter of queued tasks per processor, an arrow from every
branch to the meeting point that waits for it, and an instant for every task that failed and every alarm that rang.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from nnstretch.errors import one_line
from nnstretch.files import write_text
from nnstretch.manifest import Manifest
from nnstretch.schedule import subgraph_of, tasks_of
from nnstretch.trace import Failure, Span, Trace

Event = dict[str, Any]
INSIDE_US = 0.001
"""An arrow starts this long before its branch ends: at the end itself it would belong to no slice."""


def write_perfetto(path: Path, traces: Mapping[str, Trace], manifest: Manifest, timing: str | None = None) -> None:
    """Write `traces` side by side, each as a process of its name; `timing` says what the times of a run are: measured or emulated."""
    about = {"model": manifest.model} | ({} if timing is None else {"timing": timing})
    document = {"traceEvents": list(events(traces, manifest)), "displayTimeUnit": "ms", "otherData": about}
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def events(traces: Mapping[str, Trace], manifest: Manifest) -> Iterator[Event]:
    threads = dict.fromkeys(span.processor for trace in traces.values() for span in sorted(trace.spans, key=lambda s: s.start_us))
    threads |= dict.fromkeys(mark.processor for trace in traces.values() for mark in trace.marks if isinstance(mark, Failure))
    tids = {processor: number for number, processor in enumerate(threads, start=1)}
    for pid, (name, trace) in enumerate(traces.items(), start=1):
        yield _meta(pid, 0, "process_name", name)
        yield _meta(pid, 0, "process_sort_index", pid, key="sort_index")
        for processor, tid in tids.items():
            yield _meta(pid, tid, "thread_name", processor)
        yield from _slices(pid, tids, trace, manifest)
        yield from _arrows(pid, tids, trace, manifest)
        yield from _depths(pid, trace)
        yield from _instants(pid, tids, trace)


def _meta(pid: int, tid: int, what: str, value: str | int, key: str = "name") -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}


def _slices(pid: int, tids: Mapping[str, int], trace: Trace, manifest: Manifest) -> Iterator[Event]:
    subgraphs = {sub.name: sub for sub in manifest.subgraphs}
    for span in sorted(trace.spans, key=lambda s: (s.start_us, s.task)):
        name = subgraph_of(span.task)
        where = {"pid": pid, "tid": tids[span.processor], "ts": round(span.start_us, 3), "dur": round(span.duration_us, 3)}
        if (sub := subgraphs.get(name)) is None:  # a stage of several sub-graphs, or in Python
            yield {"ph": "X", "name": name, "cat": "stage", **where, "args": {"task": span.task}}
        else:
            yield {"ph": "X", "name": sub.name, "cat": sub.role, **where, "args": {"task": span.task, "segment": sub.segment}}


def _arrows(pid: int, tids: Mapping[str, int], trace: Trace, manifest: Manifest) -> Iterator[Event]:
    """Flow events: an `s` inside each branch, an `f` at the meeting point."""
    spans = {span.task: span for span in trace.spans}
    merges = {sub.name for sub in manifest.subgraphs if sub.role == "merge"}
    requests = sorted({int(task.rpartition("#")[2]) for task in spans})
    tasks = [task for request in requests for task in tasks_of(manifest, request) if task.name in spans]
    pairs = [(need, task.name) for task in tasks if task.subgraph in merges for need in sorted(task.needs)]
    for number, (need, name) in enumerate(pairs, start=1):
        flow = {"name": "meet", "cat": "meet", "id": pid * 1_000_000 + number, "pid": pid}
        yield {"ph": "s", **flow, "tid": tids[spans[need].processor], "ts": _just_inside(spans[need])}
        yield {"ph": "f", "bp": "e", **flow, "tid": tids[spans[name].processor], "ts": round(spans[name].start_us, 3)}


def _depths(pid: int, trace: Trace) -> Iterator[Event]:
    """Counters: tasks in a processor's queue, at work or behind it, from when the host has handed them over; where that is known."""
    for processor in trace.processors:
        spans = [span for span in trace.spans if span.processor == processor]
        handed = [span.handed_us for span in spans if span.handed_us is not None]
        if len(handed) < len(spans):
            continue
        changes = sorted([(at_us, 1) for at_us in handed] + [(span.end_us, -1) for span in spans])
        depth = 0
        for at_us, together in groupby(changes, key=lambda change: round(change[0], 3)):
            depth += sum(change for _, change in together)
            yield {"ph": "C", "pid": pid, "tid": 0, "name": f"queue {processor}", "ts": at_us, "args": {"tasks": depth}}


def _instants(pid: int, tids: Mapping[str, int], trace: Trace) -> Iterator[Event]:
    for mark in trace.marks:
        at = {"ph": "i", "pid": pid, "ts": round(mark.at_us, 3)}
        if isinstance(mark, Failure):
            name, args = f"{mark.task} failed", {"task": mark.task, "error": one_line(mark.error)}
            yield {**at, "tid": tids[mark.processor], "name": name, "cat": "failure", "s": "t", "args": args}
        else:
            yield {**at, "tid": 0, "name": one_line(mark.what), "cat": "alarm", "s": "p"}


def _just_inside(span: Span) -> float:
    return round(max(span.start_us, span.end_us - INSIDE_US), 3)
