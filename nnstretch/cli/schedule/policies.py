"""Every policy that `schedule` knows by name: static ones, and the run-time ones of the loop.

A name that both tables have means the static one here; the run-time one has `_rt` behind it. `met`
is CEDR's for independent tasks, which has types and their turns, and the classic one where tasks
need each other, whose makespans are published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.errors import UnknownName, closest
from nnstretch.schedule.policies.table import POLICIES, PolicyEntry
from nnstretch.schedule.simulation.run_graph import run_graph
from nnstretch.schedule.static_schedules.table import STATIC_POLICIES
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace

OPTIMAL = "optimal"
BEFORE = "before anything runs"
READY = "when tasks are ready"
PLANNED = ("heft", "cpop", "peft")
"""Run-time policies that plan a whole job: of one job they make the static schedule."""
Make = Callable[[TaskGraph, int], Trace]


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """One row of `schedule --policies`."""

    make: Make | None
    """From a task graph and a seed; None for the solver, which also proves a bound."""
    decides: str
    rule: str
    source: str
    ties: str
    cost: str


def named_policies() -> dict[str, NamedPolicy]:
    """Return all policies by name, static ones first."""
    rows: dict[str, NamedPolicy] = {}
    for name, static in STATIC_POLICIES.items():
        text = (static.rule, static.source, static.ties, static.cost)
        rows[name] = NamedPolicy(_static(name), BEFORE, *text)
    rows[OPTIMAL] = NamedPolicy(
        None, BEFORE, "shortest schedule, with proof", "OR-Tools CP-SAT", "-", "exponential"
    )
    for name, entry in POLICIES.items():
        if name in PLANNED:
            continue
        if name == "met":
            rows[name] = _met(entry)
        shown = f"{name}_rt" if name in rows else name
        rows[shown] = NamedPolicy(
            _run_time(name), READY, entry.rule, entry.source, entry.ties, entry.cost
        )
    return rows


def find_policy(name: str) -> NamedPolicy:
    """Return a policy by name. Raises UnknownName with the closest."""
    policies = named_policies()
    if name not in policies:
        names = list(policies)
        raise UnknownName(
            f"unknown policy {name}, command line, it is one of {', '.join(names)}"
            f"{closest(name, names)}"
        )
    return policies[name]


def _met(entry: PolicyEntry) -> NamedPolicy:
    def make(graph: TaskGraph, seed: int) -> Trace:
        dependent = any(task.needs for task in graph.tasks)
        return (_static("met_static") if dependent else _run_time("met"))(graph, seed)

    rule = "met_rt for independent tasks, met_static where tasks need each other"
    return NamedPolicy(make, f"{READY} or {BEFORE}", rule, entry.source, "as theirs", "as theirs")


def _static(name: str) -> Make:
    return lambda graph, _: STATIC_POLICIES[name].make(graph)


def _run_time(name: str) -> Make:
    def make(graph: TaskGraph, seed: int) -> Trace:
        costs = graph.cost_us
        return run_graph(
            graph.tasks, graph.processors, costs, name, transfers_us=graph.transfer_us, seed=seed
        )

    return make
