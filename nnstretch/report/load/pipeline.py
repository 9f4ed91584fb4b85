"""Files of a pipeline -> PipelineStory.

The JSON of `run --mode pipeline` and of `partition`, and a trace of both clocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from nnstretch.report.load.json_cursor import JsonCursor
from nnstretch.report.load.pipeline_data import (
    PartitionSummary,
    PipelineReportData,
    SplitStage,
    StageRow,
    StreamSlice,
    StreamSummary,
    StreamTrace,
)
from nnstretch.report.load.trace import Lane, key_of, lane_of, timing_of

TRACE, RUN, SPLIT = "trace_pipeline.json", "run_pipeline.json", "partition.json"
PIPELINE_FILES = (RUN, TRACE, SPLIT)
_TASK = re.compile(r"(.+)#(\d{1,9})", re.S)


def parse_pipeline(read: Mapping[str, JsonCursor]) -> PipelineReportData | None:
    """Read the pipeline's files that are there; None where none of them is."""
    if not any(name in read for name in PIPELINE_FILES):
        return None
    return PipelineReportData(
        run=parse_pipeline_run(read[RUN]) if RUN in read else None,
        split=parse_partition(read[SPLIT]) if SPLIT in read else None,
        streams=parse_streams(read[TRACE]) if TRACE in read else (),
        after=parse_dependencies(read[TRACE]) if TRACE in read else (),
    )


def is_pipelines(trace: JsonCursor) -> bool:
    """Return whether a trace says of itself that it is a pipeline's."""
    about = trace.value.get("otherData") if isinstance(trace.value, dict) else None
    return isinstance(about, dict) and isinstance(about.get("pipeline"), list)


def parse_dependencies(trace: JsonCursor) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Decode which stages each stage waits for. Raises BrokenFile when a field is wrong."""
    if not is_pipelines(trace):
        return ()
    return tuple(
        (step.at("stage").text(), step.at("after").texts())
        for step in trace.at("otherData").at("pipeline").items()
    )


def parse_streams(trace: JsonCursor) -> tuple[StreamTrace, ...]:
    """Decode one stream of each process, the predicted first. Events that belong to no item are
    left out.
    """
    events = trace if isinstance(trace.value, list) else trace.at("traceEvents")
    if events.missing:
        events.broken("a list of events")
    names: dict[object, str] = {}
    rows: dict[Lane, str] = {}
    slices: dict[object, list[StreamSlice]] = defaultdict(list)
    for event in events.items():
        phase, name = event.at("ph").text(), event.at("name").maybe_text()
        if phase == "M" and name == "process_name":
            names[key_of(event, "pid")] = event.at("args").at("name").text()
        elif phase == "M" and name == "thread_name":
            rows[lane_of(event)] = event.at("args").at("name").text()
        elif phase == "X" and (slice_ := _slice(event, rows)) is not None:
            slices[key_of(event, "pid")].append(slice_)
    timing = timing_of(trace)
    streams = [
        StreamTrace(
            names.get(pid, "trace"),
            tuple(
                sorted(
                    slices_of_process,
                    key=lambda slice_: (slice_.start_us, slice_.end_us, slice_.item),
                )
            ),
            timing,
        )
        for pid, slices_of_process in slices.items()
    ]
    return tuple(sorted(streams, key=lambda slice_: (slice_.source != "predicted", slice_.source)))


def _slice(event: JsonCursor, rows: Mapping[Lane, str]) -> StreamSlice | None:
    args = event.at("args")
    task = None if args.missing else args.at("task").maybe_text()
    named = _TASK.fullmatch(task or event.at("name").text())
    if named is None:
        return None
    stage = (None if args.missing else args.at("stage").maybe_text()) or named[1]
    lane, start_us = lane_of(event), event.at("ts").number()
    return StreamSlice(
        stage,
        int(named[2]),
        rows.get(lane, str(lane[1])),
        start_us,
        start_us + event.at("dur").size(),
    )


def parse_pipeline_run(place: JsonCursor) -> StreamSummary:
    """Decode the run of a pipeline. Raises BrokenFile when a field is wrong."""
    numbers = (
        *(
            "items",
            "period_ms",
            "bottleneck_ms",
            "predicted_bottleneck_ms",
            "balance",
            "efficiency",
            "throughput_per_s",
        ),
        *("sequential_throughput_per_s", "dilation", "failed"),
    )
    return StreamSummary(
        model=place.at("model").maybe_text(),
        clock=place.at("clock").maybe_text(),
        timing=place.at("timing").maybe_text(),
        sequential_is=place.at("sequential_is").maybe_text(),
        first_error=place.at("first_error").maybe_text(),
        **{name: place.at(name).maybe_size() for name in numbers},
        dispatch_overhead_us=place.at("dispatch_overhead_us").maybe_number(),
        latency_ms=_sizes(place.at("latency_ms")),
        untimed=place.at("untimed").texts(),
        stages=tuple(_stage(stage) for stage in place.at("stages").items()),
    )


def _sizes(place: JsonCursor) -> dict[str, float]:
    return {key: value.size() for key, value in place.entries() if not value.missing}


def _stage(stage: JsonCursor) -> StageRow:
    numbers = ("items", "failed", "late", "busy_ms", "starved_ms", "blocked_ms", "copies_ms")
    return StageRow(
        name=stage.at("name").text(),
        processors=stage.at("processors").texts(),
        service_ms=stage.at("service_ms").size(),
        share_ms=stage.at("share_ms").size(),
        **{name: stage.at(name).maybe_size() for name in numbers},
    )


def parse_partition(place: JsonCursor) -> PartitionSummary:
    """Decode partition.json. Raises BrokenFile when a field is wrong."""
    return PartitionSummary(
        model=place.at("model").maybe_text(),
        soc=place.at("soc").maybe_text(),
        stages=tuple(_split_stage(stage) for stage in place.at("stages").items()),
        **{
            name: place.at(name).maybe_size()
            for name in ("bottleneck_ms", "balance", "bound_ms", "speedup_vs_fastest")
        },
        proven=place.at("proven").maybe_flag(),
        why_open=place.at("why_open").maybe_text(),
        fastest=place.at("fastest").maybe_text(),
        single_ms=_sizes(place.at("single_ms")),
    )


def _split_stage(stage: JsonCursor) -> SplitStage:
    numbers = ("compute_ms", "transfer_in_ms", "transfer_out_ms", "error_ms", "macs", "params")
    return SplitStage(
        processors=stage.at("processors").texts() or stage.at("processor").texts(),
        start=stage.at("start").maybe_text(),
        end=stage.at("end").maybe_text(),
        latency_ms=stage.at("latency_ms").size(),
        **{name: stage.at(name).maybe_size() for name in numbers},
    )
