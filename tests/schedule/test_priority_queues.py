"""Simulated queues against a queueing simulator that nobody here wrote, and Cobham's formula."""

from __future__ import annotations

from dataclasses import replace

import ciw
import pytest

from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.request import Request
from nnstretch.schedule.simulation.application import (
    Application,
    ExponentialArrivals,
    ListedArrivals,
    own_tasks,
)
from nnstretch.schedule.simulation.replications import Measured, measured, replicate
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import ApplicationRun, Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey

SERVICE_US = {"high": 500.0, "low": 1000.0}
LOADS = {"high": 0.3, "low": 0.5}
"""Share of the one server that each class asks for."""


def simulated(
    service_us: dict[str, float],
    loads: dict[str, float],
    servers: int,
    durations: str,
    count: int,
    queueing: bool = False,
) -> dict[str, Measured]:
    """Mean latency of each application, the first of them before all others."""
    processors = tuple(Processor(f"cpu{n}", "cpu", 1) for n in range(servers))
    applications, times_us = [], {}
    for number, (name, load) in enumerate(loads.items()):
        gaps = ExponentialArrivals(service_us[name] / load / servers)
        tasks = own_tasks(name, (Task("t", "t"),))
        # As long as all others, so that none has the server to itself at the end.
        instances = round(count * load / service_us[name] * max(service_us.values()))
        application = Application(name, tasks, gaps, instances, priority=-number)
        applications.append(application)
        for processor in processors:
            times_us[(name, "t"), processor.name] = service_us[name]
    setting = SimulationSettings(
        *(tuple(applications), processors, times_us, "olb"), queueing=queueing, durations=durations
    )
    results = replicate(replace(setting, seed=5), 10)
    intervals: dict[str, Measured] = {}
    for number, name in enumerate(loads):
        means_us = [result.runs[number].latencies.mean_us for result in results]
        intervals[name] = measured(means_us)
    return intervals


def of_ciw(network: ciw.network.Network, customers: int) -> dict[str, Measured]:
    """Mean latency of each class in the other simulator, us."""
    means_us: dict[str, list[float]] = {}
    for seed in range(10):
        ciw.seed(seed)
        simulation = ciw.Simulation(network)
        simulation.simulate_until_max_customers(customers, method="Finish")
        latencies_us: dict[str, list[float]] = {}
        for record in simulation.get_all_records():
            latency_us = record.exit_date - record.arrival_date
            latencies_us.setdefault(record.customer_class, []).append(latency_us)
        for name, values in latencies_us.items():
            means_us.setdefault(name, []).append(sum(values) / len(values))
    return {name: measured(values) for name, values in means_us.items()}


def cobham_us(name: str) -> float:
    """Mean latency of a class at one exponential server that ends what it has begun.

    Cobham, Operations Research 2(1), 1954.
    """
    residual_us = sum(LOADS[kind] * SERVICE_US[kind] for kind in LOADS)
    above = LOADS["high"] if name == "low" else 0.0
    return residual_us / (1 - above) / (1 - above - LOADS[name]) + SERVICE_US[name]


@pytest.mark.slow
def test_two_servers_of_constant_time_are_those_of_another_simulator() -> None:
    load = 0.8
    rate = 2 * load / 1000.0
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate)],
        service_distributions=[ciw.dists.Deterministic(1000.0)],
        number_of_servers=[2],
    )
    expected = of_ciw(network, 8_000)["Customer"]
    check_near(simulated({"q": 1000.0}, {"q": load}, 2, "exact", 15_000)["q"], expected)


@pytest.mark.slow
def test_two_priority_classes_are_those_of_another_simulator_and_of_cobham() -> None:
    network = ciw.create_network(
        arrival_distributions={
            name: [ciw.dists.Exponential(LOADS[name] / SERVICE_US[name])] for name in LOADS
        },
        service_distributions={
            name: [ciw.dists.Exponential(1 / SERVICE_US[name])] for name in LOADS
        },
        priority_classes={"high": 0, "low": 1},
        number_of_servers=[1],
    )
    expected = of_ciw(network, 15_000)
    for queueing in (False, True):
        intervals = simulated(SERVICE_US, LOADS, 1, "exponential", 20_000, queueing)
        for name, interval in intervals.items():
            check_near(interval, expected[name])
            assert interval.half_width is not None
            assert abs(interval.mean - cobham_us(name)) <= interval.half_width, name


