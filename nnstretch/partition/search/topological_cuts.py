"""Topological cuts: sets of units that need nothing outside, whatever the order of branches.

A stage is what lies between two of them, one within the other. A chain has one for every unit; a
DAG has more, and where it has too many, those that a few orders of its units pass through stand for
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.graph import Graph
from nnstretch.partition.split_graph import stage_of_value
from nnstretch.structure.cuts import depends_on_input, is_size

LIMIT = 256
"""Frontiers up to which all are taken; costs grow with the square."""


@dataclass(frozen=True)
class TopologicalCuts:
    """Sets of units, the empty one first, all units last, none before one that is within it."""

    masks: tuple[int, ...]
    """Bit u is unit u."""
    complete: bool
    """Whether these are all there are."""
    units: int

    @property
    def member(self) -> np.ndarray:
        """Return [unit, frontier]: whether the unit is in it."""
        rows = [[mask >> unit & 1 for mask in self.masks] for unit in range(self.units)]
        return np.array(rows, bool)

    @property
    def nested(self) -> np.ndarray:
        """Return [start, stop]: whether start lies within stop and is smaller."""
        rows = [[a != b and not a & ~b for b in self.masks] for a in self.masks]
        return np.array(rows, bool)


def chain_cuts(units: int) -> TopologicalCuts:
    """Return the cuts of a chain: unit 0, units 0 and 1, ..."""
    return TopologicalCuts(tuple((1 << count) - 1 for count in range(units + 1)), True, units)


def topological_cuts(graph: Graph, unit_of: Sequence[int], limit: int = LIMIT) -> TopologicalCuts:
    """Return all cuts of a graph, or those of a few orders where there are more than `limit`."""
    needs = dependencies_of(graph, unit_of)
    masks = enumerate_cuts(needs, limit)
    if masks is not None:
        return TopologicalCuts(masks, True, len(needs))
    earliest = cuts_of_order(needs, latest=False)
    latest = cuts_of_order(needs, latest=True)
    some = {*earliest, *latest, *depth_first_cuts(needs)}
    ordered = sorted(some, key=lambda mask: (mask.bit_count(), mask))
    return TopologicalCuts(tuple(ordered), False, len(needs))


def dependencies_of(graph: Graph, unit_of: Sequence[int]) -> list[int]:
    """Return the units that each unit reads from, as bit masks."""
    unit = stage_of_value(graph, unit_of, depends_on_input(graph) | set(graph.outputs))
    needs = [0] * (max(unit_of) + 1)
    for node in graph.nodes:
        if node.name not in unit or is_size(node):
            continue
        for name in node.inputs:
            if name in unit and unit[name] != unit[node.name]:
                needs[unit[node.name]] |= 1 << unit[name]
    return needs


def enumerate_cuts(needs: Sequence[int], limit: int) -> tuple[int, ...] | None:
    """Return all sets that need nothing outside, smallest first; None for more than `limit`."""
    level = [0]
    masks = [0]
    while level:
        grown: set[int] = set()
        for mask in level:
            grown.update(mask | 1 << unit for unit in ready_units(needs, mask))
        level = sorted(grown)
        masks += level
        if len(masks) > limit:
            return None
    return tuple(masks)


def ready_units(needs: Sequence[int], mask: int) -> list[int]:
    """Return the units outside a set that need nothing outside it."""
    return [u for u, need in enumerate(needs) if not mask >> u & 1 and not need & ~mask]


def cuts_of_order(needs: Sequence[int], latest: bool) -> list[int]:
    """Return the sets of one order: always the first ready unit next, or always the last."""
    mask = 0
    masks = [0]
    for _ in needs:
        ready = ready_units(needs, mask)
        mask |= 1 << (ready[-1] if latest else ready[0])
        masks.append(mask)
    return masks


def depth_first_cuts(needs: Sequence[int]) -> list[int]:
    """Return the sets of the order in which each unit comes right before its first reader."""
    mask = 0
    masks = [0]
    units = range(len(needs))
    stack = [unit for unit in reversed(units) if not any(need >> unit & 1 for need in needs)]
    while stack:
        needed = needs[stack[-1]] & ~mask
        missing = [unit for unit in units if needed >> unit & 1]
        if missing:
            stack.append(missing[0])
            continue
        unit = stack.pop()
        if not mask >> unit & 1:
            mask |= 1 << unit
            masks.append(mask)
    return masks
