"""A table of costs from a server's record: what tasks took, with what slowed them taken out.

Tasks are slowed by what runs beside them, by tasks before them on their processor that they do not
need, and by slow moments of the host. The table has each of these apart, as a simulation puts them
together again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from nnstretch.errors import BadInput
from nnstretch.files.workload.measured_costs import (
    LEAST_FACTOR,
    MOST_FACTOR,
    MeasuredCosts,
    MeasuredTask,
    measured_task,
)
from nnstretch.files.workload.service_record import ServiceRecord
from nnstretch.schedule.simulation.busy_time import busy_shares
from nnstretch.schedule.simulation.replay import PlacedSpan, host_costs, placed_spans

FEW = 10
"""Tasks of which nothing is said about what slowed them."""
STILL = 1e-4
"""Variance of the busy share below which nothing can be said either."""
MOST_GAIN = 0.9
FEW_UNDER_WAY = 1
PACE_WINDOW_US = 50_000.0
MOST_WINDOWS = 100_000
ROUNDS = 3
"""Times that gain, factors and pace are told from each other."""
MOST_TIMES = 4.0
"""Of the median: what is longer says of factors no more than that."""
Kind = tuple[str, str, str]
"""Application, task and processor."""


@dataclass(frozen=True, slots=True)
class SlowedTask:
    """A task that ran, and what slowed it."""

    kind: Kind
    start_us: float
    time_us: float
    busy_share: float
    """Of the other processors."""
    switched: bool
    """Whether it needs others, and its processor computed none of them just before."""
    crowd: float
    """From 0, alone under way, to 1, as many as at most but for a twentieth of all tasks."""


@dataclass(frozen=True, slots=True)
class KindSlowing:
    """What slows the tasks of a kind."""

    gain: float = 0.0
    """Share of its time that a task saves where nothing runs beside it."""
    switched: float = 1.0
    crowded: float = 1.0

    def slowed(self, task: SlowedTask) -> float:
        """Return how many times as long a task took as with nothing that slows it."""
        factor = 1 / (1 - task.busy_share * self.gain)
        if task.switched:
            factor *= self.switched + task.crowd * (self.crowded - self.switched)
        return factor


def costs_of_record(record: ServiceRecord) -> MeasuredCosts:
    """Return what a record says about costs.

    A task that took t, a share s of it beside other work, is taken to be one of t (1 - s g) alone,
    g = 1 - 1 / beside. Of all of its kind on a processor, g is that which leaves times alone
    uncorrelated with s.
    Raises BadInput for a record in which nothing ran.
    """
    spans = placed_spans(record)
    if not spans:
        raise BadInput("no task has run, record, costs are of tasks that ran")
    names = tuple(processor.name for processor in record.header.processors)
    many, tasks = slowed_tasks(record, spans, len(names))
    of_kind: dict[Kind, list[SlowedTask]] = {}
    for task in tasks:
        of_kind.setdefault(task.kind, []).append(task)
    pace: dict[int, float] = {}
    costs = {kind: KindSlowing() for kind in of_kind}
    for _ in range(ROUNDS):
        costs = {
            kind: slowing_of_kind(costs[kind], listed, pace) for kind, listed in of_kind.items()
        }
        pace = pace_of(of_kind, costs)
    rows = tuple(row_of(kind, costs[kind], listed, pace) for kind, listed in of_kind.items())
    host = host_costs(record)
    return MeasuredCosts(
        names,
        rows,
        host.decision_us,
        straight_us(spans, host.answer_us, host.handover_us),
        host.answer_us,
        wake_us=host.handover_us,
        few_under_way=FEW_UNDER_WAY,
        many_under_way=many,
        pace_window_us=PACE_WINDOW_US,
        pace=listed_pace(pace),
    )


def slowed_tasks(
    record: ServiceRecord, spans: Sequence[PlacedSpan], processors: int
) -> tuple[int, list[SlowedTask]]:
    """Return how many requests are many, and the tasks with what slowed each."""
    begun = sorted(request.arrived_us for request in record.requests)
    ended = sorted(request.ended_us for request in record.requests)
    under_way = [
        bisect_right(begun, span.start_us) - bisect_left(ended, span.start_us) for span in spans
    ]
    many = sorted(under_way)[len(under_way) * 19 // 20]
    tasks: list[SlowedTask] = []
    before: dict[str, PlacedSpan] = {}
    shares = busy_shares(spans, processors)
    for span, share, count in zip(spans, shares, under_way, strict=True):
        last = before.get(span.processor)
        straight = last is not None and of_one_request(last, span) and last.task in span.needs
        before[span.processor] = span
        crowd = (count - FEW_UNDER_WAY) / max(1, many - FEW_UNDER_WAY)
        tasks.append(
            SlowedTask(
                (span.application, span.task, span.processor),
                span.start_us,
                span.end_us - span.start_us,
                share,
                bool(span.needs) and not straight,
                min(1.0, max(0.0, crowd)),
            )
        )
    return many, tasks


def of_one_request(first: PlacedSpan, second: PlacedSpan) -> bool:
    """Return whether two tasks are of one request."""
    return (first.application, first.request) == (second.application, second.request)


def slowing_of_kind(
    known: KindSlowing, tasks: Sequence[SlowedTask], pace: dict[int, float]
) -> KindSlowing:
    """Return what slows a kind, from what is known of that so far."""
    most_us = MOST_TIMES * median(task.time_us for task in tasks)
    times_us = [min(most_us, task.time_us) / pace_at(pace, task.start_us) for task in tasks]
    without_gain = replace(known, gain=0.0)
    points = [
        (task.busy_share, time_us / without_gain.slowed(task))
        for task, time_us in zip(tasks, times_us, strict=True)
    ]
    gain = gain_alone(points)
    alone_us = [
        time_us * (1 - task.busy_share * gain)
        for task, time_us in zip(tasks, times_us, strict=True)
    ]
    return KindSlowing(gain, *switched_factors(tasks, alone_us))


def gain_alone(points: Sequence[tuple[float, float]]) -> float:
    """Return the share of its time that a task saves where nothing runs beside it."""
    if len(points) < FEW:
        return 0.0
    mean_share = fmean(share for share, _ in points)
    with_time = with_product = 0.0
    for share, time_us in points:
        with_time += (share - mean_share) * time_us
        with_product += (share - mean_share) * share * time_us
    mean_us = fmean(time_us for _, time_us in points)
    if with_product <= STILL * len(points) * mean_us:
        return 0.0
    return min(MOST_GAIN, max(0.0, with_time / with_product))


def switched_factors(tasks: Sequence[SlowedTask], alone_us: Sequence[float]) -> tuple[float, float]:
    """Return how many times as long tasks take after ones that they do not need.

    That is with one request under way and with many, by least squares on a line between both.
    """
    pairs = list(zip(tasks, alone_us, strict=True))
    straight = [time_us for task, time_us in pairs if not task.switched]
    switched = [(task.crowd, time_us) for task, time_us in pairs if task.switched]
    if len(straight) < FEW or len(switched) < FEW or not fmean(straight):
        return 1.0, 1.0
    mean_us, mean_crowd = fmean(time for _, time in switched), fmean(crowd for crowd, _ in switched)
    variance = sum((crowd - mean_crowd) ** 2 for crowd, _ in switched)
    slope = 0.0
    if variance > STILL * len(switched):
        slope = sum((crowd - mean_crowd) * time for crowd, time in switched) / variance
    few_us = mean_us - slope * mean_crowd
    usual_us = fmean(straight)
    few, many = few_us / usual_us, (few_us + slope) / usual_us
    return min(MOST_FACTOR, max(1.0, few)), min(MOST_FACTOR, max(1.0, many))


def pace_of(
    of_kind: dict[Kind, list[SlowedTask]], costs: dict[Kind, KindSlowing]
) -> dict[int, float]:
    """Return by window of time how many times as long tasks took as those of their kinds do.

    Windows in which less was done than one processor does in half of the time say nothing.
    """
    took_us: dict[int, float] = {}
    usual_us: dict[int, float] = {}
    for kind, tasks in of_kind.items():
        slowed = [costs[kind].slowed(task) for task in tasks]
        plain_us = sum(task.time_us for task in tasks) / sum(slowed)
        for task, factor in zip(tasks, slowed, strict=True):
            window = int(task.start_us / PACE_WINDOW_US)
            took_us[window] = took_us.get(window, 0.0) + task.time_us
            usual_us[window] = usual_us.get(window, 0.0) + plain_us * factor
    return {
        window: min(MOST_FACTOR, max(LEAST_FACTOR, took_us[window] / usual))
        for window, usual in usual_us.items()
        if usual >= PACE_WINDOW_US / 2
    }


def listed_pace(pace: dict[int, float]) -> tuple[float, ...]:
    """Return the pace of windows in a row from the record's begin on, 1 where nothing is said.

    Of a record that is too long for that, only windows that say something, as many as a table has.
    """
    count = max(pace, default=-1) + 1
    if count > MOST_WINDOWS:
        return tuple(pace[window] for window in sorted(pace)[:MOST_WINDOWS])
    return tuple(pace.get(window, 1.0) for window in range(count))


def pace_at(pace: dict[int, float], at_us: float) -> float:
    """Return the pace of the window of an instant, 1 where nothing is said of it."""
    return pace.get(int(at_us / PACE_WINDOW_US), 1.0)


def row_of(
    kind: Kind, costs: KindSlowing, tasks: Sequence[SlowedTask], pace: dict[int, float]
) -> MeasuredTask:
    """Return the row of a kind on a processor."""
    alone_us = [task.time_us / costs.slowed(task) / pace_at(pace, task.start_us) for task in tasks]
    row = measured_task(*kind, alone_us, 1 / (1 - costs.gain))
    return replace(row, switched=costs.switched, crowded=costs.crowded)


def straight_us(spans: Sequence[PlacedSpan], answer_us: float, idle_us: float) -> float:
    """Return what a hand-over takes on a processor that just ended what the task waited for.

    Where that is seldom, it is what a hand-over to an idle one takes.
    """
    before: dict[str, PlacedSpan] = {}
    gaps_us: list[float] = []
    for span in spans:
        last = before.get(span.processor)
        if last is not None and of_one_request(last, span) and last.end_us == span.ready_us:
            gaps_us.append(max(0.0, span.start_us - span.ready_us - answer_us))
        before[span.processor] = span
    return fmean(gaps_us) if len(gaps_us) >= FEW else idle_us
