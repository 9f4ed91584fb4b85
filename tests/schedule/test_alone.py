"""What an instance takes that has the chip to itself: what it takes when it comes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnstretch.schedule.disturbances import Disturbances, Interference
from nnstretch.schedule.executors.contended import HostCosts
from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.simulation.application import (
    Application,
    ListedArrivals,
    own_tasks,
    own_times,
)
from nnstretch.schedule.simulation.durations import MeasuredTimes, Pace
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import ApplicationRun, Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey

CPU, GPU = Processor("cpu", "cpu", 1), Processor("gpu", "gpu", 1)
COSTS_US = {"a": 3000.0, "b": 2000.0, "c": 500.0}


def chain(**changes: object) -> SimulationSettings:
    """One instance of three tasks in a row on two processors."""
    tasks = (Task("a", "a"), Task("b", "b", frozenset("a")), Task("c", "c", frozenset("b")))
    costs_us: dict[tuple[WorkKey, str], float] = {}
    for processor in (CPU, GPU):
        costs_us |= {(name, processor.name): us for name, us in COSTS_US.items()}
    application = Application("q", own_tasks("q", tasks), ListedArrivals((0.0,)))
    setting = SimulationSettings((application,), (CPU, GPU), own_times("q", costs_us), "eft")
    return replace(setting, **changes)  # type: ignore[arg-type]


def run_of(setting: SimulationSettings) -> ApplicationRun:
    return Simulation(setting).run().runs[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_hand_overs_are_paid_alone_too(policy: str) -> None:
    run = run_of(chain(policy=policy, handover_us=1000.0))
    assert run.alone_us == run.latencies.mean_us == sum(COSTS_US.values()) + 3 * 1000.0
    assert run.slowdown == 1.0


def test_what_a_measured_host_takes_is_paid_alone_too() -> None:
    host = HostCosts(decision_us=20.0, handover_us=50.0, answer_us=30.0, wake_us=70.0)
    setting = chain(durations="measured")
    samples_us = {key: (us,) for key, us in setting.times_us.items()}
    measured = MeasuredTimes(samples_us, host=host)
    run = run_of(replace(setting, measured=measured))
    assert run.alone_us == run.latencies.mean_us > sum(COSTS_US.values()) + 3 * (20.0 + 50.0)
    slow = replace(measured, pace=Pace((2.0,)))
    assert run_of(replace(setting, measured=slow)).alone_us == run.alone_us


def test_disturbances_are_not_paid_alone() -> None:
    busy = tuple(Interference(p.name, 0.0, 1e6, share=0.5) for p in (CPU, GPU))
    run = run_of(chain(disturbances=Disturbances(busy)))
    assert run.alone_us == sum(COSTS_US.values())
    assert run.slowdown == 2.0


def test_the_classic_etf_breaks_ties_by_static_level() -> None:
    tasks = (Task("a", "a"), Task("b", "b"), Task("c", "c", frozenset("b")))
    costs_us: dict[tuple[WorkKey, str], float] = {("a", "cpu"): 1e3, ("b", "cpu"): 1e3}
    costs_us["c", "gpu"] = 5e3
    application = Application("q", own_tasks("q", tasks), ListedArrivals((0.0,)))
    run = run_of(
        SimulationSettings((application,), (CPU, GPU), own_times("q", costs_us), "etf_start")
    )
    assert run.latencies.mean_us == run.alone_us == 6000.0
