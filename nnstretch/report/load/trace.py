"""Chrome trace events as spans: one request of median length for each process of the file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from nnstretch.files.decode import tolerant
from nnstretch.files.limits import Range
from nnstretch.report.load.json_files import decode_at
from nnstretch.report.load.pipeline_data import Size
from nnstretch.report.load.timeline import Timeline, TimelineSpan
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

_REQUEST = re.compile(r"r(\d{1,9})\..*|.*#(\d{1,9})", re.S)
_REQUEST_PART = re.compile(r"^r\d{1,9}\.|#\d{1,9}$")
_SEGMENT = re.compile(r"(?:r\d+\.)?(s\d{1,9})[._].+", re.S)
_MERGE = re.compile(r".+[._]merge", re.S)
TIMINGS = ("measured", "emulated", "modelled")
"""How times of a run came about: a clock's, a virtual clock's, or those of a schedule."""
Key = int | float | str
"""Process or thread of an event."""


@tolerant
@dataclass(frozen=True, slots=True)
class EventPhase:
    """What all events have: `M` names a process or thread, `X` is a slice."""

    ph: str


@tolerant
@dataclass(frozen=True, slots=True)
class EventName:
    """Arguments of an event that names a process or thread."""

    name: str


@tolerant
@dataclass(frozen=True, slots=True)
class MetaEvent:
    """Event that tells about a process or thread."""

    name: str | None = None
    pid: Key | None = None
    tid: Key | None = None
    args: object = None


@tolerant
@dataclass(frozen=True, slots=True)
class SliceArgs:
    """What a slice says of itself beside its name."""

    task: str | None = None
    stage: str | None = None
    request: Annotated[int, Range(0)] | None = None
    segment: Annotated[int, Range(0)] | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class SliceEvent:
    """One task on one thread, in microseconds."""

    name: str
    ts: Annotated[float, Range(-1e18, 1e18)]
    dur: Size
    cat: object = None
    pid: Key | None = None
    tid: Key | None = None
    args: SliceArgs = SliceArgs()


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Slices of a trace with the names of their processes and threads."""

    slices: tuple[SliceEvent, ...]
    processes: dict[Key | None, str]
    threads: dict[tuple[Key | None, Key | None], str]
    timing: str | None
    """How the run's times came about (`TIMINGS`), if the file says so; predictions have none."""
    plans: tuple[frozenset[str], ...] = ()
    """Tasks of a whole request by each plan; empty where the file does not say."""

    def process_of(self, event: SliceEvent) -> str:
        """Return the name of an event's process."""
        return self.processes.get(event.pid, "trace")

    def thread_of(self, event: SliceEvent) -> str:
        """Return the name of an event's thread."""
        return self.threads.get((event.pid, event.tid), str(event.tid))


def read_trace_file(document: Any, file: str) -> TraceFile:
    """Read an object with `traceEvents`, or the bare list. Raises BrokenFile for anything else."""
    slices: list[SliceEvent] = []
    processes: dict[Key | None, str] = {}
    threads: dict[tuple[Key | None, Key | None], str] = {}
    for path, event in _events(document, file):
        phase = decode_at(EventPhase, event, file, path).ph
        if phase == "X":
            slices.append(decode_at(SliceEvent, event, file, path))
        elif phase == "M":
            meta = decode_at(MetaEvent, event, file, path)
            if meta.name in ("process_name", "thread_name"):
                name = decode_at(EventName, meta.args, file, f"{path}.args").name
                if meta.name == "process_name":
                    processes[meta.pid] = name
                else:
                    threads[meta.pid, meta.tid] = name
    return TraceFile(tuple(slices), processes, threads, _timing(document), _plans(document, file))


def _events(document: Any, file: str) -> Iterator[tuple[str, Any]]:
    """Yield events with their paths."""
    root = "" if isinstance(document, list) else "traceEvents"
    whole = {root: document} if isinstance(document, list) else document
    events = decode_at(dict[str, object], whole, file).get(root)
    for number, event in enumerate(decode_at(tuple[object, ...], events, file, root)):
        yield f"{root}[{number}]", event


def _timing(document: Any) -> str | None:
    timing = _about(document).get("timing")
    return timing if timing in TIMINGS else None


def _plans(document: Any, file: str) -> tuple[frozenset[str], ...]:
    kind = dict[str, tuple[str, ...]] | None
    plans = decode_at(kind, _about(document).get("plans"), file, "otherData.plans")
    return tuple(map(frozenset, (plans or {}).values()))


