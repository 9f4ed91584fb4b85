"""Traces as Chrome trace events, for chrome://tracing and ui.perfetto.dev.

One process per trace (predicted, measured), one thread per processor, and an arrow from every
branch to the meeting point that waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nnstretch.bundle import Manifest
from nnstretch.files import write_text
from nnstretch.schedule import subgraph_of, tasks_of
from nnstretch.trace import Span, Trace

Event = dict[str, Any]
INSIDE_US = 0.001
"""An arrow starts this long before its branch ends: at the end itself it would belong to no slice."""


def write_perfetto(path: Path, traces: Mapping[str, Trace], manifest: Manifest) -> None:
    """Write `traces` side by side, each as a process of its name."""
    document = {"traceEvents": list(events(traces, manifest)), "displayTimeUnit": "ms", "otherData": {"model": manifest.model}}
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def events(traces: Mapping[str, Trace], manifest: Manifest) -> Iterator[Event]:
    threads = dict.fromkeys(span.processor for trace in traces.values() for span in sorted(trace.spans, key=lambda s: s.start_us))
    tids = {processor: number for number, processor in enumerate(threads, start=1)}
    for pid, (name, trace) in enumerate(traces.items(), start=1):
        yield _meta(pid, 0, "process_name", name)
        yield _meta(pid, 0, "process_sort_index", pid, key="sort_index")
        for processor, tid in tids.items():
            yield _meta(pid, tid, "thread_name", processor)
        yield from _slices(pid, tids, trace, manifest)
        yield from _arrows(pid, tids, trace, manifest)


def _meta(pid: int, tid: int, what: str, value: str | int, key: str = "name") -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}


def _slices(pid: int, tids: Mapping[str, int], trace: Trace, manifest: Manifest) -> Iterator[Event]:
    subgraphs = {sub.name: sub for sub in manifest.subgraphs}
    for span in sorted(trace.spans, key=lambda s: (s.start_us, s.task)):
        sub = subgraphs[subgraph_of(span.task)]
        where = {"pid": pid, "tid": tids[span.processor], "ts": round(span.start_us, 3), "dur": round(span.duration_us, 3)}
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


def _just_inside(span: Span) -> float:
    return round(max(span.start_us, span.end_us - INSIDE_US), 3)
