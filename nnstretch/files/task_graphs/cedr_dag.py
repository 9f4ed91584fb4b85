"""JSON of CEDR's DAG mode: nodes with platforms, their costs in microseconds, and edges.

What only CEDR's run time reads (variables, arguments, functions, streaming) is checked for its kind
and left alone; the graph is that of one frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from nnstretch.errors import BadInput, BrokenFile, closest
from nnstretch.files.decode import decode
from nnstretch.files.limits import Length, OneOf
from nnstretch.files.task_graphs.cost_table import MOST_TASKS, Amount, Name, check_prices
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph

STREAMING = ("none", "single buffer", "double buffer", "sequential")


@dataclass(frozen=True, slots=True)
class CedrEdge:
    """Neighbour of a node, and what data between them costs, us."""

    name: Name
    edgecost: Amount


@dataclass(frozen=True, slots=True)
class CedrPlatform:
    """Type of processor that runs a node, and how long, us."""

    name: Name
    nodecost: Amount
    runfunc: str
    shared_object: str = ""


@dataclass(frozen=True, slots=True)
class CedrNode:
    """One task of an application."""

    arguments: tuple[str, ...]
    predecessors: tuple[CedrEdge, ...]
    successors: tuple[CedrEdge, ...]
    platforms: Annotated[tuple[CedrPlatform, ...], Length(1, 100)]


@dataclass(frozen=True, slots=True)
class CedrDag:
    """An application in CEDR's DAG mode; its keys are CEDR's."""

    AppName: str
    SharedObject: str
    DAG: Annotated[dict[str, CedrNode], Length(1, MOST_TASKS)]
    Variables: dict[str, object]
    Stream_enable: Annotated[str, OneOf(STREAMING)] = "none"
    Max_stream_frame_count: int = 1


def decode_cedr_dag(document: Any, counts: Mapping[str, int] | None, where: str) -> TaskGraph:
    """Decode a parsed file for `counts` processors of each type; None: one of each that it names.

    Raises BrokenFile, or BrokenGraph for what contradicts itself, BadInput for a type on which no
    node runs.
    """
    try:
        file: CedrDag = decode(CedrDag, document, "")
    except ValueError as fault:
        raise BrokenFile(f"{where}, {str(fault).removeprefix('.').removeprefix(', ')}") from None
    _require_both_ends(file.DAG, where)
    kinds: dict[str, int] = {}
    for node in file.DAG.values():
        for platform in node.platforms:
            kinds.setdefault(platform.name, 1)
    for kind in () if counts is None else counts:
        if kind not in kinds:
            near = closest(kind, list(kinds)) or f"; they have {', '.join(kinds)}"
            raise BadInput(f"--processors names {kind}, {where}, no node runs on it{near}")
    processors = processors_of_counts(kinds if counts is None else counts)
    check_prices(len(file.DAG), len(processors), where)
    tasks: list[Task] = []
    costs_us: dict[tuple[WorkKey, str], float] = {}
    transfer_us: dict[tuple[WorkKey, WorkKey], float] = {}
    for name, node in file.DAG.items():
        tasks.append(Task(name, name, frozenset(edge.name for edge in node.predecessors)))
        for edge in node.predecessors:
            transfer_us[edge.name, name] = edge.edgecost
        by_kind = {platform.name: platform.nodecost for platform in node.platforms}
        for processor in processors:
            if processor.kind in by_kind:
                costs_us[name, processor.name] = by_kind[processor.kind]
    return TaskGraph(file.AppName, tuple(tasks), processors, costs_us, transfer_us)


def processors_of_counts(counts: Mapping[str, int]) -> tuple[Processor, ...]:
    """Return processors named by type and number, from 1 on, as CEDR names them."""
    processors: list[Processor] = []
    for kind, count in counts.items():
        for number in range(1, count + 1):
            processors.append(Processor(f"{kind}{number}", kind, 1))
    return tuple(processors)


def check_once(names: list[str], what: str) -> None:
    """Check that each name is there once. Raises BrokenFile naming one that is not."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BrokenFile(f"{what}, {name} is there twice")
        seen.add(name)


def _require_both_ends(dag: Mapping[str, CedrNode], where: str) -> None:
    """Refuse an edge whose two ends disagree. Raises BrokenFile."""
    forward: dict[tuple[str, str], float] = {}
    backward: dict[tuple[str, str], float] = {}
    for name, node in dag.items():
        check_once([edge.name for edge in node.successors], f"{where}, successor of {name}")
        check_once([edge.name for edge in node.predecessors], f"{where}, predecessor of {name}")
        check_once([each.name for each in node.platforms], f"{where}, platform of {name}")
        for edge in node.successors:
            forward[name, edge.name] = edge.edgecost
        for edge in node.predecessors:
            backward[edge.name, name] = edge.edgecost
    for source, target in forward.keys() | backward.keys():
        words = f"{where}, edge from {source} to {target}"
        for end in (source, target):
            if end not in dag:
                raise BrokenFile(f"{words}, {end} is not among the nodes{closest(end, list(dag))}")
    for pair in sorted(forward.keys() | backward.keys()):
        words = f"{where}, edge from {pair[0]} to {pair[1]}"
        if pair not in backward:
            raise BrokenFile(f"{words}, only {pair[0]} names it")
        if pair not in forward:
            raise BrokenFile(f"{words}, only {pair[1]} names it")
        if forward[pair] != backward[pair]:
            raise BrokenFile(f"{words}, its costs are {forward[pair]:g} and {backward[pair]:g}")
