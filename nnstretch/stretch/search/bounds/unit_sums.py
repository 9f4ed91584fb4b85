"""Costs of branches with one end by sums over their units, less what their MACs earn.

At a price of MACs, a branch drops every repeat that costs more than it earns. So sums over units
say for all starts at once what branches of one width cost at least, without a table of depths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.compiled_bounds import LOOSEST_US
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.original_costs import sums_behind

PRICE_STEP = 1.12
"""Prices of MACs are powers of this, in us."""
POWER_OFFSETS = np.array([-1, 0, 1, 2])
"""Prices that are tried: so many powers above what a MAC of the original costs a processor."""

FARTHEST = 25
"""Powers between the price of a segment and that of all, at most."""


@dataclass(frozen=True)
class PricedBranches:
    """What branches with one end, priced under one key, cost at several prices of their MACs."""

    powers: Array
    """Of `PRICE_STEP`: `[offset, start]`."""
    us: Array
    """Less what MACs earn, without copies: `[offset, start, width]`."""


def priced_branches(option: SegmentOption, b: int, starts: Array) -> PricedBranches:
    """Return what branch b of an option costs, from these cuts to its end."""
    tables, j, merge, key = option.tables, option.j, option.merge, option.price_keys[b]
    share = option.shares[b] if merge == "project" else None
    once = "priced branches", (j, merge, key, share, starts.tobytes())
    return tables.once(once, lambda: price_branches(tables, starts, j, key, share))


def price_branches(
    tables: CostTables, starts: Array, j: int, key: str, share: int | None
) -> PricedBranches:
    """Compute `priced_branches`; `share` is how wide a `project` merge makes the branch."""
    units, tails = tables.passed_units(j), tables.original_tails(j)
    assert units.us is not None  # of other units there are no sums
    assert tails is not None
    us, macs = ends_of_branches(tables, starts, j, key, share)
    whole = us[:, -1] + tails.us[key][starts], macs[:, -1] + tails.macs[starts]
    powers = usual_powers(*whole) + POWER_OFFSETS[:, None]
    grid = np.arange(powers.min(), powers.max() + 1)
    inner_us = units.us[key] - (PRICE_STEP**grid)[:, None, None] * units.macs
    dropped = tables.space.branch_depths.droppable_units(j)[:, None] & (units.differs == 0)
    inner_us = np.where(dropped, np.minimum(inner_us, 0.0), inner_us)
    behind_us = sums_behind(inner_us, axis=1)[powers - grid[0], starts]
    priced_us = us - (PRICE_STEP**powers)[:, :, None] * macs + behind_us
    return PricedBranches(powers, np.minimum(priced_us, LOOSEST_US))


def usual_powers(us: Array, macs: Array) -> Array:
    """Return powers near what MACs of segments cost, not far from what they cost in all."""
    counted = (macs > 0) & (us > 0) & np.isfinite(us)
    usual = us[counted].sum() / macs[counted].sum() if counted.any() else 1.0
    each = np.where(counted, us, usual) / np.where(counted, macs, 1.0)
    apart = np.rint(np.log(each / usual) / math.log(PRICE_STEP)).clip(-FARTHEST, FARTHEST)
    return (apart + round(math.log(usual) / math.log(PRICE_STEP))).astype(int)


def ends_of_branches(
    tables: CostTables, starts: Array, j: int, key: str, share: int | None
) -> tuple[Array, Array]:
    """Return what first units and adapters cost: us and MACs, `[start, width]`.

    They read the original width; us are infinite where no such unit can be built.
    """
    rows: list[tuple[Array, Array]] = []
    for i in starts.tolist():
        if share is not None:
            costs = tables.projected_head_costs(i, j)
            rows.append((costs.latency_us[key], costs.macs))
        else:
            head, space = tables.head_costs(i), tables.space
            row = space.merged_row(i, space.original_width(i))
            columns = np.searchsorted(head.widths_out, space.inner_widths[j][i])
            us, macs = head.costs.latency_us[key], head.costs.macs
            rows.append((us[row, columns], macs[row, columns]))
    us, macs = map(np.array, zip(*rows, strict=True))
    if share is not None:
        adapters = tables.exit_adapters(j, share).plain.costs
        us, macs = us + adapters.latency_us[key], macs + adapters.macs
    return us, macs


def reads_any_width(tables: CostTables, i: int, key: str) -> bool:
    """Return whether all first units behind a cut can be built, at all widths."""
    head = tables.head_costs(i).costs
    once = "all first units", (i, key)
    return tables.once(once, lambda: bool(np.isfinite(head.latency_us[key]).all()))


def added_by_input(tables: CostTables, i: int, key: str, power: int) -> Array:
    """Return what other merged widths than the original add to first units behind a cut, at least.

    In us, less what MACs earn: `[merged width]`. All of these units can be built.
    """
    once = "added by input", (i, key, power)
    return tables.once(once, lambda: compare_inputs(tables, i, key, power))


def compare_inputs(tables: CostTables, i: int, key: str, power: int) -> Array:
    """Compute `added_by_input`."""
    costs, space = tables.head_costs(i).costs, tables.space
    row = space.merged_row(i, space.original_width(i))
    priced_us = costs.latency_us[key] - PRICE_STEP**power * costs.macs
    return np.asarray((priced_us - priced_us[row]).min(axis=1))
