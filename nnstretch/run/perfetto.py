"""Traces as Chrome trace events, for chrome://tracing and ui.perfetto.dev.

One process per trace (predicted, measured), one thread and one counter of queued tasks per
processor, an arrow from every branch to the meeting point that waits for it, and an instant for
every task that failed and every alarm that rang.

Of a pipeline every worker has a thread (`s0 on cpu`), slices are named by stage and item (`s0#17`),
and arrows lead an item from stage to stage (`nnstretch/run/pipelines/item_trace.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
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
from nnstretch.schedule import task_graph
from nnstretch.trace import Failure, Span, Trace

Event = dict[str, Any]
Place = tuple[str, str]
"""Sub-graph or stage, and its processor."""
INSIDE_US = 0.001
"""An arrow starts this long before its branch ends: at the end itself it would belong to no slice.

No slice is shorter than twice that.
"""


def write_perfetto(
    path: Path, traces: Mapping[str, Trace], manifest: Manifest, timing: str | None = None
) -> None:
    """Write `traces` side by side, each as a process of its name.

    `timing` says what the times of a run are: measured or emulated.
    """
    about = {
        "model": manifest.model,
        **({} if timing is None else {"timing": timing}),
        **stage_args(manifest),
    }
    document = {
        "traceEvents": list(events(traces, manifest)),
        "displayTimeUnit": "ms",
        "otherData": about,
    }
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def events(traces: Mapping[str, Trace], manifest: Manifest) -> Iterator[Event]:
    """Yield the events of traces, each trace as a process."""
    stage_of = stage_by_name(manifest)
    threads = rows_of_stages(
        [work for trace in traces.values() for work in _spans_and_failures(trace)],
        stage_of,
        python_workers(manifest),
    )
    tids = {
        thread: number for number, thread in enumerate(dict.fromkeys(threads.values()), start=1)
    }
    places = {work: tids[thread] for work, thread in threads.items()}
    for pid, (name, trace) in enumerate(traces.items(), start=1):
        yield _meta(pid, 0, "process_name", name)
        yield _meta(pid, 0, "process_sort_index", pid, key="sort_index")
        for thread, tid in tids.items():
            yield _meta(pid, tid, "thread_name", thread)
            if stage_of:
                yield _meta(pid, tid, "thread_sort_index", tid, key="sort_index")
        yield from _slices(pid, places, trace, manifest)
        yield from _arrows(
            pid,
            places,
            _item_pairs(trace, manifest) if stage_of else _meeting_pairs(trace, manifest),
        )
        yield from _depths(pid, trace)
        yield from _instants(pid, places, trace)


def _spans_and_failures(trace: Trace) -> list[Place]:
    """Return spans and failures in the order of their starts."""
    spans = [
        (span.task.subgraph, span.processor)
        for span in sorted(trace.spans, key=lambda s: s.start_us)
    ]
    return spans + [
        (mark.task.subgraph, mark.processor) for mark in trace.marks if isinstance(mark, Failure)
    ]


def _meta(pid: int, tid: int, what: str, value: str | int, key: str = "name") -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}


def _slices(
    pid: int, places: Mapping[Place, int], trace: Trace, manifest: Manifest
) -> Iterator[Event]:
    subgraphs, stage_of = {sub.name: sub for sub in manifest.subgraphs}, stage_by_name(manifest)
    for span in sorted(trace.spans, key=lambda s: (s.start_us, s.task.name)):
        name = span.task.subgraph
        where = {
            "pid": pid,
            "tid": places[name, span.processor],
            "ts": round(span.start_us, 3),
            "dur": max(round(span.duration_us, 3), 2 * INSIDE_US),
        }
        args: Event = {"task": span.task.name, "request": span.task.request}
        args |= item_args(span.task, stage_of)
        if (sub := subgraphs.get(name)) is None:  # a stage of several sub-graphs, or in Python
            yield {
                "ph": "X",
                "name": span.task.name if stage_of else name,
                "cat": "stage",
                **where,
                "args": args,
            }
        else:
            shown = span.task.name if stage_of else sub.name
            yield {
                "ph": "X",
                "name": shown,
                "cat": sub.role,
                **where,
                "args": args | {"segment": sub.segment},
            }


def _arrows(
    pid: int, places: Mapping[Place, int], pairs: Iterator[tuple[str, Span, Span]]
) -> Iterator[Event]:
    """Yield flow events: an `s` inside what comes first, an `f` where what waits for it begins."""
    for number, (name, before, after) in enumerate(pairs, start=1):
        stage_graph = {
            "name": name,
            "cat": name.partition(" ")[0],
            "id": pid * 1_000_000 + number,
            "pid": pid,
        }
        yield {
            "ph": "s",
            **stage_graph,
            "tid": places[before.task.subgraph, before.processor],
            "ts": _just_inside(before),
        }
        yield {
            "ph": "f",
            "bp": "e",
            **stage_graph,
            "tid": places[after.task.subgraph, after.processor],
            "ts": round(after.start_us, 3),
        }


def _meeting_pairs(trace: Trace, manifest: Manifest) -> Iterator[tuple[str, Span, Span]]:
    """Yield every branch with the meeting point that waits for it."""
    spans = {span.task.name: span for span in trace.spans}
    merges = {sub.name for sub in manifest.subgraphs if sub.role == "merge"}
    for request in sorted({span.task.request for span in trace.spans}):
        for task in task_graph(manifest, request):
            if task.name in spans and task.subgraph in merges:
                yield from (("meet", spans[need], spans[task.name]) for need in sorted(task.needs))


def _item_pairs(trace: Trace, manifest: Manifest) -> Iterator[tuple[str, Span, Span]]:
    """Return pairs of spans: what hands an item a tensor, and what reads it."""
    return (
        (f"item {after.task.request}", before, after)
        for before, after in producer_consumer_spans(trace, manifest)
    )


def _depths(pid: int, trace: Trace) -> Iterator[Event]:
    """Yield counters of tasks in a processor's queue, at work or behind it, from when the host has
    handed them over; where that is known.
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
            yield {
                "ph": "C",
                "pid": pid,
                "tid": 0,
                "name": f"queue {processor}",
                "ts": at_us,
                "args": {"tasks": depth},
            }


def _instants(pid: int, places: Mapping[Place, int], trace: Trace) -> Iterator[Event]:
    for mark in trace.marks:
        at = {"ph": "i", "pid": pid, "ts": round(mark.at_us, 3)}
        if isinstance(mark, Failure):
            args = {"task": mark.task.name, "error": one_line(mark.error)}
            yield {
                **at,
                "tid": places[mark.task.subgraph, mark.processor],
                "name": f"{mark.task.name} failed",
                "cat": "failure",
                "s": "t",
                "args": args,
            }
        else:
            yield {**at, "tid": 0, "name": one_line(mark.tag), "cat": "alarm", "s": "p"}


def _just_inside(span: Span) -> float:
    return round(max(span.start_us, span.end_us - INSIDE_US), 3)
