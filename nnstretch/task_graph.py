"""Task graph: tasks that need each other, what each costs where, and what data between costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from nnstretch.errors import BrokenGraph, closest
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes, WorkKey


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tasks, the processors that may run them, and every time that a schedule of them depends on.

    Raises BrokenGraph for a graph that contradicts itself or that no schedule can finish.
    """

    name: str
    tasks: tuple[Task, ...]
    processors: tuple[Processor, ...]
    """Their `kind` is the type by which costs may be given."""
    cost_us: TaskTimes
    """Time by (what a task computes, processor); an absent pair cannot run."""
    transfer_us: Mapping[tuple[WorkKey, WorkKey], float] = field(default_factory=dict)
    """Time from a need's end until its data is there, 0 where absent.

    By what need and task compute; paid unless both sit on one processor.
    """

    def __post_init__(self) -> None:
        _require_unique("task", [task.name for task in self.tasks])
        _require_unique("processor", [processor.name for processor in self.processors])
        _require_needs(self.tasks)
        for task in self.tasks:
            self._require_costs(task)
        for (need, reader), time_us in self.transfer_us.items():
            if not 0 <= time_us < inf:
                raise BrokenGraph(
                    f"transfer of {need} to {reader}, {time_us}, needed is at least 0 and finite"
                )
        topological_order(self.tasks)

    def _require_costs(self, task: Task) -> None:
        costs_us = [self.cost_us.get((task.work, p.name)) for p in self.processors]
        known_us = [cost_us for cost_us in costs_us if cost_us is not None]
        if not known_us:
            raise BrokenGraph(
                f"task {task.name} has no cost, none of {_short(p.name for p in self.processors)}"
                " can run it"
            )
        for cost_us in known_us:
            if not (isfinite(cost_us) and cost_us >= 0):
                raise BrokenGraph(
                    f"cost of task {task.name}, {cost_us}, needed is at least 0 and finite"
                )


def topological_order(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the tasks behind what they need, otherwise in their order.

    Raises BrokenGraph for a cycle, which it names.
    """
    unmet: dict[str, int] = {}
    readers: dict[str, list[Task]] = {}
    for task in tasks:
        unmet[task.name] = len(task.needs)
        for need in task.needs:
            readers.setdefault(need, []).append(task)
    ordered = [task for task in tasks if not task.needs]
    for task in ordered:
        for reader in readers.get(task.name, ()):
            unmet[reader.name] -= 1
            if not unmet[reader.name]:
                ordered.append(reader)
    if len(ordered) < len(tasks):
        waiting = [task for task in tasks if unmet[task.name]]
        raise BrokenGraph(f"tasks need each other, cycle {_cycle(waiting)}, no schedule ends")
    return tuple(ordered)


def _cycle(waiting: list[Task]) -> str:
    """Return a cycle in words, in the direction in which data would flow."""
    by_name = {task.name: task for task in waiting}
    seen: dict[str, None] = {}
    name = waiting[0].name
    while name not in seen:
        seen[name] = None
        name = min(need for need in by_name[name].needs if need in by_name)
    names = list(seen)
    around = [*names[names.index(name) :], name]
    return " -> ".join(reversed(around)) if len(around) <= 10 else f"through {_short(around)}"


def _require_unique(what: str, names: list[str]) -> None:
    if not names:
        raise BrokenGraph(f"no {what}, a schedule needs at least one")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BrokenGraph(f"{what} {name} is there {names.count(name)} times, names are unique")
        seen.add(name)


def _require_needs(tasks: tuple[Task, ...]) -> None:
    names = {task.name for task in tasks}
    for task in tasks:
        for need in sorted(task.needs - names):
            near = closest(need, list(names)[:1000])
            raise BrokenGraph(f"task {task.name} needs {need}, which is not among the tasks{near}")


def _short(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(listed[:8]) + more
