"""How much slower than the chip a host has to play it, so that the timetable stays true.

A host computes the true numbers inside the time that the chip is predicted to need. Where it is
too slow for that, every predicted time is stretched by one factor, the dilation, and the trace
is divided by it again: the proportions, and so the overlap, stay those of the chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nnstretch.schedule import critical_path_us
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

MARGIN = 1.4
"""Room for a host that is slower while it emulates than it was in rehearsal.

Caches go cold between tasks.
"""
SLIP = 0.01
"""Share of the timetable that late tasks and handing over may cost together."""
TOLERATED = 0.015
"""A trial run on the timetable that slips by no more is good enough."""
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the host needs without a timetable, branches at once."""

    compute_us: Mapping[str, float]
    """By task, the least of a few runs.

    What another program took from the host is not the host's.
    """
    handing_over_us: float
    """Per run, everything between tasks on the longest chain; the least."""


def summarize_rehearsal(tasks: tuple[Task, ...], traces: Iterable[Trace]) -> Rehearsal:
    """Return what a rehearsal took: compute and hand-over."""
    runs = [{span.task.name: span for span in trace.spans} for trace in traces]
    compute_us = {task.name: min(run[task.name].duration_us for run in runs) for task in tasks}
    return Rehearsal(compute_us, max(0.0, min(_gaps_us(tasks, run) for run in runs)))


def _gaps_us(tasks: tuple[Task, ...], run: Mapping[str, Span]) -> float:
    return max(span.end_us for span in run.values()) - critical_path_us(
        tasks, lambda task: run[task.name].duration_us
    )


def required_dilation(
    rehearsal: Rehearsal, predicted_us: Mapping[str, float], makespan_us: float
) -> float:
    """Return the smallest factor, at least 1, that keeps lateness and handing over below `SLIP` of
    the timetable.

    Every long task then fits with `MARGIN`; one predicted at next to nothing may run over by what
    it costs.
    """

    def slips(factor: float) -> bool:
        late_us = sum(
            max(0.0, MARGIN * host - factor * predicted_us[task])
            for task, host in rehearsal.compute_us.items()
        )
        return late_us + rehearsal.handing_over_us > SLIP * factor * makespan_us

    if makespan_us <= 0 or slips(LARGEST):
        return LARGEST if makespan_us > 0 else 1.0
    low, high = 1.0, LARGEST
    if not slips(low):
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slips(middle) else (low, middle)
    return high


def correct_dilation(factor: float, slip: float) -> float:
    """Return the factor after a trial run that was `slip` late.

    Handing over costs the host the same at any factor.

    At most doubled, since one bad moment of a busy host is no reason to crawl ever after.
    """
    return factor if slip <= TOLERATED else factor * min(2.0, slip / SLIP)
