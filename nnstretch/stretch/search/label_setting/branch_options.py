"""What branches of one segment option may be, alone or several together, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, take_rows
from nnstretch.stretch.search.bounds.multipliers import CostToGo, SegmentMultipliers
from nnstretch.stretch.search.options.segment_option import SegmentOption


@dataclass(frozen=True)
class BranchOptions:
    """Options of one branch as parallel arrays, or of several branches together."""

    us: Array
    """Latency; of the slowest branch."""
    reward: Array
    """Work and width at their multipliers, us."""
    channels_out: Array
    macs: Array
    largest_macs: Array
    """MACs of the largest branch."""
    params: Array
    copies_us: Array
    """Copies in and out; of the branch where they take longest."""

    def __len__(self) -> int:
        return len(self.us)

    def take(self, rows: Array) -> BranchOptions:
        """Return the chosen rows."""
        return take_rows(self, rows)

    def pair(self, rows: Array, other: BranchOptions, columns: Array) -> BranchOptions:
        """Return chosen options joined with chosen ones of another branch, one by one."""
        return BranchOptions(
            np.maximum(self.us[rows], other.us[columns]),
            self.reward[rows] + other.reward[columns],
            self.channels_out[rows] + other.channels_out[columns],
            self.macs[rows] + other.macs[columns],
            np.maximum(self.largest_macs[rows], other.largest_macs[columns]),
            self.params[rows] + other.params[columns],
            np.maximum(self.copies_us[rows], other.copies_us[columns]),
        )


def branch_options(
    option: SegmentOption, width: int, relaxation: SegmentMultipliers, values: CostToGo
) -> list[BranchOptions]:
    """Return every option of every branch that reads a width, under one relaxation.

    There are such options.
    """
    totals = option.branch_totals(width)
    assert totals is not None
    multipliers = values.multipliers
    per_mac = multipliers.per_mac + float(relaxation.per_mac[0])
    per_channel = float(relaxation.per_channel[0]) + option.merge_us_per_channel
    options = []
    columns = zip(option.branch_tables, totals, option.copies_us(width), strict=True)
    for table, (us, macs, params), copies_us in columns:
        reward = per_mac * macs - per_channel * table.channels_out
        reward += multipliers.per_param * params
        work = macs, macs, params
        options.append(BranchOptions(us, reward, table.channels_out, *work, copies_us))
    return options
