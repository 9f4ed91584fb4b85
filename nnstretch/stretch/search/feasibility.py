"""Whether limits of the whole network leave any plan, and which of them contradict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from nnstretch.errors import NoPlan
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import most_meetings
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.stretch.search.statistics import least_macs

LIMIT_NAMES = {"max_held": "memory or max_params"}
"""Limits of a network whose name says too little."""


def check_reachable(
    tables: CostTables, options: Sequence[SegmentOption], limits: NetworkLimits
) -> None:
    """Check limits on MACs and meeting points. Raises NoPlan where the rules leave no plan."""
    space, meetings = tables.space, limits.min_meetings
    graph = space.analysis.graph
    most = max(0, most_meetings(options, space.last)[0])
    if meetings > most:
        raise NoPlan(
            f"no plan for {graph.name} meets {meetings} times, the limits leave {most} at most"
        )
    if limits.max_macs < math.inf:
        least = least_macs(tables, options)
        if limits.max_macs < least * (1 - 1e-9):
            raise NoPlan(
                f"no plan for {graph.name} has at most"
                f" {limits.max_macs:.4g} MACs, the limits leave none below {least:.4g}"
            )


def contradictions(
    tables: CostTables,
    options: Sequence[SegmentOption],
    limits: NetworkLimits,
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """Return which limits of the whole network contradict: without one of them there is a plan.

    Empty where no single limit stands against the others.
    """
    unlimited = asdict(NetworkLimits())
    set_names = [name for name in unlimited if getattr(limits, name) != unlimited[name]]
    if len(set_names) < 2:
        return []
    names: list[str] = []
    for name in set_names:
        without = replace(limits, **{name: unlimited[name]})
        search = ExactSearch(tables, options, without, 1.0, progress)
        if search.run().best is not None:
            names.append(LIMIT_NAMES.get(name, name))
    return names


def max_params_held(space: SearchSpace) -> tuple[float, ...]:
    """Return the parameters that each processor with a memory limit can hold."""
    soc = space.cost_model.soc
    return tuple((soc.processor(p).memory_bytes or 0) / soc.element_bytes for p in space.limited)
