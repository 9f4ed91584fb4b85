"""The layout of the tensor between two units of a branch, as a state of its costs.

The cost of a unit and the layout of its output depend only on the layout of its input. So each unit
is priced for both layouts, and a branch is walked with the layout as a state: the costs of its
units in a row add up to the cost of the whole branch. Runtimes that know one layout have one state
and no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, CostArrays, add_costs
from nnstretch.stretch.cost.layout_costs import BoundaryLayouts, LayoutModel

Rows = slice | Array | tuple[slice, Array] | None
"""Chosen widths of a table; None adds an axis before them."""
Price = Callable[[BoundaryLayouts], CostArrays]
"""Prices a unit at its widths, from the layouts at its ends."""


@dataclass(frozen=True)
class LaidOutCosts:
    """Costs of what leaves its output in the layout it has, and of a copy that makes it plain."""

    costs: CostArrays
    exit_us: Mapping[str, Array]
    """By processor; zero where the output is plain as it is."""

    def rows(self, rows: Rows) -> LaidOutCosts:
        """Return the chosen widths."""
        latency_us = {p: us[rows] for p, us in self.costs.latency_us.items()}
        costs = CostArrays(latency_us, self.costs.macs[rows], self.costs.params[rows])
        return LaidOutCosts(costs, {p: us[rows] for p, us in self.exit_us.items()})


@dataclass(frozen=True)
class CostsByEntry:
    """Costs of a unit that reads a plain tensor, and of the same that reads blocks."""

    plain: LaidOutCosts
    blocked: LaidOutCosts

    def rows(self, rows: Rows) -> CostsByEntry:
        """Return the chosen widths."""
        return CostsByEntry(self.plain.rows(rows), self.blocked.rows(rows))


def price_entered(model: LayoutModel, price: Price, blocked: bool) -> LaidOutCosts:
    """Price what reads a tensor in one layout."""
    costs = price(model.entered(blocked, leave=True))
    shape = costs.macs.shape
    if not model.blocked:
        return LaidOutCosts(costs, {p: np.zeros(shape) for p in costs.latency_us})
    plain = price(model.entered(blocked, leave=False))
    exit_us: dict[str, Array] = {}
    for p, us in costs.latency_us.items():
        exists = np.isfinite(us) & np.isfinite(plain.latency_us[p])
        exit_us[p] = np.subtract(plain.latency_us[p], us, where=exists, out=np.zeros(us.shape))
    return LaidOutCosts(costs, exit_us)


def price_both(model: LayoutModel, price: Price) -> CostsByEntry:
    """Price what reads a tensor in either layout; once where there is one."""
    plain = price_entered(model, price, False)
    return CostsByEntry(plain, price_entered(model, price, True) if model.blocked else plain)


def price_behind(adapter: LaidOutCosts, unit: CostsByEntry) -> LaidOutCosts:
    """Return the costs of an adapter and a unit that reads what the adapter writes."""
    us: dict[str, Array] = {}
    exit_us: dict[str, Array] = {}
    for p, copy_us in adapter.exit_us.items():
        reads_blocks = copy_us > 0
        plain, blocked = (side.costs.latency_us[p] for side in (unit.plain, unit.blocked))
        us[p] = np.where(reads_blocks, blocked, plain)
        exit_us[p] = np.where(reads_blocks, unit.blocked.exit_us[p], unit.plain.exit_us[p])
    work = CostArrays(us, unit.plain.costs.macs, unit.plain.costs.params)
    return LaidOutCosts(add_costs(adapter.costs, work), exit_us)


@dataclass(frozen=True)
class WalkedUnits:
    """Latency of the units behind a branch's first on one processor, `[..., depth, width]`."""

    us: Array
    exit_us: Array
    """Cost of the copy of the last output to the plain layout, zero where it is plain."""


def walk_units(
    units: Sequence[CostsByEntry], kept: Array, processor: str, first_exit_us: Array
) -> WalkedUnits:
    """Walk the units that branches of each depth keep, from the layout that the first one leaves.

    `kept` is `[depth, unit]`, `first_exit_us` what a copy of the first unit's output takes.
    """
    shape = (len(kept), first_exit_us.shape[-1])
    us = np.zeros(shape)
    exit_us = np.broadcast_to(first_exit_us, shape)
    for number, unit in enumerate(units):
        is_kept = kept[:, number, None]
        reads_blocks = exit_us > 0
        plain, blocked = unit.plain, unit.blocked
        costs = (plain.costs.latency_us[processor], blocked.costs.latency_us[processor])
        us = us + np.where(is_kept, np.where(reads_blocks, costs[1], costs[0]), 0.0)
        left_us = np.where(reads_blocks, blocked.exit_us[processor], plain.exit_us[processor])
        exit_us = np.where(is_kept, left_us, exit_us)
    return WalkedUnits(us, exit_us)


def walk_kinds(
    units: Sequence[CostsByEntry],
    kept: Array,
    processor: str,
    first: LaidOutCosts,
    is_plain: Array,
) -> WalkedUnits:
    """Walk units behind first ones, priced over `[input, width]`, by their kind of entry.

    Returns `[kind, depth, width]`: behind first units with an adapter, and where `is_plain`, behind
    those that need none; what a unit leaves follows from that. Infinite where no such unit exists.
    """
    exists = np.isfinite(first.costs.latency_us[processor])
    copies_us = first.exit_us[processor]
    kinds = [exists & ~is_plain, exists & is_plain]
    walks = [least_walk(units, kept, processor, copies_us, kind) for kind in kinds]
    return WalkedUnits(
        np.stack([walk.us for walk in walks]), np.stack([walk.exit_us for walk in walks])
    )


def least_walk(
    units: Sequence[CostsByEntry], kept: Array, processor: str, copies_us: Array, exists: Array
) -> WalkedUnits:
    """Walk units behind the first ones that exist, of which a copy takes `copies_us`.

    Exact for every width at which these leave one layout whatever they read; where they do not, the
    least of both, which no branch beats.
    """
    highest_us = np.where(exists, copies_us, 0.0).max(axis=0)
    lowest_us = np.where(exists, copies_us, highest_us).min(axis=0)
    walk = walk_units(units, kept, processor, highest_us)
    if not np.array_equal(lowest_us, highest_us):
        behind_lowest = walk_units(units, kept, processor, lowest_us)
        walk = WalkedUnits(
            np.minimum(walk.us, behind_lowest.us), np.minimum(walk.exit_us, behind_lowest.exit_us)
        )
    return WalkedUnits(np.where(exists.any(axis=0), walk.us, np.inf), walk.exit_us)


def select_exit(exit_us: Array, adapter: CostsByEntry, processor: str) -> Array:
    """Return the latency of what ends a branch behind units that leave blocks or do not."""
    blocked = adapter.blocked.costs.latency_us[processor]
    return np.where(exit_us > 0, blocked, adapter.plain.costs.latency_us[processor])
