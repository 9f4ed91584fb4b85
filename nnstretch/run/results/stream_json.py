"""A stream of equal items through a pipeline as JSON data, simulated or measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.pipeline_view import subgraphs_of_stage
from nnstretch.errors import Cancelled
from nnstretch.run.backends.registry import Choice, describe_choice
from nnstretch.run.metrics import max_abs_error, percentiles
from nnstretch.run.pipelines.item_buffer import ItemResult, StagePacing
from nnstretch.run.pipelines.metrics import (
    PipelineMetrics,
    measure_pipeline,
    processors_busy_us,
    simulate_pipeline,
)
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.prediction import (
    pacing_for,
    predict_stream,
    predicted_bottleneck_us,
    predicted_in_turn_us,
)
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.run.pipelines.workers import StageStatistics
from nnstretch.schedule.cpu_affinity import affinity
from nnstretch.soc import Processor
from nnstretch.trace import Trace

SEQUENTIAL_REPEATS = 10
TRACED_ITEMS = 64
"""Items of a predicted trace at most."""
LATE_SHARE = 0.5
"""Of the items, above which a host cannot keep an emulated clock; a few are made up for."""
Progress = AbstractContextManager[Callable[[], object]]
"""Shows progress while a stream runs; what it enters is called after each item."""


@dataclass(frozen=True)
class StreamRequest:
    """A stream of one item again and again through a bundle's pipeline."""

    bundle: Bundle
    sequential: SequentialPipeline
    """The same stages one after another: baseline, and what outputs are compared with."""
    item: Any
    items: int
    processors: dict[str, Processor]
    """Of the chip, by name; empty for those that the bundle describes."""
    functions: dict[str, Callable[..., object]] = field(default_factory=dict)
    """Functions of Python stages, by `module:function`."""
    backend: Choice = None
    on_error: str = "continue"
    emulated: bool = False
    """Whether the real clock plays the chip's predicted times."""

    @property
    def predicted_sequential_us(self) -> float:
        """Return the predicted time of an item through all stages, one after another."""
        return predicted_in_turn_us(self.bundle.manifest, self.processors)


@dataclass(frozen=True)
class StreamResult:
    """JSON data of a stream, the outputs of an item, and the measured trace."""

    json: dict[str, Any]
    output: Any
    trace: Trace | None = None
    """None on the virtual clock."""


def simulate_stream(request: StreamRequest) -> StreamResult:
    """Play predicted times on the virtual clock."""
    stages = request.sequential.pipeline.stages
    metrics, output = simulate_pipeline(
        request.sequential, request.item, request.items, request.processors
    )
    trace = metrics.trace
    busy_us = {name: trace.busy_us(name) / request.items for name in trace.processors}
    sequential_us = request.predicted_sequential_us
    error = None
    if is_numeric(output):
        error = max_abs_error(output, request.sequential.run(request.item))
    rows = [simulated_row(request.items) for _ in stages]
    json = {
        **stream_json(request, metrics, rows, busy_us),
        "clock": "virtual",
        "timing": "predicted",
        "dilation": 1.0,
        "sequential_throughput_per_s": 1e6 / sequential_us if sequential_us else 0.0,
        "sequential_is": "predicted",
        "max_abs_error": error,
        "untimed": [stage.name for stage in stages if stage.call],
    }
    return StreamResult(json, output)


def measure_stream(request: StreamRequest, progress: Progress | None = None) -> StreamResult:
    """Stream on the real clock: as fast as this host can, or emulated at the chip's pace.

    Raises the error of the first item that failed when failures stop the stream.
    """
    pace = stage_pacing(request)
    expected = request.sequential.run(request.item)
    sequential_us = sequential_latency_us(request)
    pipeline = Pipeline(
        request.bundle,
        request.functions,
        backend=request.backend,
        on_error=request.on_error,
        pace=pace,
    )
    with pipeline, progress or nullcontext(lambda: None) as tick:
        results = ItemComparison(expected, tick)
        pipeline.run(request.item)  # to be warm
        pipeline.restart_statistics()
        try:
            metrics = measure_pipeline(pipeline, request.item, request.items, results.observe)
        except Cancelled as error:
            raise (results.failures[0] if results.failures else error) from None
        statistics = pipeline.statistics()
    dilation = pipeline.dilation
    pairs = zip(statistics, pipeline.stage_graph, strict=True)
    rows = [measured_row(counts, dilation) for counts, step in pairs if not step.part]
    host_busy_us = processors_busy_us(statistics)
    busy_us = {name: time_us / dilation for name, time_us in host_busy_us.items()}
    json = {
        **stream_json(request, metrics, rows, busy_us),
        "clock": "real",
        "timing": "emulated" if request.emulated else "measured",
        "dilation": dilation,
        "sequential_throughput_per_s": 1e6 / sequential_us if sequential_us else 0.0,
        "sequential_is": "predicted" if request.emulated else "measured",
        **results.json(),
    }
    if request.emulated:
        json["noisy"] = lateness(metrics.late_items, request.items)
    return StreamResult(json, expected, metrics.trace)


def lateness(late_items: int, items: int) -> str:
    """Return why emulated times are noisy; empty where this host kept the clock."""
    if late_items <= LATE_SHARE * items:
        return ""
    late = f"{late_items} of {items} items ({late_items / items:.0%}) were late"
    return f"this host could not keep the emulated clock, {late}"


