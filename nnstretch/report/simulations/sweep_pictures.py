"""Pictures of a sweep: what load, policy and pool do to latency and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from nnstretch.report.charts.bar_chart import Bar, BarGroup, bar_chart
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.charts.palette import ITEMS
from nnstretch.report.html import Markup
from nnstretch.report.simulations.sweep_data import Metric, SweepData, mean_latency_ms
from nnstretch.report.simulations.views import OverTimeView, RoundView, SimulationView

MOST_LINES = 15
"""As many names as a legend has room for; more are left out, and the title says so."""
RATE = ChartAxis("times as fast as the workload")
RATE_LOG = ChartAxis(RATE.name, logarithmic=True)
WIDE = 20.0
"""Rates that are so many times apart are drawn on a logarithmic axis."""
DECADE = 10.0
"""Times that are so many times apart are, too."""
Picture = tuple[str, Markup]
"""Name of the file without its ending, and the drawing."""


def sweep_pictures(data: SweepData) -> list[Picture]:
    """Return all pictures that the sweep has data for."""
    pictures: list[Picture] = []
    for number, pool in enumerate(data.pools):
        lines = _lines([(p, (pool, p)) for p in data.policies], data)
        title = _title(f"Latency on {pool}", len(data.policies))
        pictures.append((f"latency_{number}", _against_rate(title, lines, data)))
    if len(data.pools) > 1:
        for number, policy in enumerate(data.policies):
            lines = _lines([(pool, (pool, policy)) for pool in data.pools], data)
            title = _title(f"Latency under {policy}", len(data.pools))
            pictures.append((f"saturation_{number}", _against_rate(title, lines, data)))
    if data.groups:
        pictures.append(("policies", policy_bars(data)))
        pictures.append(("pools", pool_bars(data)))
    for number, pool in enumerate(data.pools):
        drawing = open_over_time(data, pool)
        if drawing is not None:
            pictures.append((f"open_{number}", drawing))
    drawing = sweep_decisions(data)
    if drawing is not None:
        pictures.append(("decision_time", drawing))
    return pictures


def _title(words: str, lines: int) -> str:
    return words if lines <= MOST_LINES else f"{words}, {MOST_LINES} of {lines}"


def _lines(names: Sequence[tuple[str, tuple[str, str]]], data: SweepData) -> list[ChartLine]:
    """Return mean latency against the rate, a line for each name with its pool and policy."""
    lines: list[ChartLine] = []
    for name, where in names[:MOST_LINES]:
        points: list[tuple[float, float]] = []
        for rate in data.rates:
            key = (*where, rate)
            mean = data.mean(key, mean_latency_ms) if key in data.groups else None
            if mean is not None:
                points.append((rate, mean.mean))
        if points:
            lines.append(_line(name, points, len(lines)))
    return lines


def _line(name: str, points: Sequence[tuple[float, float]], number: int) -> ChartLine:
    """Return a line that is dashed where its colour has been used before."""
    return ChartLine(name, tuple(points), dashed=number >= len(ITEMS))


def _throughput_per_s(result: SimulationView) -> float:
    return result.throughput_per_s


def _against_rate(title: str, lines: Sequence[ChartLine], data: SweepData) -> Markup:
    wide = data.rates[-1] > WIDE * data.rates[0]
    return line_chart(title, RATE_LOG if wide else RATE, ChartAxis("mean latency, ms"), lines)


def policy_bars(data: SweepData) -> Markup:
    """Draw mean latency at the highest rate: a group for each pool, a bar for each policy."""
    policies = data.policies[:MOST_LINES]
    groups: list[BarGroup] = []
    for pool in data.pools:
        bars = tuple(_bar((pool, policy), data, mean_latency_ms) for policy in policies)
        groups.append(BarGroup(pool, bars))
    title = _title(f"Policies at rate {data.rates[-1]:g}", len(data.policies))
    return bar_chart(title, "mean latency, ms", policies, groups)


def pool_bars(data: SweepData) -> Markup:
    """Draw throughput at the highest rate: a group for each policy, a bar for each pool."""
    pools = data.pools[:MOST_LINES]
    groups: list[BarGroup] = []
    for policy in data.policies:
        bars = tuple(_bar((pool, policy), data, _throughput_per_s) for pool in pools)
        groups.append(BarGroup(policy, bars))
    title = _title(f"Pools at rate {data.rates[-1]:g}", len(data.pools))
    return bar_chart(title, "instances a second", pools, groups)


def _bar(where: tuple[str, str], data: SweepData, metric: Metric) -> Bar | None:
    key = (*where, data.rates[-1])
    mean = data.mean(key, metric) if key in data.groups else None
    return None if mean is None else Bar(mean.mean, mean.half_width)


def open_over_time(data: SweepData, pool: str) -> Markup | None:
    """Draw open instances over time on a pool at the highest rate, of the first trial."""
    lines: list[ChartLine] = []
    for policy in data.policies[:MOST_LINES]:
        results = data.groups.get((pool, policy, data.rates[-1]))
        if results and results[0].open.over_time is not None:
            points = over_time_points(results[0].open.over_time)
            lines.append(_line(policy, points, len(lines)))
    if not lines:
        return None
    title = f"Open instances on {pool}, rate {data.rates[-1]:g}"
    return line_chart(title, ChartAxis("ms"), ChartAxis("open, mean of each step"), lines)


def over_time_points(over_time: OverTimeView) -> list[tuple[float, float]]:
    """Return the middle of each step, ms, with the mean there."""
    points: list[tuple[float, float]] = []
    for number, mean in enumerate(over_time.mean):
        points.append(((number + 0.5) * over_time.step_ms, mean))
    return points


def sweep_decisions(data: SweepData) -> Markup | None:
    """Draw the time of a round against the tasks that wait, a line for each policy."""
    by_policy: dict[str, list[RoundView]] = {}
    for row in data.decisions:
        by_policy.setdefault(row.policy, []).extend(row.rounds)
    return decision_times(by_policy)


def decision_times(by_policy: dict[str, list[RoundView]]) -> Markup | None:
    """Draw the time of a round against the tasks that wait; rounds of one class are one point.

    None where nobody decided, or in no time that logarithmic axes can show.
    """
    lines: list[ChartLine] = []
    for policy, rounds in list(by_policy.items())[:MOST_LINES]:
        totals: dict[int, tuple[float, float, float]] = {}
        for seen in rounds:
            if not seen.rounds:
                continue
            count, waited, spent_us = totals.get(int(seen.waiting).bit_length(), (0.0, 0.0, 0.0))
            totals[int(seen.waiting).bit_length()] = (
                count + seen.rounds,
                waited + seen.rounds * seen.waiting,
                spent_us + seen.rounds * seen.round_us,
            )
        of_policy: list[tuple[float, float]] = []
        for _, (count, waited, spent_us) in sorted(totals.items()):
            if waited > 0 and spent_us > 0:
                of_policy.append((waited / count, spent_us / count))
        if of_policy:
            lines.append(_line(policy, of_policy, len(lines)))
    if not lines:
        return None
    points = list(chain.from_iterable(line.points for line in lines))
    across = _axis("tasks that wait when the policy is asked", [x for x, _ in points])
    upward = _axis("us of this host for a round of decisions", [y for _, y in points])
    return line_chart("Time to decide", across, upward, lines)


def _axis(name: str, values: Sequence[float]) -> ChartAxis:
    """Return an axis for values above 0, logarithmic where they are a decade apart."""
    if max(values) < DECADE * min(values):
        return ChartAxis(name)
    return ChartAxis(f"{name}, logarithmic", logarithmic=True)
