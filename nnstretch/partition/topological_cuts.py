"""Where a network may be cut.

Sets of units that need nothing outside, whatever the order of parallel branches.

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
        """Return [unit, frontier]: whether it is in."""
        return np.array(
            [[mask >> unit & 1 for mask in self.masks] for unit in range(self.units)], bool
        )

    @property
    def nested(self) -> np.ndarray:
        """Return [one, other]: whether one lies within the other and is smaller."""
        return np.array(
            [[one != other and not one & ~other for other in self.masks] for one in self.masks],
            bool,
        )


def chain_cuts(units: int) -> TopologicalCuts:
    """Return the cuts of a chain: unit 0, units 0 and 1, ..."""
    return TopologicalCuts(tuple((1 << count) - 1 for count in range(units + 1)), True, units)


def topological_cuts(graph: Graph, unit_of: Sequence[int], limit: int = LIMIT) -> TopologicalCuts:
    """Return all frontiers of a graph, or those of a few orders where there are more than
    `limit`.
    """
    needs = dependencies_of(graph, unit_of)
    everything = enumerate_cuts(needs, limit)
    if everything is not None:
        return TopologicalCuts(everything, True, len(needs))
    masks = {mask for latest in (False, True) for mask in cuts_of_order(needs, latest)} | set(
        depth_first_cuts(needs)
    )
    return TopologicalCuts(
        tuple(sorted(masks, key=lambda mask: (mask.bit_count(), mask))), False, len(needs)
    )


def dependencies_of(graph: Graph, unit_of: Sequence[int]) -> list[int]:
    """Return units that each unit reads from, as bit masks."""
    unit = stage_of_value(graph, unit_of, depends_on_input(graph) | set(graph.outputs))
    needs = [0] * (max(unit_of) + 1)
    for node in graph.nodes:
        for name in node.inputs if node.name in unit and not is_size(node) else ():
            if name in unit and unit[name] != unit[node.name]:
                needs[unit[node.name]] |= 1 << unit[name]
    return needs


def enumerate_cuts(needs: Sequence[int], limit: int) -> tuple[int, ...] | None:
    """Return all sets that need nothing outside, smallest first.

    None where there are more than `limit`.
    """
    level, masks = [0], [0]
    while level:
        grown = {
            mask | 1 << unit
            for mask in level
            for unit, need in enumerate(needs)
            if not mask >> unit & 1 and not need & ~mask
        }
        level = sorted(grown)
        masks += level
        if len(masks) > limit:
            return None
    return tuple(masks)


def cuts_of_order(needs: Sequence[int], latest: bool) -> list[int]:
    """Return sets that one order passes through.

    Of the units that are ready always the first, or always the last.
    """
    mask, masks = 0, [0]
    for _ in needs:
        ready = [
            unit for unit, need in enumerate(needs) if not mask >> unit & 1 and not need & ~mask
        ]
        mask |= 1 << (ready[-1] if latest else ready[0])
        masks.append(mask)
    return masks


def depth_first_cuts(needs: Sequence[int]) -> list[int]:
    """Return sets passed when each unit comes right before the first that needs it."""
    mask, masks = 0, [0]
    stack = [
        unit for unit in reversed(range(len(needs))) if not any(need >> unit & 1 for need in needs)
    ]
    while stack:
        missing = [
            unit
            for unit in range(len(needs))
            if needs[stack[-1]] >> unit & 1 and not mask >> unit & 1
        ]
        if missing:
            stack.append(missing[0])
        elif mask >> (unit := stack.pop()) & 1 == 0:
            mask |= 1 << unit
            masks.append(mask)
    return masks
