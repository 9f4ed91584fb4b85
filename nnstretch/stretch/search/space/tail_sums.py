"""Costs of the units behind the first of branches between two cuts, summed for every branch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, HeadCosts, TailCosts
from nnstretch.stretch.cost.layout_states import (
    CostsByEntry,
    LaidOutCosts,
    price_both,
    walk_kinds,
)
from nnstretch.stretch.search.space.original_costs import PassedUnits
from nnstretch.stretch.search.space.rejoined_branches import RejoinedBranches
from nnstretch.stretch.search.space.search_space import SearchSpace

Result = TypeVar("Result")


class UnitTables(Protocol):
    """Costs of single units of a space, as `CostTables` has them."""

    space: SearchSpace

    def once(self, key: tuple[str, object], compute: Callable[[], Result]) -> Result:
        """Return what is computed once for all segment options of a key."""
        ...

    def head_costs(self, i: int) -> HeadCosts:
        """Return the costs of the first unit behind a cut."""
        ...

    def passed_units(self, j: int) -> PassedUnits:
        """Return the units that branches which end at cut j may pass behind their first."""
        ...

    def inner_unit_costs(self, k: int, j: int) -> CostsByEntry:
        """Return the costs of unit k inside branches that end at cut j, over their widths."""
        ...

    def rejoined_branches(self, i: int, j: int) -> RejoinedBranches | None:
        """Return branches between two cuts whose widths change with their depth; None without."""
        ...

    def first_units(self, i: int, j: int, merge: str, columns: Array) -> tuple[LaidOutCosts, Array]:
        """Return the first units of branches between two cuts, and which need no adapter."""
        ...


def sum_units(tables: UnitTables, i: int, j: int, merge: str) -> TailCosts:
    """Sum the units behind the first that branches of each depth keep."""
    space, rows = tables.space, slice(i, None)
    inner_widths, widths = space.inner_widths[j], space.widths_at(j)
    kept = space.branch_depths.kept_units(i, j)
    units = tables.passed_units(j)
    first = np.searchsorted(tables.head_costs(i).widths_out, inner_widths[i])
    projected_first = np.arange(len(widths))
    numbers = kept.astype(np.float64)
    if units.us is None:
        inner = [tables.inner_unit_costs(k, j) for k in range(i + 1, j)]
        entry = first if merge == "concat" else projected_first
        us, exit_us = walk_branches(tables, (i, j, merge), entry, inner, kept)
    else:
        us = {key: (numbers @ table[rows])[None] for key, table in units.us.items()}
        exit_us = dict.fromkeys(us, np.broadcast_to(0.0, (1, len(kept), len(widths))))
    cannot_meet = (1 - numbers) @ units.differs[rows] > 0  # without a unit between
    for times_us in us.values():
        times_us[:, cannot_meet] = np.inf
    macs, params = numbers @ units.macs[rows], numbers @ units.params[rows]
    depths = np.array(space.depths(i, j))
    columns = first, projected_first
    tail = TailCosts(depths, widths, *columns, us, exit_us, macs, params)
    branches = tables.rejoined_branches(i, j)
    return tail if branches is None else price_rejoined(tables, (i, j, merge), tail, branches)


def walk_branches(
    tables: UnitTables,
    segment: tuple[int, int, str],
    entry: Array,
    inner: list[CostsByEntry],
    kept: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Walk the units behind first ones (`entry`, by number): us and copies, by price key."""
    first, is_plain = tables.first_units(*segment, entry)
    model = tables.space.layout_model
    walks = {key: walk_kinds(inner, kept, key, first, is_plain) for key in model.processors}
    us = {key: walk.us for key, walk in walks.items()}
    exit_us = {key: walk.exit_us for key, walk in walks.items()}
    if not model.blocked:  # what the first unit needs changes nothing behind it
        us = {key: times_us.min(axis=0, keepdims=True) for key, times_us in us.items()}
        exit_us = {key: copies_us[:1] for key, copies_us in exit_us.items()}
    return us, exit_us


def price_rejoined(
    tables: UnitTables,
    segment: tuple[int, int, str],
    tail: TailCosts,
    branches: RejoinedBranches,
) -> TailCosts:
    """Return costs behind first units, with branches of other widths at their own."""
    i, j, merge = segment
    shape, cells = tail.macs.shape, (branches.depths, branches.columns)
    first, projected_first = (
        np.broadcast_to(row, shape).copy() for row in (tail.first, tail.projected_first)
    )
    first[cells] = np.searchsorted(tables.head_costs(i).widths_out, branches.first_widths)
    projected_first[cells] = len(tail.widths) + np.arange(len(branches.columns))
    entry = (first if merge == "concat" else projected_first)[cells]
    inner = [rejoined_unit(tables, i, k, branches) for k in range(i + 1, j)]
    walked = walk_branches(tables, segment, entry[:, None], inner, branches.kept)
    us = {key: times_us.copy() for key, times_us in tail.us.items()}
    exit_us = {key: copies_us.copy() for key, copies_us in tail.exit_us.items()}
    for key, times_us in us.items():
        times_us[:, branches.depths, branches.columns] = walked[0][key][..., 0]
        exit_us[key][:, branches.depths, branches.columns] = walked[1][key][..., 0]
    macs, params = tail.macs.copy(), tail.params.copy()
    macs[cells] = params[cells] = 0
    for k, unit in enumerate(inner):
        macs[cells] += branches.kept[:, k] * unit.plain.costs.macs[:, 0]
        params[cells] += branches.kept[:, k] * unit.plain.costs.params[:, 0]
    columns = first, projected_first
    return TailCosts(tail.depths, tail.widths, *columns, us, exit_us, macs, params)


def rejoined_unit(tables: UnitTables, i: int, k: int, branches: RejoinedBranches) -> CostsByEntry:
    """Return the costs of unit k at the widths of branches from cut i: `[branch, 1]`."""
    space, unit = tables.space, tables.space.unit(k)
    kept = branches.kept[:, k - i - 1]
    width_in = np.where(kept, branches.widths[k - i - 1], space.original_width(k))[:, None]
    width_out = np.where(kept, branches.widths[k - i], space.original_width(k + 1))[:, None]
    key = "rejoined unit", (id(unit), width_in.tobytes(), width_out.tobytes())
    price = partial(unit.costs, width_in, width_out)
    return tables.once(key, lambda: price_both(space.layout_model, price))
