"""Chrome trace events -> one request per source, as the trace noun that the rest of the package
uses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from nnstretch.report.load.data import Timeline, TimelineSpan
from nnstretch.report.load.json_cursor import JsonCursor
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

_REQUEST = re.compile(r"r(\d{1,9})\..*|.*#(\d{1,9})", re.S)
_REQUEST_PART = re.compile(r"^r\d{1,9}\.|#\d{1,9}$")
_SEGMENT = re.compile(r"(?:r\d+\.)?(s\d{1,9})[._].+", re.S)
_MERGE = re.compile(r".+[._]merge", re.S)
Lane = tuple[object, object]


def read_timelines(place: JsonCursor) -> tuple[Timeline, ...]:
    """Read timelines of both forms the format allows: an object with `traceEvents`, or the bare
    list.
    """
    events = place if isinstance(place.value, list) else place.at("traceEvents")
    if events.missing:
        events.broken("a list of events")
    rows = [(event.at("ph").text(), event) for event in events.items()]
    named = [(event.at("name").maybe_text(), event) for phase, event in rows if phase == "M"]
    sources = {
        key_of(event, "pid"): _given_name(event) for name, event in named if name == "process_name"
    }
    lanes = {lane_of(event): _given_name(event) for name, event in named if name == "thread_name"}
    parts: dict[str, list[TimelineSpan]] = defaultdict(list)
    for phase, event in rows:
        if phase == "X":
            parts[sources.get(key_of(event, "pid"), "trace")].append(_part(event, lanes))
    ordered = sorted(parts, key=lambda source: (source != "predicted", source))
    timing = timing_of(place)
    return tuple(
        replace(
            _median_request(source, parts[source]), timing=None if source == "predicted" else timing
        )
        for source in ordered
    )


def timing_of(place: JsonCursor) -> str | None:
    """Return `emulated` where the file says that processors were; nothing else is taken from it."""
    about = place.at("otherData") if isinstance(place.value, dict) else None
    said = about.at("timing").value if about is not None and isinstance(about.value, dict) else None
    return said if said in ("emulated", "measured") else None


def _given_name(event: JsonCursor) -> str:
    return event.at("args").at("name").text()


def key_of(event: JsonCursor, name: str) -> object:
    """Return process or thread of an event: numbers or texts, and nothing else."""
    at = event.at(name)
    if not (at.missing or isinstance(at.value, int | float | str)):
        at.broken("a number or text")
    return at.value


def lane_of(event: JsonCursor) -> Lane:
    """Return process and thread of an event."""
    return key_of(event, "pid"), key_of(event, "tid")


def _part(event: JsonCursor, lanes: dict[Lane, str]) -> TimelineSpan:
    """Return what an event says it is, by its own `cat` and `args`, else by its name."""
    lane, name = lane_of(event), event.at("name").text()
    start_us = event.at("ts").number()
    args = event.at("args")
    shown = None if args.missing else args.at("task").maybe_text()
    request = None if args.missing else args.at("request").maybe_whole()
    segment = None if args.missing else args.at("segment").maybe_whole()
    request = _request_in(shown or name) if request is None else request
    task = Task(name, _REQUEST_PART.sub("", name), request=request)
    end_us = start_us + event.at("dur").size()
    span = Span(start_us, end_us, task, lanes.get(lane, str(lane[1])))
    is_merge = event.at("cat").value == "merge" or _MERGE.fullmatch(name) is not None
    return TimelineSpan(
        span,
        _segment_in(name) if segment is None else f"s{segment}",
        is_merge,
        request,
    )


def _request_in(task: str) -> int:
    """Return the request in a name: `r2.s3.dsp` and `s3.dsp#2` belong to request 2."""
    match = _REQUEST.fullmatch(task)
    return int(match[1] or match[2]) if match else 0


def _segment_in(name: str) -> str:
    """Return the segment in a name: `s3` of `r0.s3.dsp`; a task that is named otherwise stands for
    itself.
    """
    match = _SEGMENT.fullmatch(name)
    return match[1] if match else name


def _median_request(source: str, parts: list[TimelineSpan]) -> Timeline:
    """Return the request of median length: a chart of twenty shows nothing."""
    requests: dict[int, list[TimelineSpan]] = defaultdict(list)
    for part in parts:
        requests[part.request].append(part)
    lengths_us = {
        number: Trace(tuple(part.span for part in found)).makespan_us
        for number, found in requests.items()
    }
    by_length = sorted(requests, key=lambda number: (lengths_us[number], number))
    chosen = by_length[(len(by_length) - 1) // 2]
    zero_us = min(part.span.start_us for part in requests[chosen])
    kept = sorted(
        requests[chosen],
        key=lambda part: (part.span.end_us, part.span.start_us, part.span.processor),
    )
    return Timeline(source, tuple(_moved(part, zero_us) for part in kept), chosen, len(requests))


def _moved(part: TimelineSpan, zero_us: float) -> TimelineSpan:
    span = part.span
    return replace(
        part, span=replace(span, start_us=span.start_us - zero_us, end_us=span.end_us - zero_us)
    )


def meetings_us(parts: tuple[TimelineSpan, ...]) -> dict[str, float]:
    """Return for each segment the moment its branches have met: the end of its merge, or of its
    last branch.
    """
    groups: dict[str, list[TimelineSpan]] = defaultdict(list)
    for part in parts:
        groups[part.segment].append(part)
    return {
        segment: max(part.span.end_us for part in found)
        for segment, found in groups.items()
        if any(part.is_merge for part in found) or len({part.span.processor for part in found}) > 1
    }
