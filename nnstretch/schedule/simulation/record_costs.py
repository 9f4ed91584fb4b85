"""A table of costs from a server's record: what tasks took, with what ran beside them taken out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from nnstretch.errors import BadInput
from nnstretch.files.workload.measured_costs import MeasuredCosts, MeasuredTask, measured_task
from nnstretch.files.workload.service_record import ServiceRecord
from nnstretch.schedule.simulation.replay import PlacedSpan, host_costs, placed_spans

FEW = 10
"""Tasks of which nothing is said about what ran beside them."""
STILL = 1e-4
"""Variance of the busy share below which nothing can be said either."""
MOST_GAIN = 0.9


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
    shares = busy_shares(spans, len(names))
    of_kind: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for span, share in zip(spans, shares, strict=True):
        key = span.application, span.task, span.processor
        of_kind.setdefault(key, []).append((share, span.end_us - span.start_us))
    tasks = tuple(row_of(key, points) for key, points in of_kind.items())
    host = host_costs(record)
    return MeasuredCosts(names, tasks, host.decision_us, host.handover_us, host.answer_us)


def busy_shares(spans: Sequence[PlacedSpan], processors: int) -> list[float]:
    """Return the share of the other processors that worked while each task ran.

    Spans are in the order of their starts.
    """
    shares: list[float] = []
    first = 0
    longest_us = max(span.end_us - span.start_us for span in spans)
    for span in spans:
        while spans[first].start_us + longest_us <= span.start_us:
            first += 1
        overlap_us = 0.0
        for number in range(first, len(spans)):
            beside = spans[number]
            if beside.start_us >= span.end_us:
                break
            if beside.processor != span.processor:
                ends_us = min(beside.end_us, span.end_us)
                overlap_us += max(0.0, ends_us - max(beside.start_us, span.start_us))
        whole_us = (span.end_us - span.start_us) * (processors - 1)
        shares.append(min(1.0, overlap_us / whole_us) if whole_us else 0.0)
    return shares


def row_of(key: tuple[str, str, str], points: Sequence[tuple[float, float]]) -> MeasuredTask:
    """Return the row of a kind on a processor from busy shares and times."""
    gain = gain_alone(points)
    alone_us = [time_us * (1 - share * gain) for share, time_us in points]
    return measured_task(*key, alone_us, 1 / (1 - gain))


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
    if with_product < STILL * len(points) * mean_us:
        return 0.0
    return min(MOST_GAIN, max(0.0, with_time / with_product))
