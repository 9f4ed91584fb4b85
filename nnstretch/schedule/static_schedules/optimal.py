"""The shortest schedule of a small task graph, proven by constraint programming (OR-Tools CP-SAT).

Each task has an interval on every processor that can run it, of which one is taken; intervals of a
processor do not overlap; data between processors takes its time. Nothing runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from math import floor, isclose
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput, one_line
from nnstretch.schedule.static_schedules.partial_schedule import trace_of_places
from nnstretch.schedule.static_schedules.table import STATIC_POLICIES
from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph, index_graph
from nnstretch.schedule.task_graphs.lower_bounds import lower_bounds
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver, IntVar

MOST_TICKS = 1 << 48
"""Of the longest schedule that is looked for; the solver counts in whole numbers."""
WHOLE = 1e-12
"""Share of a time by which it may miss a whole number of ticks: arithmetic before was rounded."""
DEFAULT_TIME_LIMIT_S = 60.0
Numbers = dict[int, "IntVar"]


@dataclass(frozen=True, slots=True)
class ProvenSchedule:
    """A schedule, and a time before which none ends."""

    trace: Trace
    lower_bound_us: float


@dataclass(frozen=True, slots=True)
class ScheduleModel:
    """Variables of the model, in ticks."""

    model: Any
    starts: list[IntVar]
    places: list[Numbers]
    """By task and processor, 1 where the task runs there."""
    ticks: float
    """In a microsecond."""


def optimal(graph: TaskGraph, time_limit_s: float = DEFAULT_TIME_LIMIT_S) -> ProvenSchedule:
    """Return the shortest schedule, or the best and its bound when the time is over.

    A rule's schedule that ends at a lower bound is optimal without a solver. Digits of times beyond
    14 of the makespan's are rounded down for the bound, never for the schedule. Raises BadInput
    without OR-Tools, and where it contradicts itself.
    """
    best = best_of_rules(graph)
    end_us = _end_us(best)
    bound_us = lower_bounds(graph).us
    if end_us <= bound_us or isclose(end_us, bound_us, rel_tol=1e-12):
        return ProvenSchedule(best, end_us)
    return _solve(graph, best, bound_us, time_limit_s)


def best_of_rules(graph: TaskGraph) -> Trace:
    """Return the shortest schedule that a static policy makes."""
    return min((policy.make(graph) for policy in STATIC_POLICIES.values()), key=_end_us)


def _end_us(trace: Trace) -> float:
    return max(span.end_us for span in trace.spans)


def _solve(graph: TaskGraph, best: Trace, bound_us: float, time_limit_s: float) -> ProvenSchedule:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise BadInput(
            f"OR-Tools is not installed ({one_line(error)}), policy optimal, pip install"
            " 'nnstretch[optimal]'"
        ) from None
    indexed = index_graph(graph)
    ticks = ticks_per_us(_times_us(indexed), _end_us(best))
    limits = (floor(bound_us * ticks), floor(_end_us(best) * ticks * (1 + WHOLE) + 1))
    scheduled = schedule_model(cp_model, indexed, ticks, limits)
    _hint(scheduled, graph, best, ticks)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    status = solver.status_name(solver.solve(scheduled.model))
    if status == "INFEASIBLE":  # the schedule of a rule keeps the limits of the model
        raise BadInput(
            f"OR-Tools {version('ortools')} finds no schedule where there is one, policy optimal,"
            " pip install 'nnstretch[optimal]'"
        )
    proven_us = max(bound_us, solver.best_objective_bound / ticks)
    if status in ("OPTIMAL", "FEASIBLE"):
        solved = replay(graph, indexed, scheduled, solver)
        best = min(best, solved, key=_end_us)
    end_us = _end_us(best)
    proven = isclose(end_us, proven_us, rel_tol=1e-9)
    return ProvenSchedule(best, end_us if proven else min(proven_us, end_us))


def _times_us(graph: IndexedGraph) -> Iterable[float]:
    for costs_us in graph.costs_us:
        yield from (cost_us for cost_us in costs_us if cost_us != float("inf"))
    for needs in graph.needs:
        yield from (transfer_us for _, transfer_us in needs)


def ticks_per_us(times_us: Iterable[float], end_us: float) -> float:
    """Return the least power of ten that makes all times whole, as far as the solver can count.

    It is one where that does. Times beyond the end do not matter: no schedule that is looked for
    has room for them.
    """
    listed = tuple(us for us in times_us if us <= end_us)
    ticks = 1.0
    while ticks * 10 * end_us <= MOST_TICKS:
        if all(isclose(us * ticks, round(us * ticks), rel_tol=WHOLE) for us in listed):
            break
        ticks *= 10
    while ticks * end_us > MOST_TICKS:
        ticks /= 10
    return ticks


def whole_ticks(time_us: float, ticks: float) -> int:
    """Return how many ticks a time takes, rounded down where it is no whole number of them."""
    exact = time_us * ticks
    nearest = round(exact)
    return nearest if isclose(exact, nearest, rel_tol=WHOLE, abs_tol=1e-9) else floor(exact)


def schedule_model(
    cp_model: Any, graph: IndexedGraph, ticks: float, limits: tuple[int, int]
) -> ScheduleModel:
    """Return the model of a task graph whose schedules end between two limits, ticks."""
    model = cp_model.CpModel()
    makespan = model.new_int_var(*limits, "makespan")
    horizon = limits[1]
    starts: list[IntVar] = []
    ends: list[IntVar] = []
    places: list[Numbers] = []
    on_processor: list[list[Any]] = [[] for _ in graph.processors]
    for task, costs_us in enumerate(graph.costs_us):
        start = model.new_int_var(0, horizon, f"start {task}")
        end = model.new_int_var(0, horizon, f"end {task}")
        chosen: Numbers = {}
        for processor, cost_us in enumerate(costs_us):
            if cost_us * ticks > horizon:
                continue  # no schedule that is looked for has room for it
            name = f"{task} on {processor}"
            chosen[processor] = model.new_bool_var(name)
            length = whole_ticks(cost_us, ticks)
            interval = model.new_optional_interval_var(start, length, end, chosen[processor], name)
            on_processor[processor].append(interval)
        model.add_exactly_one(chosen.values())
        model.add(makespan >= end)
        starts.append(start)
        ends.append(end)
        places.append(chosen)
    for intervals in on_processor:
        model.add_no_overlap(intervals)
    for task, needs in enumerate(graph.needs):
        for need, transfer_us in needs:
            is_far = transfer_us * ticks > horizon
            gap = horizon + 1 if is_far else whole_ticks(transfer_us, ticks)
            _add_need(model, starts[task], ends[need], gap, (places[need], places[task]))
    model.minimize(makespan)
    return ScheduleModel(model, starts, places, ticks)


def _add_need(
    model: Any, start: IntVar, end: IntVar, gap: int, places: tuple[Numbers, Numbers]
) -> None:
    """Start behind what is needed, and `gap` later where the two are not on one processor."""
    if not gap:
        model.add(start >= end)
        return
    before, after = places
    together = []
    for processor in before.keys() & after.keys():
        both = model.new_bool_var("together")
        model.add_implication(both, before[processor])
        model.add_implication(both, after[processor])
        together.append(both)
    model.add(start >= end + gap * (1 - sum(together)))


def _hint(scheduled: ScheduleModel, graph: TaskGraph, best: Trace, ticks: float) -> None:
    """Tell the solver a schedule to begin with."""
    number_of = {task.name: number for number, task in enumerate(graph.tasks)}
    processor_of = {processor.name: n for n, processor in enumerate(graph.processors)}
    for span in best.spans:
        task = number_of[span.task.name]
        scheduled.model.add_hint(scheduled.starts[task], floor(span.start_us * ticks))
        for processor, chosen in scheduled.places[task].items():
            is_place = processor == processor_of[span.processor]
            scheduled.model.add_hint(chosen, int(is_place))


def replay(
    graph: TaskGraph, indexed: IndexedGraph, scheduled: ScheduleModel, solver: CpSolver
) -> Trace:
    """Return the solver's schedule with its order and places, and with exact times."""
    places: list[int] = []
    for chosen in scheduled.places:
        places.append(next(p for p, is_place in chosen.items() if solver.value(is_place)))
    position = {task: number for number, task in enumerate(indexed.topological)}
    starts = [solver.value(start) for start in scheduled.starts]
    starts_us, ends_us = [0.0] * len(places), [0.0] * len(places)
    free_us = [0.0] * len(indexed.processors)

    def order(task: int) -> tuple[int, bool, int]:
        # What takes less than a tick starts when longer tasks do, and may be what they need.
        takes_ticks = whole_ticks(indexed.costs_us[task][places[task]], scheduled.ticks) > 0
        return starts[task], takes_ticks, position[task]

    for task in sorted(indexed.tasks, key=order):
        processor = places[task]
        start_us = free_us[processor]
        for need, transfer_us in indexed.needs[task]:
            wait_us = 0.0 if places[need] == processor else transfer_us
            start_us = max(start_us, ends_us[need] + wait_us)
        starts_us[task] = start_us
        ends_us[task] = start_us + indexed.costs_us[task][processor]
        free_us[processor] = ends_us[task]
    return trace_of_places(graph, starts_us, ends_us, places)