def check_near(interval: Measured, expected: Measured) -> None:
    """Check that two intervals are narrow and overlap."""
    assert interval.half_width is not None
    assert expected.half_width is not None
    assert interval.half_width <= 0.05 * interval.mean
    assert expected.half_width <= 0.08 * expected.mean
    assert abs(interval.mean - expected.mean) <= interval.half_width + expected.half_width


def latencies_ms(setting: SimulationSettings) -> dict[str, list[float]]:
    """Latencies of each application's instances in the order in which they ended."""
    latencies: dict[str, list[float]] = {app.name: [] for app in setting.applications}

    def keep(run: ApplicationRun, _number: int, outcome: Request, _first_us: float) -> None:
        latencies[run.application.name].append(outcome.latency_us / 1000)

    Simulation(setting, on_outcome=keep).run()
    return latencies


def arriving(
    costs_ms: dict[str, dict[str, float]], policy: str, queueing: bool = True
) -> SimulationSettings:
    """Three instances of `low` at 0, `high` at 1 ms."""
    low = ListedArrivals((0.0, 0.0, 0.0))
    applications = (
        Application("low", own_tasks("low", (Task("t", "t"),)), low, deadline_us=1e6),
        Application(
            "high",
            own_tasks("high", (Task("t", "t"),)),
            ListedArrivals((1000.0,)),
            deadline_us=50e3,
        ),
    )
    times_us: dict[tuple[WorkKey, str], float] = {}
    for name, by_processor in costs_ms.items():
        for processor, cost_ms in by_processor.items():
            times_us[(name, "t"), processor] = cost_ms * 1000
    names = dict.fromkeys(name for _, name in times_us)
    processors = tuple(Processor(name, name, 1) for name in names)
    return SimulationSettings(applications, processors, times_us, policy, queueing=queueing)


def with_priority(setting: SimulationSettings, priority: int) -> SimulationSettings:
    low, high = setting.applications
    return replace(setting, applications=(low, replace(high, priority=priority)))


@pytest.mark.parametrize("queueing", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_greater_priority_waits_only_for_what_runs(policy: str, queueing: bool) -> None:
    setting = arriving({"low": {"cpu": 10.0}, "high": {"cpu": 1.0}}, policy, queueing)
    latencies = latencies_ms(with_priority(setting, 9))
    assert latencies == {"high": [10.0], "low": [10.0, 21.0, 31.0]}
    lesser = latencies_ms(with_priority(setting, -9))
    assert lesser == {"high": [30.0], "low": [10.0, 20.0, 30.0]}


@pytest.mark.parametrize("policy", ["least_slack", "least_slack_drop"])
def test_the_most_urgent_of_all_goes_first_without_queueing(policy: str) -> None:
    costs_ms = {"low": {"cpu": 10.0}, "high": {"cpu": 1.0}}
    idle = latencies_ms(arriving(costs_ms, policy, queueing=False))
    assert idle == {"high": [10.0], "low": [10.0, 21.0, 31.0]}
    given = latencies_ms(arriving(costs_ms, policy))
    assert given == {"high": [30.0], "low": [10.0, 20.0, 30.0]}, "behind what the cpu was given"


def test_a_class_sees_processors_without_what_waits_for_it() -> None:
    costs_ms = {"low": {"cpu": 10.0}, "high": {"cpu": 1.0, "gpu": 15.0}}
    setting = arriving(costs_ms, "eft")
    assert latencies_ms(with_priority(setting, 9))["high"] == [10.0], "after one of low, on cpu"
    assert latencies_ms(with_priority(setting, 0))["high"] == [15.0], "after all, so on gpu"