def stage_pacing(request: StreamRequest) -> StagePacing | None:
    """Return the pace of predicted times on this host, None where nothing is emulated."""
    if not request.emulated:
        return None
    cores = len(affinity() or (0,))
    return pacing_for(request.sequential, request.item, request.processors, cores)


def sequential_latency_us(request: StreamRequest) -> float:
    """Return the time of an item through all stages in turn, predicted where emulated."""
    if request.emulated:
        return request.predicted_sequential_us
    return request.sequential.latency_s(request.item, SEQUENTIAL_REPEATS) * 1e6


@dataclass
class ItemComparison:
    """Results of a stream, each compared with the expected one as it arrives."""

    expected: Any
    tick: Callable[[], object]
    max_abs_error: float = 0.0
    failures: list[Exception] = field(default_factory=list)

    def observe(self, result: ItemResult) -> None:
        """Count a failed item, compare another. Raises Mismatch for a NaN in only one of them."""
        self.tick()
        if result.error is not None:
            self.failures.append(result.error)
        elif is_numeric(self.expected):
            error = max_abs_error(result.outputs, self.expected)
            self.max_abs_error = max(self.max_abs_error, error)

    def json(self) -> dict[str, Any]:
        """Return errors and failures as JSON data."""
        return {
            "max_abs_error": self.max_abs_error if is_numeric(self.expected) else None,
            "failed": len(self.failures),
            "first_error": str(self.failures[0]) if self.failures else None,
        }


def is_numeric(output: Any) -> bool:
    """Return whether an output is arrays of numbers, or such arrays by name."""
    values = output.values() if isinstance(output, dict) else [output]
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values)


def simulated_row(items: int) -> dict[str, Any]:
    """Return the counts of a simulated stage."""
    counts = {"items": items, "failed": 0, "late": 0}
    return {**counts, "busy_ms": None, "starved_ms": None, "blocked_ms": None}


def measured_row(statistics: StageStatistics, dilation: float) -> dict[str, Any]:
    """Return the counts and times of a measured stage."""
    scale = 1e3 * dilation
    return {
        "items": statistics.items,
        "failed": statistics.failed,
        "late": statistics.late,
        "busy_ms": statistics.busy_us / scale,
        "starved_ms": statistics.starved_us / scale,
        "blocked_ms": statistics.blocked_us / scale,
    }


def stream_json(
    request: StreamRequest,
    metrics: PipelineMetrics,
    rows: list[dict[str, Any]],
    busy_us: dict[str, float],
) -> dict[str, Any]:
    """Return what both clocks have; `rows` are the counts of each stage."""
    manifest = request.bundle.manifest
    forecast_us = predicted_bottleneck_us(manifest, request.processors)
    latency_us = percentiles(metrics.latencies_us or (0.0,))
    period_us = metrics.period_us
    processors = {}
    for name, time_us in busy_us.items():
        utilisation = time_us / period_us if period_us else 0.0
        processors[name] = {"busy_ms": time_us / 1e3, "utilisation": utilisation}
    return {
        "model": manifest.model,
        "mode": "pipeline",
        "items": len(metrics.ended_us) + metrics.failed_items,
        "backend": describe_choice(request.sequential.backends, manifest),
        "latency_ms": {name: time_us / 1e3 for name, time_us in latency_us.items()},
        "period_ms": period_us / 1e3,
        "bottleneck_ms": metrics.bottleneck_us / 1e3,
        "predicted_bottleneck_ms": None if forecast_us is None else forecast_us / 1e3,
        "predicted_for": None if forecast_us is None else manifest.soc,
        "balance": metrics.balance,
        "efficiency": metrics.efficiency,
        "critical_path_ms": metrics.critical_path_us / 1e3,
        "overlap_efficiency": metrics.efficiency,
        "dispatch_overhead_us": metrics.overhead_us,
        "throughput_per_s": 1e6 / period_us if period_us else 0.0,
        "stages": stages_json(request, metrics, rows),
        "late_items": metrics.late_items,
        "replaced": 0,
        "lost": 0,
        "failed": 0,
        "processors": processors,
        "compared_with": "the stages of this bundle run one after another",
    }


def stages_json(
    request: StreamRequest, metrics: PipelineMetrics, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return processors, times and counts of each stage."""
    latency_us = metrics.latency_us
    copies_us = metrics.copies_us
    shares_us = metrics.shares_us
    stages = []
    for stage, row in zip(request.sequential.pipeline.stages, rows, strict=True):
        members = subgraphs_of_stage(stage, request.bundle.manifest)
        processors = stage.replica_names or dict.fromkeys(sub.processor for sub in members)
        stages.append(
            {
                "name": stage.name,
                "processors": list(processors or (stage.name,)),
                "service_ms": latency_us[stage.name] / 1e3,
                "copies_ms": copies_us[stage.name] / 1e3,
                "share_ms": shares_us[stage.name] / 1e3,
                **row,
            }
        )
    return stages


def stream_traces(request: StreamRequest, result: StreamResult) -> dict[str, Trace]:
    """Return the predicted trace where times are predicted, and the measured one."""
    traces = {}
    if request.emulated or result.trace is None:
        items = min(request.items, TRACED_ITEMS)
        traces["predicted"] = predict_stream(request.bundle.manifest, items, request.processors)
    if result.trace is not None:
        traces["measured"] = result.trace
    return traces
