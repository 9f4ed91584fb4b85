"""A queue of one task on equal processors, and how long its instances took."""

from __future__ import annotations

from nnstretch.schedule.simulation.application import (
    Application,
    ExponentialArrivals,
    FixedArrivals,
    ListedArrivals,
    own_tasks,
)
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task

SERVICE_US = 1000.0


def queue(
    arrivals: FixedArrivals | ExponentialArrivals | ListedArrivals,
    instances: int,
    servers: int = 1,
    durations: str = "exact",
    policy: str = "olb",
    queueing: bool = False,
) -> SimulationSettings:
    """One application of one task on equal processors."""
    processors = tuple(Processor(f"cpu{n}", "cpu", 1) for n in range(servers))
    application = Application("q", own_tasks("q", (Task("t", "t"),)), arrivals, instances)
    times_us = {(("q", "t"), processor.name): SERVICE_US for processor in processors}
    return SimulationSettings(
        (application,), processors, times_us, policy, queueing=queueing, durations=durations
    )


def latencies_of(setting: SimulationSettings) -> list[float]:
    latencies: list[float] = []
    simulation = Simulation(
        setting, on_outcome=lambda run, number, outcome, first: latencies.append(outcome.latency_us)
    )
    simulation.run()
    return latencies
