"""Branches that drop a repeat at whose two ends widths differ, and the widths that they have.

Elsewhere the unit behind a dropped repeat reads what that repeat would have written. Where the
repeat reads a width that never scales and writes one that does, what lies before it scales once it
is gone: the widths at the cuts of such a branch are those of its section without the repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.lowering.section import Section, cut_scales
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.structure.channel_groups import size_at
from nnstretch.structure.cuts import Cut


@dataclass(frozen=True)
class RejoinedBranches:
    """Branches between two cuts: a depth and an end width each, in one row."""

    depths: Array
    """Numbers of their depths."""
    columns: Array
    """Numbers of their end widths."""
    kept: Array
    """Which units behind the first they keep: `[branch, unit]`."""
    widths: Array
    """What every unit of theirs writes, first to last: `[unit, branch]`.

    A unit that is dropped hands on what it would read.
    """

    @property
    def first_widths(self) -> Array:
        """Return what the first unit of each branch writes."""
        return self.widths[0]


def may_rejoin(space: SearchSpace, j: int) -> bool:
    """Return whether branches that end at cut j may drop repeats at whose ends widths differ."""
    widths = np.array(space.inner_widths[j])
    differs = np.not_equal(widths[:-1], widths[1:]).any(axis=1)
    return bool((differs & space.branch_depths.droppable_units(j)).any())


def rejoined_branches(space: SearchSpace, i: int, j: int) -> RejoinedBranches | None:
    """Return branches from cut i to cut j that drop a repeat at whose ends widths differ.

    Those that can be built; None where there are none.
    """
    cuts = np.array(space.inner_widths[j])[i:]
    differs = np.not_equal(cuts[:-1], cuts[1:])
    if not differs.any():
        return None
    kept = space.branch_depths.kept_units(i, j)
    dropped = (1 - kept.astype(np.float64)) @ differs > 0
    ends, depths = space.widths_at(j).tolist(), space.depths(i, j)
    rows, columns, widths = list[int](), list[int](), list[list[int]]()
    for row in np.flatnonzero(dropped.any(axis=1)).tolist():
        chosen = np.flatnonzero(dropped[row])
        branch = ShortenedSection.of(space, (i, j), depths[row], kept[row].tolist())
        for column in chosen.tolist():
            unit_widths = branch.unit_widths(ends[column])
            if unit_widths is not None:
                rows.append(row)
                columns.append(column)
                widths.append(unit_widths)
    if not rows:
        return None
    return RejoinedBranches(np.array(rows), np.array(columns), kept[rows], np.array(widths).T)


@dataclass(frozen=True)
class ShortenedSection:
    """A section without some of its repeats, and which units it keeps behind its first."""

    section: Section
    kept: Sequence[bool]
    inner_cuts: Sequence[tuple[Cut, int]]
    """Cuts behind units that are kept, less the end, and where their channels are."""

    @classmethod
    def of(
        cls, space: SearchSpace, ends: tuple[int, int], depth: int, kept: Sequence[bool]
    ) -> ShortenedSection:
        """Return the section between two cuts at a depth."""
        i, j = ends
        section = space.analysis.section(space.cuts[i], space.cuts[j], depth)
        behind = [space.cuts[i + 1]]
        behind += [space.cuts[i + 2 + k] for k, is_kept in enumerate(kept) if is_kept]
        axis = space.analysis.whole_network.axis
        return cls(section, kept, [(cut, axis(cut.value)) for cut in behind[:-1]])

    def unit_widths(self, width: int) -> list[int] | None:
        """Return what each unit writes in a branch of an end width; None where it cannot be."""
        section, channels = self.section, self.section.channels
        widths = list[int]()
        try:
            _, scales, _ = cut_scales(section, section.width_in, width, "")
            for cut, axis in self.inner_cuts:
                widths.append(size_at(channels.shapes[cut.value][0][axis], channels, scales))
        except BadPlan:
            return None
        widths.append(width)
        numbers = np.cumsum([0, *self.kept])
        return [widths[number] for number in numbers.tolist()]
