"""Simulated queues against what queueing theory says."""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import pytest
from support.simulated_queue import SERVICE_US, latencies_of, queue

from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.simulation.application import (
    ExponentialArrivals,
    FixedArrivals,
)
from nnstretch.schedule.simulation.replications import measured, replicate
from nnstretch.schedule.simulation.settings import SimulationSettings


@pytest.mark.parametrize("queueing", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_d_d_1_to_the_microsecond(policy: str, queueing: bool) -> None:
    slow = queue(FixedArrivals(1500.0), 100, policy=policy, queueing=queueing)
    assert latencies_of(slow) == [SERVICE_US] * 100
    fast = queue(FixedArrivals(700.0), 100, policy=policy, queueing=queueing)
    if policy != "random":
        assert latencies_of(fast) == [SERVICE_US + k * 300.0 for k in range(100)]


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits."""
    last = offered**servers / factorial(servers) / (1 - offered / servers)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


def expected_us(kind: str, load: float) -> float:
    if kind == "M/M/1":
        return SERVICE_US / (1 - load)
    if kind == "M/D/1":
        return SERVICE_US + load * SERVICE_US / (2 * (1 - load))
    return SERVICE_US + erlang_c(2, 2 * load) * SERVICE_US / (2 * (1 - load))


def queue_of(kind: str, load: float, instances: int) -> SimulationSettings:
    servers = 2 if kind == "M/M/2" else 1
    gaps = ExponentialArrivals(SERVICE_US / load / servers)
    durations = "exact" if kind == "M/D/1" else "exponential"
    return queue(gaps, instances, servers, durations)


def check_queue(kind: str, load: float, instances: int, replications: int) -> None:
    results = replicate(queue_of(kind, load, instances), replications)
    interval = measured([result.runs[0].latencies.mean_us for result in results])
    assert interval.half_width is not None
    assert interval.half_width <= (0.07 if load > 0.8 else 0.05) * interval.mean
    assert abs(interval.mean - expected_us(kind, load)) <= interval.half_width
    for result in results:
        latencies = result.runs[0].latencies
        rate = latencies.count / result.last_event_us
        assert result.mean_open == pytest.approx(rate * latencies.mean_us, rel=1e-6), "Little"
        assert sum(result.busy_us.values()) <= result.makespan_us * len(result.busy_us) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["M/M/1", "M/D/1", "M/M/2"])
def test_half_loaded_queues_wait_as_long_as_theory_says(kind: str) -> None:
    check_queue(kind, 0.5, 8_000, 8)


@pytest.mark.slow
def test_servers_without_a_queue_lose_what_erlang_says() -> None:
    servers, offered = 3, 2.4
    setting = queue(ExponentialArrivals(SERVICE_US / offered), 3_000, servers, "exponential")
    limited = replace(setting.applications[0], queue_limit=servers)
    runs = [r.runs[0] for r in replicate(replace(setting, applications=(limited,)), 6)]
    interval = measured([run.refused / run.arrived for run in runs])
    terms = [offered**k / factorial(k) for k in range(servers + 1)]
    assert interval.half_width is not None
    assert abs(interval.mean - terms[-1] / sum(terms)) <= interval.half_width <= 0.02


@pytest.mark.slow
def test_spread_service_waits_as_long_as_pollaczek_and_khinchine_say() -> None:
    load, spread = 0.5, 0.5
    setting = queue(ExponentialArrivals(SERVICE_US / load), 6_000, durations="spread")
    results = replicate(replace(setting, spread=spread), 6)
    interval = measured([result.runs[0].latencies.mean_us for result in results])
    waits_us = load * SERVICE_US * (1 + spread**2) / 2 / (1 - load)
    assert interval.half_width is not None
    assert abs(interval.mean - SERVICE_US - waits_us) <= interval.half_width
    assert interval.half_width <= 0.05 * interval.mean


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "load", "instances"),
    [
        ("M/M/1", 0.8, 20_000),
        ("M/D/1", 0.8, 10_000),
        ("M/M/2", 0.8, 20_000),
        ("M/M/1", 0.9, 25_000),
        ("M/D/1", 0.9, 15_000),
        ("M/M/2", 0.9, 25_000),
    ],
)
def test_loaded_queues_wait_as_long_as_theory_says(kind: str, load: float, instances: int) -> None:
    check_queue(kind, load, instances, 10)
