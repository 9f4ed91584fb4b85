"""A task graph by numbers instead of names, for rules that visit every edge and pair."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from nnstretch.task_graph import TaskGraph, topological_order

Edges = tuple[tuple[tuple[int, float], ...], ...]
"""For each task the tasks at the other ends of its edges, and the transfer time of each, us."""


@dataclass(frozen=True, slots=True)
class IndexedGraph:
    """Tasks and processors by their place in the graph's lists."""

    costs_us: tuple[tuple[float, ...], ...]
    """By task and processor; infinite where it cannot run."""
    needs: Edges
    readers: Edges
    topological: tuple[int, ...]
    """Tasks behind what they need."""

    @property
    def tasks(self) -> range:
        """Return the numbers of the tasks."""
        return range(len(self.costs_us))

    @property
    def processors(self) -> range:
        """Return the numbers of the processors."""
        return range(len(self.costs_us[0]))


def index_graph(graph: TaskGraph) -> IndexedGraph:
    """Return a task graph by numbers."""
    number_of = {task.name: number for number, task in enumerate(graph.tasks)}
    names = [processor.name for processor in graph.processors]
    costs_us: list[tuple[float, ...]] = []
    needs: list[tuple[tuple[int, float], ...]] = []
    readers: list[list[tuple[int, float]]] = [[] for _ in graph.tasks]
    for number, task in enumerate(graph.tasks):
        work = task.work
        costs_us.append(tuple([graph.cost_us.get((work, name), inf) for name in names]))
        edges: list[tuple[int, float]] = []
        for need in sorted(map(number_of.__getitem__, task.needs)):
            transfer_us = graph.transfer_us.get((graph.tasks[need].work, work), 0.0)
            edges.append((need, transfer_us))
            readers[need].append((number, transfer_us))
        needs.append(tuple(edges))
    order = tuple([number_of[task.name] for task in topological_order(graph.tasks)])
    return IndexedGraph(tuple(costs_us), tuple(needs), tuple(map(tuple, readers)), order)
