"""How many channels each group inside a unit has, at any width the unit reads and any it writes.

Whole arrays at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from nnstretch.stretch.cost.polynomials import Array
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE, allocate_channels
from nnstretch.stretch.lowering.section import Section
from nnstretch.stretch.lowering.width_scaling import InnerGroup, output_dimension_of


@dataclass
class UnitWidths:
    """Groups of channels of one unit whose widths may change: `roots`, in a fixed order."""

    section: Section

    def __post_init__(self) -> None:
        channels, section = self.section.channels, self.section
        self.entry = tuple(sorted(channels.roots(section.input_dimension) - channels.pinned.keys()))
        free = output_dimension_of(
            section.output_dimension,
            channels,
            dict.fromkeys((*channels.pinned, *self.entry), Fraction(1)),
        ).free
        self.ends = dict(free)
        inner = {
            interior.root: interior.width
            for interior in section.interiors
            if interior.root not in channels.pinned
        }
        self.widths = (
            dict.fromkeys(self.entry, section.width_in)
            | self.ends
            | {r: w for r, w in inner.items() if r not in self.ends}
        )
        self.roots = tuple(self.widths)

    def entry_width(self, width_in: Array, width_out: Array) -> Array | None:
        """Return the width at a unit's entry: `width_in` itself, or what an adapter makes of it;
        `section.readable_width` over arrays.

        None where only one pair at a time tells.
        """
        channels, section = self.section.channels, self.section
        if not self.regular:
            return None
        if not self.entry:
            return np.full(1, section.width_in)
        if self.entry_in_end and not self.ends:
            inside, remainder = np.divmod(width_out * section.width_in, section.width_out)
            return None if remainder.any() else inside
        return (
            width_in
            if channels.granularity[self.entry[0]] == section.width_in and not self.entry_in_end
            else None
        )

    @property
    def regular(self) -> bool:
        """Return whether the widths of the unit's groups follow from its entry and end alone."""
        channels = self.section.channels
        whole = all(self.widths[r] % channels.granularity[r] == 0 for r in self.roots)
        return (
            len(self.entry) <= 1
            and whole
            and len(channels.junctions) <= 1
            and (len(self.ends) <= 1 or not self.entry_in_end)
        )

    @property
    def entry_in_end(self) -> bool:
        """Return whether the unit's end shares channels with its entry."""
        return bool(self.section.channels.roots(self.section.output_dimension) & set(self.entry))

    def group_widths(self, width_in: Array, width_out: Array) -> dict[int, Array] | None:
        """Return channels of every group at these widths.

        None where the unit cannot be entered as it is.
        """
        section = self.section
        got: dict[int, Array] = dict.fromkeys(self.entry, width_in)
        got |= self.end_columns(width_in, width_out)
        for interior in section.interiors:
            if interior.root not in got and interior.root in self.widths:
                got[interior.root] = self.follower_width(interior, got, width_out)
        return got if got.keys() == set(self.roots) else None

    def end_columns(self, width_in: Array, width_out: Array) -> dict[int, Array]:
        """Return the widths of the groups at the unit's end, by group."""
        channels, section = self.section.channels, self.section
        if len(self.ends) == 1:
            ((root, size),) = self.ends.items()
            read = sum(
                part.size
                for part in section.output_dimension
                if part.group is not None and channels.root[part.group] in self.entry
            )
            remaining = (
                width_out
                - (section.width_out - size - read)
                - (width_in * read // section.width_in if read else 0)
            )
            return {root: remaining}
        settled = section.width_out - sum(self.ends.values())
        rows: dict[int, dict[int, Fraction]] = {}
        for width in np.unique(width_out).tolist():
            remaining = Fraction(width - settled)
            rows[width] = (
                allocate_channels(
                    self.ends, channels, remaining, remaining / sum(self.ends.values())
                )
                if self.ends
                else {}
            )
        place = {width: i for i, width in enumerate(rows)}
        at = np.vectorize(place.__getitem__, otypes=[np.int64])(width_out)
        return {
            root: np.array([int(row[root] * size) for row in rows.values()])[at]
            for root, size in self.ends.items()
        }

    def follower_width(
        self, interior: InnerGroup, got: Mapping[int, Array], width_out: Array
    ) -> Array:
        """Return the width of a group that follows others, over arrays: exact where every part
        stays whole, else on the granule.
        """
        if interior.follows in got:
            num, den = got[interior.follows], self.widths[interior.follows]  # type: ignore[index]
        elif interior.follows in self.section.channels.pinned:
            num, den = np.ones(1, dtype=np.int64), 1
        else:
            num, den = width_out, self.section.width_out
        width, quanta = interior.width, self.section.channels.granularity[interior.root]
        step = width // quanta
        unit = np.where(
            width * num >= 2 * CHANNEL_MULTIPLE * den, lcm(step, CHANNEL_MULTIPLE), step
        )
        count, remainder = np.divmod(width * num, den * unit)
        count = count + (
            (2 * remainder > den * unit) | ((2 * remainder == den * unit) & (count % 2 == 1))
        )
        return np.where((num * quanta) % den == 0, width * num // den, np.maximum(count, 1) * unit)

    def shortcut_is_identity(self, columns: Mapping[int, Array]) -> Array | None:
        """Return where an addition meets the unit's own input and both ends agree.

        No adapter goes in.
        """
        if not self.section.channels.junctions or len(self.entry) != 1 or len(self.ends) != 1:
            return None
        (end,) = self.ends
        return columns[self.entry[0]] == columns[end]
