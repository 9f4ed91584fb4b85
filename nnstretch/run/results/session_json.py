"""Repeated runs of one input as JSON data: latency, critical path, overlap, utilization."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnstretch.run.isolated_latency import latency_and_critical_path_us
from nnstretch.run.metrics import (
    latency_us,
    max_abs_error,
    mean_latency_us,
    measure,
    median_trace,
)
from nnstretch.run.perfetto import write_perfetto
from nnstretch.run.session import Session
from nnstretch.trace import Trace

SEQUENTIAL_REPEATS = 10
MIN_ISOLATED_ROUNDS, MAX_ISOLATED_ROUNDS = 10, 50
"""Rounds of runs in turn with sub-graphs alone on their cores."""

Progress = Callable[[int, float], Iterable[int]]
"""Progress bar: iterates over a number of runs, which take about so many seconds in all."""


@dataclass(frozen=True)
class RepeatedRuns:
    """Equal runs of one input."""

    output: Any
    traces: list[Trace]
    late: int
    """Tasks that began late on an emulated clock."""


def no_progress(count: int, _expected_s: float) -> Iterable[int]:
    """Show nothing."""
    return range(count)


def repeat_runs(
    session: Session, inputs: Any, count: int, progress: Progress = no_progress
) -> RepeatedRuns:
    """Run one input several times, once more before where times are this host's."""
    if session.clock == "real" and not session.emulated:
        session.run(inputs)  # Its caches and threads are cold.
    output = session.run(inputs)
    traces = [session.trace]
    late = session.late
    expected_s = count * session.latency_us * session.dilation / 1e6
    for _ in progress(count - 1, expected_s):
        output = session.run(inputs)
        traces.append(session.trace)
        late += session.late
    return RepeatedRuns(output, traces, late)


def session_json(
    session: Session, inputs: Any, runs: RepeatedRuns, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return all measures of repeated runs, with baselines measured here where times are real."""
    result = times_json(session, runs)
    result |= critical_path_json(session, inputs, result)
    expected = session.network.run_sequential(inputs)
    sequential_us, source = sequential_latency_us(session, inputs, progress)
    return {
        **result,
        "max_abs_error": max_abs_error(runs.output, expected),
        "compared_with": "the sub-graphs of this bundle run one after another",
        "sequential_is": source,
        "sequential_throughput_per_s": 1e6 / sequential_us if sequential_us else 0.0,
        "overlap": overlap_json(session, inputs),
    }


def timing_of(session: Session) -> str:
    """Return the source of a session's times: measured, predicted or emulated."""
    if not session.emulated:
        return "measured"
    return "predicted" if session.clock == "virtual" else "emulated"


def times_json(session: Session, runs: RepeatedRuns) -> dict[str, Any]:
    """Return latency, throughput and utilization of repeated runs."""
    tasks = session.tasks
    metrics = measure(session.manifest, tasks, runs.traces, session.dilation, session.handovers_us)
    processors = {}
    for name, busy_us in metrics.busy_us.items():
        utilisation = metrics.utilisation[name]
        processors[name] = {"busy_ms": busy_us / 1e3, "utilisation": utilisation}
    return {
        "model": session.manifest.model,
        "mode": session.mode,
        "clock": session.clock,
        "timing": timing_of(session),
        "backend": session.backends,
        "repeats": len(runs.traces),
        "latency_ms": {name: time_us / 1e3 for name, time_us in metrics.latency_us.items()},
        "virtual_ms": latency_us(session.predicted()) / 1e3 if session.emulated else None,
        "dilation": session.dilation,
        "late_tasks": runs.late,
        "critical_path_ms": metrics.critical_path_us / 1e3,
        "overlap_efficiency": metrics.overlap_efficiency,
        "dispatch_overhead_us": metrics.dispatch_overhead_us,
        "throughput_per_s": metrics.throughput_per_s,
        "replaced": 0,
        "lost": 0,
        "processors": processors,
    }


def critical_path_json(session: Session, inputs: Any, times: dict[str, Any]) -> dict[str, Any]:
    """Return latency beside the longest chain of sub-graphs, us.

    Where times are measured, each sub-graph is timed alone on its core, in turn with runs.
    """
    latency_us = times["latency_ms"]["median"] * 1e3
    path_us = times["critical_path_ms"] * 1e3
    source = "sub-graphs as they ran"
    if session.clock == "real" and not session.emulated and session.mode == "spatial":
        rounds = max(MIN_ISOLATED_ROUNDS, min(times["repeats"], MAX_ISOLATED_ROUNDS))
        latency_us, path_us = latency_and_critical_path_us(session, inputs, rounds)
        source = "each sub-graph alone on its core"
    return {
        "dispatch_us": times["dispatch_overhead_us"],
        "latency_us": latency_us,
        "critical_path_us": path_us,
        "efficiency": path_us / latency_us if latency_us else 1.0,
        "critical_path_is": source,
    }


def sequential_latency_us(
    session: Session, inputs: Any, progress: Progress = no_progress
) -> tuple[float, str]:
    """Return the latency of branches one after another, and whether it is predicted or measured."""
    with session.one_after_another() as sequential:
        if sequential.emulated:
            return latency_us(sequential.predicted()), "predicted"
        runs = repeat_runs(sequential, inputs, SEQUENTIAL_REPEATS, progress)
        return mean_latency_us(runs.traces), "measured"


def overlap_json(session: Session, inputs: Any) -> dict[str, Any] | None:
    """Return how far workers overlap on this machine; None where times are not its own."""
    if session.clock != "real" or session.emulated or len(session.processors) < 2:
        return None
    overlap = session.overlap(inputs)
    return None if overlap is None else asdict(overlap)


def write_session_trace(path: Path, session: Session, traces: list[Trace]) -> None:
    """Write the prediction, and beside it the run of median latency on a real clock."""
    timelines = {}
    if session.emulated:
        timelines["predicted"] = session.predicted()
    if session.clock == "real":
        timelines["measured"] = median_trace(traces)
    timing = "emulated" if session.emulated else "measured"
    write_perfetto(path, timelines, session.manifest, timing)
