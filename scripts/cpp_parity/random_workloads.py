"""Random workloads, each from a seed, and workloads as the JSON that the C++ clock reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from random import Random
from typing import Any

from nnstretch.schedule.simulation.application import Application, ListedArrivals, own_tasks
from nnstretch.schedule.simulation.policy_setting import cost_rows
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey

PLANNED = "planned"
"""Tasks where a plan put them: C++ has it by name, Python as `StaticPlacement`."""
POLICIES = (
    *("rr", "met", "eft", "etf", "heft_rt", "mct", "olb", "min_min"),
    *("least_slack", "least_slack_drop", PLANNED),
)
KINDS = ("cpu", "cpu", "gpu", "dsp")


def draw_workload(seed: int, policy: str) -> SimulationSettings:
    """Return a random workload; equal seeds give equal ones for every policy but the planned."""
    draw = Random(seed)
    processors: list[Processor] = []
    for number in range(draw.randint(1, 6)):
        processors.append(Processor(f"p{number}", draw.choice(KINDS), 1))
    times_us: dict[tuple[WorkKey, str], float] = {}
    applications: list[Application] = []
    for number in range(draw.randint(1, 4)):
        applications.append(draw_application(draw, f"a{number}", processors, times_us, policy))
    settings = SimulationSettings(tuple(applications), tuple(processors), times_us, policy)
    return replace(
        settings,
        queueing=draw.random() < 0.6,
        correction=draw.random() < 0.6,
        wrong_costs=draw.choice((1.0, 1.0, 3.0)),
        seed=seed,
    )


def draw_application(
    draw: Random,
    name: str,
    processors: Sequence[Processor],
    times_us: dict[tuple[WorkKey, str], float],
    policy: str,
) -> Application:
    """Return a random application and enter the times of its tasks."""
    tasks: list[Task] = []
    for number in range(draw.randint(1, 9)):
        needs = draw.sample(tasks, draw.randint(0, min(3, len(tasks))))
        place = draw.choice(processors).name
        task = Task(f"t{number}", f"t{number}", frozenset(need.name for need in needs))
        tasks.append(replace(task, processor=place) if policy == PLANNED else task)
        for processor in processors:
            time_us = draw_time_us(draw)
            if processor.name == place or draw.random() < 0.7:
                times_us[(name, f"t{number}"), processor.name] = time_us
    arrivals = sorted(draw.choice((0.0, draw.uniform(0, 900))) for _ in range(draw.randint(1, 14)))
    deadline_us = draw.choice((float("inf"), draw.uniform(20, 1500)))
    limit = draw.choice((None, None, draw.randint(1, 5)))
    kept = ListedArrivals(tuple(arrivals))
    return Application(
        *(name, own_tasks(name, tuple(tasks)), kept),
        deadline_us=deadline_us,
        priority=draw.choice((0, 0, 1, 7)),
        queue_limit=limit,
    )


def draw_time_us(draw: Random) -> float:
    """Return a time: of few values, so that many are equal, or of any."""
    return draw.choice((0.0, 10.0, 10.0, 20.0, 30.0, draw.uniform(1, 90), draw.uniform(1, 90)))


def draw_chains(tasks: int, policy: str) -> SimulationSettings:
    """Return five applications of chains of ten, which four processors can just serve."""
    draw, length, names = Random(0), 10, [f"a{number}" for number in range(5)]
    chip = (*(Processor(f"cpu{n}", "cpu", 1) for n in range(3)), Processor("gpu", "gpu", 1))
    times_us: dict[tuple[WorkKey, str], float] = {}
    applications: list[Application] = []
    for name in names:
        chain: list[Task] = []
        for number in range(length):
            needs = frozenset({chain[-1].name}) if chain else frozenset[str]()
            chain.append(Task(f"t{number}", f"t{number}", needs))
            for processor in chip:
                times_us[(name, f"t{number}"), processor.name] = float(draw.randint(50, 150))
        at_us, arrivals = 0.0, list[float]()
        for _ in range(tasks // length // len(names)):
            at_us += draw.expovariate(1 / (85.0 / len(chip) * length * len(names) / 0.7))
            arrivals.append(at_us)
        applications.append(
            Application(name, own_tasks(name, tuple(chain)), ListedArrivals(tuple(arrivals)))
        )
    return SimulationSettings(tuple(applications), chip, times_us, policy)


def workload_json(settings: SimulationSettings) -> dict[str, Any]:
    """Return a workload as the C++ clock reads it: every task is of a kind of its own."""
    costs = cost_rows(settings if settings.policy != PLANNED else replace(settings, policy="eft"))
    applications: list[dict[str, Any]] = []
    for application in settings.applications:
        kinds: list[dict[str, Any]] = []
        for task in application.tasks:
            row = costs.row(task)
            times = [settings.times_us.get((task.work, p.name), inf) for p in settings.processors]
            placed = [us if isfinite(cost) else inf for us, cost in zip(times, row, strict=True)]
            kinds.append({"name": task.subgraph, "costs_us": known(row), "times_us": known(placed)})
        applications.append(application_json(application, kinds))
    return {
        "format": 1,
        "policy": settings.policy,
        "queueing": settings.queueing,
        "correction": settings.correction,
        "elements": [processor.kind for processor in settings.processors],
        "applications": applications,
    }


def application_json(application: Application, kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an application whose tasks have these costs."""
    numbers = {task.name: number for number, task in enumerate(application.tasks)}
    tasks: list[dict[str, Any]] = []
    for number, task in enumerate(application.tasks):
        tasks.append({"kind": number, "needs": sorted(numbers[need] for need in task.needs)})
    deadline_us = application.deadline_us if isfinite(application.deadline_us) else None
    return {
        "name": application.name,
        "priority": application.priority,
        "deadline_us": deadline_us,
        "queue_limit": application.queue_limit,
        "arrivals_us": list(application.times_us(0)),
        "kinds": kinds,
        "tasks": tasks,
    }


def known(row: Sequence[float]) -> list[float | None]:
    """Return costs with None where there is none."""
    return [us if isfinite(us) else None for us in row]