def _about(document: Any) -> dict[str, Any]:
    """Return what a trace says of itself."""
    about = document.get("otherData") if isinstance(document, dict) else None
    return about if isinstance(about, dict) else {}


def read_timelines(document: Any, file: str) -> tuple[Timeline, ...]:
    """Return one timeline for each process, the predicted first. Raises BrokenFile."""
    trace = read_trace_file(document, file)
    parts: dict[str, list[TimelineSpan]] = defaultdict(list)
    for event in trace.slices:
        parts[trace.process_of(event)].append(_part(event, trace.thread_of(event)))
    timelines: list[Timeline] = []
    for source in sorted(parts, key=lambda source: (source != "predicted", source)):
        timing = None if source == "predicted" else trace.timing
        timeline = _median_request(source, parts[source], trace.plans)
        timelines.append(replace(timeline, timing=timing))
    return tuple(timelines)


def _part(event: SliceEvent, thread: str) -> TimelineSpan:
    """Return what an event says it is, by its own `cat` and `args`, else by its name."""
    name, args = event.name, event.args
    request = _request_in(args.task or name) if args.request is None else args.request
    segment = _segment_in(name) if args.segment is None else f"s{args.segment}"
    task = Task(name, _REQUEST_PART.sub("", name), request=request)
    span = Span(event.ts, event.ts + event.dur, task, thread)
    is_merge = event.cat == "merge" or _MERGE.fullmatch(name) is not None
    return TimelineSpan(span, segment, is_merge)


def _request_in(task: str) -> int:
    """Return the request in a name: `r2.s3.dsp` and `s3.dsp#2` belong to request 2."""
    match = _REQUEST.fullmatch(task)
    return int(match[1] or match[2]) if match else 0


def _segment_in(name: str) -> str:
    """Return `s3` of `r0.s3.dsp`; a task that is named otherwise stands for itself."""
    match = _SEGMENT.fullmatch(name)
    return match[1] if match else name


def _median_request(
    source: str, parts: list[TimelineSpan], plans: tuple[frozenset[str], ...]
) -> Timeline:
    """Return the request of median length, a whole one if any: a chart of twenty shows nothing."""
    requests: dict[int, list[TimelineSpan]] = defaultdict(list)
    for part in parts:
        requests[part.span.task.request].append(part)
    whole = [number for number, ran in requests.items() if _is_whole(ran, plans)]
    lengths: list[tuple[float, int]] = []
    for number in whole or requests:
        spans = tuple(part.span for part in requests[number])
        lengths.append((Trace(spans).makespan_us, number))
    _, chosen = sorted(lengths)[(len(lengths) - 1) // 2]
    zero_us = min(part.span.start_us for part in requests[chosen])
    end_us = max(part.span.end_us for part in requests[chosen])
    moved = [_moved(part, zero_us, end_us) for part in sorted(requests[chosen], key=_order)]
    others: list[TimelineSpan] = []
    for part in parts:
        span = part.span
        if span.task.request != chosen and span.end_us > zero_us and span.start_us < end_us:
            others.append(_moved(part, zero_us, end_us))
    counts = len(requests), len(whole)
    return Timeline(source, tuple(moved), chosen, *counts, others=tuple(others))


def _is_whole(parts: list[TimelineSpan], plans: tuple[frozenset[str], ...]) -> bool:
    """Return whether all tasks of a plan are among a request's; so they are of a file without."""
    tasks = {part.span.task.subgraph for part in parts}
    return not plans or any(plan <= tasks for plan in plans)


def _order(part: TimelineSpan) -> tuple[float, float, str]:
    return part.span.end_us, part.span.start_us, part.span.processor


def _moved(part: TimelineSpan, zero_us: float, end_us: float) -> TimelineSpan:
    """Return what of a part lies in a window, counted from its start."""
    span = part.span
    begins_us, ends_us = max(span.start_us, zero_us), min(span.end_us, end_us)
    moved = replace(span, start_us=begins_us - zero_us, end_us=ends_us - zero_us)
    return replace(part, span=moved)


def meetings_us(parts: tuple[TimelineSpan, ...]) -> dict[str, float]:
    """Return when the branches of each segment have met: at the end of the last, or of a merge."""
    groups: dict[str, list[TimelineSpan]] = defaultdict(list)
    for part in parts:
        groups[part.segment].append(part)
    meetings: dict[str, float] = {}
    for segment, in_segment in groups.items():
        processors = {part.span.processor for part in in_segment}
        if len(processors) > 1 or any(part.is_merge for part in in_segment):
            meetings[segment] = max(part.span.end_us for part in in_segment)
    return meetings
