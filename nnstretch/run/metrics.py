"""Latencies and traces as the numbers that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, median
from typing import Any

import numpy as np

from nnstretch.bundle.manifest import Manifest
from nnstretch.errors import Mismatch
from nnstretch.schedule import critical_path_us, task_graph
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Trace


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What a number of equal runs says, in microseconds of the chip unless the name says
    otherwise.
    """

    latency_us: Mapping[str, float]
    """min, median, p90 and p99, from an input's arrival to its last output."""
    critical_path_us: float
    """The longest chain of needs at the median time of each task: no schedule is faster."""
    dispatch_overhead_us: float
    """Per meeting point, before the merge and behind it, in microseconds of the host.

    The median.
    """
    throughput_per_s: float
    busy_us: Mapping[str, float]
    """By processor, per run."""
    utilisation: Mapping[str, float]

    @property
    def overlap_efficiency(self) -> float:
        """Return critical path over median latency: 1 where nothing but work takes time."""
        return (
            self.critical_path_us / self.latency_us["median"] if self.latency_us["median"] else 1.0
        )


def measure(
    manifest: Manifest,
    tasks: Sequence[Task],
    traces: Sequence[Trace],
    dilation: float,
    handovers_us: TaskTimes | None = None,
) -> RunMetrics:
    """Measure runs: `tasks` as they were scheduled, one trace per run on a clock `dilation` times
    slower than the host's.

    `handovers_us`: what an emulated host spends on handing over, by (sub-graph, processor); it is
    the chip's time, no overhead.
    """
    held_us = handovers_us or {}
    latencies_us = [latency_us(trace) for trace in traces]
    total_us = sum(latencies_us)
    durations_us = _median_durations(traces)
    busy_us = {name: sum(trace.busy_us(name) for trace in traces) for name in traces[0].processors}
    return RunMetrics(
        latency_us=percentiles(latencies_us),
        critical_path_us=critical_path_us(
            task_graph(manifest),
            lambda task: (
                durations_us[task.name] + held_us.get((task.subgraph, task.processor or ""), 0.0)
            ),
        ),
        dispatch_overhead_us=median(
            dispatch_overhead_us(manifest, tasks, trace, bool(held_us)) for trace in traces
        )
        * dilation,
        throughput_per_s=len(traces) * 1e6 / total_us if total_us else 0.0,
        busy_us={name: time_us / len(traces) for name, time_us in busy_us.items()},
        utilisation={
            name: time_us / total_us if total_us else 0.0 for name, time_us in busy_us.items()
        },
    )


def latency_us(trace: Trace) -> float:
    """Return the time from the arrival of the input, which is time zero, to the last end."""
    return max((span.end_us for span in trace.spans), default=0.0)


def percentiles(times: Sequence[float], *more: int) -> dict[str, float]:
    """Return minimum, median, 90th, 99th and `more` percentiles."""
    ranks = {"min": 0, "median": 50, **{f"p{rank}": rank for rank in (90, 99, *more)}}
    values = np.percentile(times, list(ranks.values()))
    return {name: float(value) for name, value in zip(ranks, values, strict=True)}


def median_trace(traces: Sequence[Trace]) -> Trace:
    """Return the run of median latency, for pictures."""
    return sorted(traces, key=latency_us)[len(traces) // 2]


def dispatch_overhead_us(
    manifest: Manifest, tasks: Sequence[Task], trace: Trace, handed_over: bool = False
) -> float:
    """Return median over meeting points of what passes before the merge starts and until its last
    reader does; where branches wrote side by side and nothing is merged, from the end of the last
    branch.

    A task may start when its needs have ended and its processor is free (and, where `handed_over`,
    an emulated host has handed it over); what it starts later is overhead. A network without
    meeting points is measured at every task that needs another.
    """
    waits_us = _waits_us(tasks, trace, handed_over)
    readers: dict[str, list[float]] = {}
    for task in tasks:
        for need in task.needs:
            readers.setdefault(need, []).append(waits_us[task.name])
    merges = {sub.name for sub in manifest.subgraphs if sub.role == "merge"}
    meetings: list[float] = []
    for task in tasks:
        if task.subgraph in merges:
            meetings.append(waits_us[task.name] + max(readers.get(task.name, [0.0])))
    return median(meetings or [waits_us[task.name] for task in tasks if task.needs] or [0.0])


def _waits_us(tasks: Iterable[Task], trace: Trace, handed_over: bool) -> dict[str, float]:
    spans = trace.spans_by_task()
    before = _previous_end_us(trace)
    if handed_over:
        for name, free_us in before.items():
            before[name] = max(free_us, spans[name].handed_us or 0.0)
    waits_us: dict[str, float] = {}
    for task in tasks:
        needs_us = [spans[need].end_us for need in task.needs]
        ready_us = max([before.get(task.name, 0.0), *needs_us])
        waits_us[task.name] = spans[task.name].start_us - ready_us
    return waits_us


def _previous_end_us(trace: Trace) -> dict[str, float]:
    """Return when each task's processor ended the one before it."""
    free_us: dict[str, float] = {}
    before: dict[str, float] = {}
    for span in sorted(trace.spans, key=lambda span: (span.start_us, span.end_us)):
        before[span.task.name] = min(
            free_us.get(span.processor, 0.0), span.start_us
        )  # what was passed over may lie within another task
        free_us[span.processor] = max(free_us.get(span.processor, 0.0), span.end_us)
    return before


def _median_durations(traces: Sequence[Trace]) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for span in chain.from_iterable(trace.spans for trace in traces):
        by_task.setdefault(span.task.name, []).append(span.duration_us)
    return {task: median(times) for task, times in by_task.items()}


def mean_latency_us(traces: Sequence[Trace]) -> float:
    """Return the mean latency of runs."""
    return mean(latency_us(trace) for trace in traces)


def max_abs_error(output: Any, expected: Any) -> float:
    """Return largest difference of two outputs, arrays or arrays by name.

    NaN or infinity must be in both.

    Raises Mismatch when only one of them is NaN or infinite.
    """
    if isinstance(output, Mapping):
        return max(max_abs_error(output[name], expected[name]) for name in expected)
    differ = ~((output == expected) | ((output != output) & (expected != expected)))
    if not differ.any():
        return 0.0
    worst = float(
        np.abs(output[differ].astype(np.float64) - expected[differ].astype(np.float64)).max()
    )
    if not np.isfinite(worst):
        raise Mismatch(
            f"{int(differ.sum())} of {output.size} outputs, run against the sequential run, NaN or"
            " infinite in only one of them"
        )
    return worst
