"""Priorities of tasks: upward and downward rank, and the optimistic cost table."""

from __future__ import annotations

from math import inf

from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph


def mean_costs_us(graph: IndexedGraph) -> list[float]:
    """Return the mean cost of each task over the processors that can run it."""
    means_us: list[float] = []
    for costs_us in graph.costs_us:
        known_us = [cost_us for cost_us in costs_us if cost_us < inf]
        means_us.append(sum(known_us) / len(known_us))
    return means_us


def upward_ranks_us(graph: IndexedGraph) -> list[float]:
    """Return the mean length of the longest way from each task to an end, itself included.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, eq. 8 and 9.
    """
    means_us = mean_costs_us(graph)
    ranks_us = [0.0] * len(means_us)
    for task in reversed(graph.topological):
        longest_us = 0.0
        for reader, transfer_us in graph.readers[task]:
            longest_us = max(longest_us, transfer_us + ranks_us[reader])
        ranks_us[task] = means_us[task] + longest_us
    return ranks_us


def downward_ranks_us(graph: IndexedGraph) -> list[float]:
    """Return the mean length of the longest way from a beginning to each task, itself left out.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, eq. 10.
    """
    means_us = mean_costs_us(graph)
    ranks_us = [0.0] * len(means_us)
    for task in graph.topological:
        for need, transfer_us in graph.needs[task]:
            way_us = ranks_us[need] + means_us[need] + transfer_us
            ranks_us[task] = max(ranks_us[task], way_us)
    return ranks_us


def optimistic_costs_us(graph: IndexedGraph) -> list[list[float]]:
    """Return, by task and processor, the least time from the task's end there to the graph's end.

    Every later task is free to choose its processor. Arabnejad, Barbosa, IEEE TPDS 25(3), 2014,
    eq. 3.
    """
    table_us: list[list[float]] = [[] for _ in graph.tasks]
    for task in reversed(graph.topological):
        row_us = [0.0] * len(graph.processors)
        for reader, transfer_us in graph.readers[task]:
            costs_us = graph.costs_us[reader]
            ways_us = [table_us[reader][p] + costs_us[p] for p in graph.processors]
            elsewhere_us = min(ways_us) + transfer_us
            for processor, here_us in enumerate(ways_us):
                row_us[processor] = max(row_us[processor], min(here_us, elsewhere_us))
        table_us[task] = row_us
    return table_us
