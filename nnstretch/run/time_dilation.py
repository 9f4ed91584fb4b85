"""Time dilation: how many times slower than the chip a host must emulate it.

A host computes the true numbers inside the time that the chip is predicted to need. Where it is
too slow for that, every predicted time is stretched by one factor, the dilation, and the trace
is divided by it again: the proportions, and so the overlap, stay those of the chip. Sessions and
pipelines find it by one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from nnstretch.run.metrics import latency_us
from nnstretch.schedule import critical_path_us
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Span, Trace

REHEARSALS = 5
"""Runs of which the least time counts."""
MARGIN = 1.4
"""Room for a host that is slower while it emulates than in rehearsal: caches go cold."""
SLIP = 0.01
"""Share of the timetable that late tasks and enqueueing may cost together."""
TOLERATED = 0.015
"""A trial run on the timetable that slips by no more is good enough."""
LARGEST = 1e6
WARM_UPS, TRIALS = 2, 2


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the host needs without a timetable, branches at once."""

    compute_us: Mapping[str, float]
    """By task, the least of a few runs: what other programs took is not the host's."""
    handing_over_us: float = 0.0
    """Per run, everything between tasks on the longest chain; the least."""


def summarize_rehearsal(tasks: tuple[Task, ...], traces: Iterable[Trace]) -> Rehearsal:
    """Return what a rehearsal took: compute and hand-over."""
    runs = [trace.spans_by_task() for trace in traces]
    compute_us = {task.name: min(run[task.name].duration_us for run in runs) for task in tasks}
    return Rehearsal(compute_us, max(0.0, min(_gaps_us(tasks, run) for run in runs)))


def _gaps_us(tasks: tuple[Task, ...], run: Mapping[str, Span]) -> float:
    end_us = max(span.end_us for span in run.values())
    return end_us - critical_path_us(tasks, lambda task: run[task.name].duration_us)


def required_dilation(
    rehearsal: Rehearsal,
    predicted_us: Mapping[str, float],
    makespan_us: float,
    slip: float = SLIP,
) -> float:
    """Return the smallest factor, at least 1, with lateness below `slip` of the timetable.

    Every long task then fits with `MARGIN`; one predicted at next to nothing may run over by what
    it costs. With a slip of 0 all tasks fit.
    """

    def slips(factor: float) -> bool:
        late_us = 0.0
        for task, host_us in rehearsal.compute_us.items():
            late_us += max(0.0, MARGIN * host_us - factor * predicted_us[task])
        return late_us + rehearsal.handing_over_us > slip * factor * makespan_us

    if makespan_us <= 0:
        return 1.0
    if slips(LARGEST):
        return LARGEST
    low, high = 1.0, LARGEST
    if not slips(low):
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slips(middle) else (low, middle)
    return high


def correct_dilation(factor: float, slip: float) -> float:
    """Return the factor after a trial run that was `slip` late, at most twice the one before.

    To enqueue costs the host the same at any factor; one bad moment of a busy host is no reason to
    be slow ever after.
    """
    return factor if slip <= TOLERATED else factor * min(2.0, slip / SLIP)


def rehearsed_dilation(
    tasks: tuple[Task, ...],
    durations_us: TaskTimes,
    predicted: Trace,
    run: Callable[[TaskTimes, float], Trace],
) -> float:
    """Return the dilation that a network needs on this host.

    `run` computes it at these times and this dilation: first without times, as fast as the host
    can, then on the timetable, to see whether that slips.
    """
    by_task = {span.task.name: span.duration_us for span in predicted.spans}
    predicted_us = latency_us(predicted)
    free = [run({}, 1.0) for _ in range(WARM_UPS + REHEARSALS)][WARM_UPS:]
    factor = required_dilation(summarize_rehearsal(tasks, free), by_task, predicted_us)
    for _ in range(TRIALS):
        paced = [run(durations_us, factor) for _ in range(REHEARSALS)]
        late_us = median(latency_us(trace) for trace in paced) - predicted_us
        better = correct_dilation(factor, late_us / predicted_us if predicted_us else 0.0)
        if better == factor:
            break
        factor = better
    return factor
