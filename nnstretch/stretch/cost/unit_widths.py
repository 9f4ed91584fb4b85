"""Widths of the channel groups inside a unit, from the width it reads and the width it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE, allocate_channels
from nnstretch.stretch.lowering.section import Section
from nnstretch.stretch.lowering.width_scaling import InnerGroup, output_dimension_of
from nnstretch.structure.channel_slices import ChannelSlice, Dim, total


@dataclass
class UnitWidths:
    """Channel groups of one unit whose widths may change, in a fixed order (`roots`)."""

    section: Section

    def __post_init__(self) -> None:
        section, channels = self.section, self.section.channels
        self.entry = tuple(sorted(channels.roots(section.input_dimension) - channels.pinned.keys()))
        unscaled = dict.fromkeys((*channels.pinned, *self.entry), Fraction(1))
        self.ends = dict(output_dimension_of(section.output_dimension, channels, unscaled).free)
        self.widths = dict.fromkeys(self.entry, section.width_in) | self.ends
        for group in section.inner_groups:
            if group.root not in channels.pinned and group.root not in self.ends:
                self.widths[group.root] = group.width
        self.roots = tuple(self.widths)
        self.junctions = tuple(section.junction_dims(each) for each in channels.junctions)

    @property
    def regular(self) -> bool:
        """Return whether the widths of the unit's groups follow from its entry and end alone."""
        channels = self.section.channels
        if len(self.entry) > 1 or len(channels.junctions) > 1:
            return False
        if len(self.ends) > 1 and self.entry_in_end:
            return False
        return all(self.widths[root] % channels.granularity[root] == 0 for root in self.roots)

    @property
    def entry_in_end(self) -> bool:
        """Return whether the unit's end shares channels with its entry."""
        return bool(self.section.channels.roots(self.section.output_dimension) & set(self.entry))

    def entry_width(self, width_in: Array, width_out: Array) -> Array | None:
        """Return the width the unit reads: `width_in` itself, or what an adapter makes of it.

        `section.readable_width` over arrays; None where it must be asked for each pair.
        """
        section = self.section
        if not self.regular:
            return None
        if not self.entry:
            return np.full(1, section.width_in)
        granularity = section.channels.granularity[self.entry[0]]
        if self.entry_in_end and not self.ends:
            steps, remainder = np.divmod(width_out * granularity, section.width_out)
            return None if remainder.any() else section.width_in // granularity * steps
        is_one_group = granularity == section.width_in
        return width_in if is_one_group and not self.entry_in_end else None

    def group_widths(self, width_in: Array, width_out: Array) -> dict[int, Array] | None:
        """Return the width of every group, by root; None where one does not follow."""
        widths: dict[int, Array] = dict.fromkeys(self.entry, width_in)
        widths |= self.end_widths(width_in, width_out)
        for group in self.section.inner_groups:
            if group.root not in widths and group.root in self.widths:
                widths[group.root] = self.follower_width(group, widths, width_out)
        return widths if widths.keys() == set(self.roots) else None

    def end_widths(self, width_in: Array, width_out: Array) -> dict[int, Array]:
        """Return the widths of the groups at the unit's end, by root."""
        if len(self.ends) != 1:
            return self.allocated_end_widths(width_out)
        channels, section = self.section.channels, self.section
        ((root, size),) = self.ends.items()
        passed = 0
        for part in section.output_dimension:
            if part.group is not None and channels.root[part.group] in self.entry:
                passed += part.size
        pinned = section.width_out - size - passed
        passed_width = width_in * passed // section.width_in if passed else 0
        return {root: width_out - pinned - passed_width}

    def allocated_end_widths(self, width_out: Array) -> dict[int, Array]:
        """Return the widths of several groups that share the channels of the unit's end."""
        if not self.ends:
            return {}
        total = sum(self.ends.values())
        pinned = self.section.width_out - total
        widths, row = np.unique(width_out, return_inverse=True)
        shares = []
        for width in widths.tolist():
            free = Fraction(width - pinned)
            shares.append(allocate_channels(self.ends, self.section.channels, free, free / total))
        columns: dict[int, Array] = {}
        for root, size in self.ends.items():
            column = np.array([int(share[root] * size) for share in shares])
            columns[root] = column[row.reshape(width_out.shape)]
        return columns

    def follower_width(
        self, group: InnerGroup, widths: Mapping[int, Array], width_out: Array
    ) -> Array:
        """Return the width of a group that follows another.

        Its exact share where every part stays whole, else the nearest channel multiple.
        """
        if group.follows in widths:
            num = widths[group.follows]  # type: ignore[index]
            den = self.widths[group.follows]  # type: ignore[index]
        elif group.follows in self.section.channels.pinned:
            num = np.ones(1, dtype=np.int64)
            den = 1
        else:
            num = width_out
            den = self.section.width_out
        granularity = self.section.channels.granularity[group.root]
        scaled = group.width * num
        step = group.width // granularity
        is_wide = scaled >= 2 * CHANNEL_MULTIPLE * den
        unit = np.where(is_wide, lcm(step, CHANNEL_MULTIPLE), step)
        count, remainder = np.divmod(scaled, den * unit)
        is_half = 2 * remainder == den * unit
        count = count + ((2 * remainder > den * unit) | (is_half & (count % 2 == 1)))
        is_whole = (num * granularity) % den == 0
        return np.where(is_whole, scaled // den, np.maximum(count, 1) * unit)

    def shortcut_is_identity(self, columns: Mapping[int, Array]) -> Array | None:
        """Return where additions need no adapter, because both their operands are as wide.

        None where nothing is added to the unit's own input. `columns` are group widths by root.
        """
        if not self.junctions:
            return None
        equal = np.ones(1, dtype=bool)
        for shortcut, main in self.junctions:
            equal = equal & (self.dim_width(shortcut, columns) == self.dim_width(main, columns))
        return equal

    def dim_width(self, dim: Dim, columns: Mapping[int, Array]) -> Array:
        """Return how wide a dimension is where groups have these widths, by root."""
        width = np.full(1, self.fixed_width(dim))
        for part in dim:
            root = self.scaled_root(part)
            if root is not None:
                width = width + part.size * columns[root] // self.widths[root]
        return width

    def fixed_width(self, dim: Dim) -> int:
        """Return the channels of a dimension that never scale."""
        return sum(part.size for part in dim if self.scaled_root(part) is None)

    def scaled_root(self, part: ChannelSlice) -> int | None:
        """Return the root of a slice that scales; None where it never does."""
        root = None if part.group is None else self.section.channels.root[part.group]
        return root if root in self.widths else None

    @property
    def joined_roots(self) -> tuple[int, int] | None:
        """Return the two groups, entry first, that are as wide where the only junction is the
        identity; None where other groups or fixed channels are added.
        """
        if len(self.junctions) != 1:
            return None
        roots = []
        for dim in self.junctions[0]:
            of_dim = {self.scaled_root(part) for part in dim}
            root = of_dim.pop()
            if of_dim or root is None or total(dim) != self.widths[root]:
                return None
            roots.append(root)
        return roots[0], roots[1]
