"""Costs at many widths at once: of units, of first units, of the units behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray
Table = TypeVar("Table")


def take_rows(table: Table, rows: Array | slice) -> Table:
    """Return the chosen rows of a dataclass of arrays."""
    record: Any = table
    columns = [getattr(table, name)[rows] for name in record.__match_args__]
    return type(table)(*columns)


@dataclass(frozen=True)
class CostArrays:
    """Costs over one shape of widths."""

    latency_us: Mapping[str, Array]
    """By processor; infinite where no such unit can be built."""
    macs: Array
    params: Array

    @classmethod
    def zeros(cls, processors: Sequence[str], shape: tuple[int, ...]) -> CostArrays:
        """Return costs of nothing."""
        latency_us = {p: np.zeros(shape) for p in processors}
        return cls(latency_us, np.zeros(shape), np.zeros(shape))

    def broadcast_copy(self, shape: tuple[int, ...]) -> CostArrays:
        """Return a writable copy in a larger shape."""
        latency_us = {p: np.broadcast_to(us, shape).copy() for p, us in self.latency_us.items()}
        macs = np.broadcast_to(self.macs, shape).copy()
        return CostArrays(latency_us, macs, np.broadcast_to(self.params, shape).copy())

    def assign(self, rows: Array, part: CostArrays) -> None:
        """Overwrite rows: numbers, or a mask, over the flat arrays."""
        for processor, us in self.latency_us.items():
            us.reshape(-1)[rows] = part.latency_us[processor]
        self.macs.reshape(-1)[rows] = part.macs
        self.params.reshape(-1)[rows] = part.params


def add_costs(first: CostArrays, second: CostArrays) -> CostArrays:
    """Return the sum of two costs."""
    us = {p: first.latency_us[p] + second.latency_us[p] for p in first.latency_us}
    return CostArrays(us, first.macs + second.macs, first.params + second.params)


def select_costs(where: Array, first: CostArrays, second: CostArrays) -> CostArrays:
    """Return costs of equal work: the first latency where the mask holds, else the second."""
    us = {p: np.where(where, first.latency_us[p], second.latency_us[p]) for p in first.latency_us}
    return CostArrays(us, first.macs, first.params)


@dataclass(frozen=True)
class TailCosts:
    """Costs of the units behind a segment's first, over (depth, width of the branch).

    Latencies have an axis before these: one row, or where layouts of maps decide, one behind first
    units with an adapter and one behind those without.
    """

    depths: Array
    widths: Array
    first: Array
    """Column of each width's first unit in `HeadCosts`; `[depth, width]` where depths decide."""
    projected_first: Array
    """The same among the first units of branches of a `project` merge."""
    us: Mapping[str, Array]
    exit_us: Mapping[str, Array]
    """Cost of the copy of the branch's output to the plain layout, by processor; 0 if plain."""
    macs: Array
    params: Array


@dataclass(frozen=True)
class HeadCosts:
    """Costs of the first unit of every segment that starts at one cut, over (input, output)."""

    widths_in: Array
    widths_out: Array
    costs: CostArrays

    def row(self, width_in: int) -> int:
        """Return the row of an input width."""
        return int(np.searchsorted(self.widths_in, width_in))


@dataclass(frozen=True)
class BranchTable:
    """What one branch may be, flat over (depth, width), apart from what its input decides."""

    us: Array
    """Compute behind the first unit, contention included, and the copy out: the least of both."""
    adapted_us: Array
    """The same behind a first unit with an adapter."""
    plain_us: Array
    """Behind one that needs none."""
    copy_out_us: Array
    macs: Array
    params: Array
    channels_out: Array
    first: Array
    """Column of its first unit in the entry costs."""

    def subsample(self, most: int) -> BranchTable:
        """Return about `most` of the options, evenly spread, or all if they are fewer."""
        step = max(1, len(self.us) // most)
        return self if step == 1 else take_rows(self, slice(None, None, step))
