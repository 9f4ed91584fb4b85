"""Files of a pipeline: the JSON of `run --mode pipeline` and of `partition`, and a trace."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnstretch.files.decode import tolerant
from nnstretch.report.load.json_files import decode_at
from nnstretch.report.load.pipeline_data import (
    PartitionSummary,
    PipelineReportData,
    StageInputs,
    StreamSummary,
    StreamTrace,
)
from nnstretch.report.load.trace import Key, SliceEvent, read_trace_file
from nnstretch.task import Task
from nnstretch.trace import Span

TRACE, RUN, SPLIT = "trace_pipeline.json", "run_pipeline.json", "partition.json"
PIPELINE_FILES = (RUN, TRACE, SPLIT)
_TASK = re.compile(r"(.+)#(\d{1,9})", re.S)


@tolerant
@dataclass(frozen=True, slots=True)
class StageDependencies:
    """A stage and the stages before it, as `otherData` of a trace lists them."""

    stage: str
    after: tuple[str, ...] = ()


def parse_pipeline(documents: Mapping[str, Any], files: Mapping[str, str]) -> PipelineReportData:
    """Decode the pipeline's files; `files` names them. Raises BrokenFile for a wrong field."""
    run = split = None
    streams: tuple[StreamTrace, ...] = ()
    inputs: StageInputs = ()
    if RUN in documents:
        run = decode_at(StreamSummary, documents[RUN], files[RUN])
    if SPLIT in documents:
        split = decode_at(PartitionSummary, documents[SPLIT], files[SPLIT])
    if TRACE in documents:
        streams = read_streams(documents[TRACE], files[TRACE])
        inputs = read_dependencies(documents[TRACE], files[TRACE])
    return PipelineReportData(run, split, streams, inputs)


def is_pipelines(document: Any) -> bool:
    """Return whether a trace says of itself that it is a pipeline's."""
    about = document.get("otherData") if isinstance(document, dict) else None
    return isinstance(about, dict) and isinstance(about.get("pipeline"), list)


def read_dependencies(document: Any, file: str) -> StageInputs:
    """Return each stage with those that it reads from. Raises BrokenFile when a field is wrong."""
    if not is_pipelines(document):
        return ()
    stages = document["otherData"]["pipeline"]
    kind = tuple[StageDependencies, ...]
    return tuple((s.stage, s.after) for s in decode_at(kind, stages, file, "otherData.pipeline"))


def read_streams(document: Any, file: str) -> tuple[StreamTrace, ...]:
    """Return a stream for each process, the predicted first. Raises BrokenFile for wrong fields."""
    trace = read_trace_file(document, file)
    spans: dict[Key | None, list[Span]] = defaultdict(list)
    for event in trace.slices:
        if (span := _span(event, trace.thread_of(event))) is not None:
            spans[event.pid].append(span)
    streams: list[StreamTrace] = []
    for pid, in_process in spans.items():
        in_order = sorted(in_process, key=lambda s: (s.start_us, s.end_us, s.task.request))
        source = trace.processes.get(pid, "trace")
        streams.append(StreamTrace(source, tuple(in_order), trace.timing))
    return tuple(sorted(streams, key=lambda s: (s.source != "predicted", s.source)))


def _span(event: SliceEvent, thread: str) -> Span | None:
    match = _TASK.fullmatch(event.args.task or event.name)
    if match is None:
        return None
    task = Task(match[0], event.args.stage or match[1], request=int(match[2]))
    return Span(event.ts, event.ts + event.dur, task, thread)
