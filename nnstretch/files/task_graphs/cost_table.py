"""JSON with tasks or a ready queue, processors, costs and edges.

    {"tasks": ["a", "b"], "processors": ["P1", "P2"],
     "cost": {"a": {"P1": 3, "P2": 4}, "b": {"P1": 5}},
     "edges": [{"from": "a", "to": "b", "data": 2}]}

`processors` may be a map from name to type; costs then may be given by type. A pair without a cost
cannot run. An edge costs `latency + data / bandwidth` (0 and 1 unless the file says otherwise),
nothing where both tasks sit on one processor.

Instead of `tasks` and `edges`, `queue` lists independent tasks that are all there at time 0. The
kind of such a task is its name without the digits at its end, and `cost` is by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from nnstretch.errors import BrokenFile, closest
from nnstretch.files.decode import decode
from nnstretch.files.limits import Length, Range, file_key
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph

Name = Annotated[str, Length(1, 1000)]
Amount = Annotated[float, Range(0, 1e15)]
MOST_TASKS = 1_000_000
MOST_PRICES = 10_000_000
"""Tasks times processors: the numbers that a graph keeps."""
MOST_PROCESSORS = 10_000
Names = Annotated[tuple[Name, ...], Length(1, MOST_TASKS)]


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """What one task hands to another."""

    source: Name = field(metadata=file_key("from"))
    target: Name = field(metadata=file_key("to"))
    data: Amount = 0.0


@dataclass(frozen=True, slots=True)
class CostTableFile:
    """Everything that such a file may hold."""

    processors: (
        Annotated[tuple[Name, ...], Length(1, MOST_PROCESSORS)]
        | Annotated[dict[str, Name], Length(1, MOST_PROCESSORS)]
    )
    cost: Annotated[dict[str, dict[str, Amount]], Length(1, MOST_TASKS)]
    """By task, or by kind in a ready queue, and by processor or type."""
    tasks: Names | None = None
    queue: Names | None = None
    edges: Annotated[tuple[EdgeRow, ...], Length(0, 10 * MOST_TASKS)] = ()
    latency: Amount = 0.0
    bandwidth: Annotated[float, Range(above=0)] = 1.0
    name: str = ""
    reference: str = ""
    """Where the graph is from, for readers."""
    communication: str = ""
    """What edges cost, in words, for readers."""
    expected: object = None
    """Known answers, for tests."""

    def __post_init__(self) -> None:
        if (self.tasks is None) == (self.queue is None):
            raise ValueError("needed is either 'tasks' or 'queue'")
        if self.queue is not None and self.edges:
            raise ValueError("'edges' beside 'queue', tasks of a queue are independent")


def decode_cost_table(document: Any, where: str) -> TaskGraph:
    """Decode a parsed file. Raises BrokenFile, or BrokenGraph for what contradicts itself."""
    try:
        file: CostTableFile = decode(CostTableFile, document, "")
    except ValueError as fault:
        raise BrokenFile(f"{where}, {str(fault).removeprefix('.').removeprefix(', ')}") from None
    processors = _processors(file.processors)
    needs, transfer_us = _edges(file, where)
    if file.queue is not None:
        tasks = tuple(Task(name, name.rstrip("0123456789")) for name in file.queue)
        unknown = set[str]()  # a table may know more kinds than wait in this queue
    else:
        names = file.tasks or ()
        tasks = tuple(Task(name, name, frozenset(needs.get(name, ()))) for name in names)
        unknown = file.cost.keys() - set(names)
    if unknown:
        row = min(unknown)
        near = closest(row, [task.name for task in tasks][:1000])
        raise BrokenFile(f"{where}, cost of {row}, which is not among the tasks{near}")
    check_prices(max(len(tasks), len(file.cost)), len(processors), where)
    costs_us = _costs(file.cost, processors, where)
    return TaskGraph(file.name, tasks, processors, costs_us, transfer_us)


def check_prices(tasks: int, processors: int, where: str) -> None:
    """Check that a graph is not too large to keep. Raises BrokenFile."""
    if tasks * processors > MOST_PRICES:
        raise BrokenFile(
            f"{where}, {tasks} tasks on {processors} processors, needed are at most {MOST_PRICES}"
            " pairs of them"
        )


def _processors(listed: tuple[str, ...] | Mapping[str, str]) -> tuple[Processor, ...]:
    """Return the processors; one without a type is a type of its own."""
    if not isinstance(listed, Mapping):
        return tuple(Processor(name, name, 1) for name in listed)
    return tuple(Processor(name, kind, 1) for name, kind in listed.items())


def _costs(
    table: Mapping[str, Mapping[str, float]], processors: tuple[Processor, ...], where: str
) -> dict[tuple[WorkKey, str], float]:
    """Return costs by processor; one that is given by name goes before that of its type."""
    columns = [processor.name for processor in processors]
    columns += [processor.kind for processor in processors]
    known = set(columns)
    costs_us: dict[tuple[WorkKey, str], float] = {}
    for row, costs in table.items():
        if unknown := costs.keys() - known:
            column = min(unknown)
            near = closest(column, list(dict.fromkeys(columns)))
            raise BrokenFile(f"{where}, cost of {row} on unknown processor {column}{near}")
        for processor in processors:
            cost_us = costs.get(processor.name, costs.get(processor.kind))
            if cost_us is not None:
                costs_us[row, processor.name] = cost_us
    return costs_us


def _edges(
    file: CostTableFile, where: str
) -> tuple[dict[str, list[str]], dict[tuple[WorkKey, WorkKey], float]]:
    """Return the needs of each task, and the time of each edge."""
    known = set(file.tasks or ())
    needs: dict[str, list[str]] = {}
    transfer_us: dict[tuple[WorkKey, WorkKey], float] = {}
    for edge in file.edges:
        words = f"{where}, edge from {edge.source} to {edge.target}"
        for end in (edge.source, edge.target):
            if end not in known:
                near = closest(end, list(file.tasks or ())[:1000])
                raise BrokenFile(f"{words}, {end} is not among the tasks{near}")
        if (edge.source, edge.target) in transfer_us:
            raise BrokenFile(f"{words}, it is there twice")
        needs.setdefault(edge.target, []).append(edge.source)
        time_us = file.latency + edge.data / file.bandwidth
        transfer_us[edge.source, edge.target] = time_us
    return needs, transfer_us
