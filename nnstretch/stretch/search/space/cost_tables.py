"""Cost tables of all branches of a space: first units, units behind them, adapters, originals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, CostArrays, HeadCosts, TailCosts
from nnstretch.stretch.cost.layout_states import (
    CostsByEntry,
    LaidOutCosts,
    price_behind,
    price_both,
    price_entered,
    select_exit,
)
from nnstretch.stretch.cost.unit_costs import UnitCostModel
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.search.space.original_costs import (
    OriginalTails,
    PassedUnits,
    original_tails,
    originals_from,
)
from nnstretch.stretch.search.space.rejoined_branches import (
    RejoinedBranches,
    may_rejoin,
    rejoined_branches,
)
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.stretch.search.space.tail_sums import sum_units
from nnstretch.stretch.search.space.team import Team

Result = TypeVar("Result")


@dataclass
class CostTables:
    """Cost tables of one space, each computed once."""

    space: SearchSpace

    def __post_init__(self) -> None:
        self._heads: dict[int, HeadCosts] = {}
        self._laid_out_heads: dict[int, LaidOutCosts] = {}
        self._alike: dict[object, LaidOutCosts] = {}
        self._projected: dict[tuple[int, int], LaidOutCosts] = {}
        self._exits: dict[tuple[int, int], CostsByEntry] = {}
        self._last_exits: dict[tuple[int, int, int], CostArrays] = {}
        self._computed: dict[object, Any] = {}
        self._repeated: dict[tuple[str, bytes], Array] = {}

    def once(self, key: tuple[str, object], compute: Callable[[], Result]) -> Result:
        """Return what is computed once for all segment options of a key."""
        if key not in self._computed:
            self._computed[key] = compute()
        result: Result = self._computed[key]
        return result

    def team(self, processors: tuple[str, ...]) -> Team:
        """Return what a team of processors pays in any segment."""
        soc = self.space.cost_model.soc
        return self.once(("team", processors), lambda: Team.on(soc, processors))

    def head_costs(self, i: int) -> HeadCosts:
        """Return the costs of the first unit behind a cut."""
        if i not in self._heads:
            space = self.space
            columns = [space.inner_widths[j][i] for j in range(i + 1, len(space.cuts))]
            rejoined = (self.rejoined_branches(i, j) for j in range(i + 2, len(space.cuts)))
            columns += [branches.first_widths for branches in rejoined if branches is not None]
            widths_out = np.unique(np.concatenate(columns))
            widths_in = space.merged_widths(i)
            unit = space.unit(i)
            self._laid_out_heads[i] = self.priced_once(
                unit,
                (widths_in[:, None], widths_out),
                lambda: price_entered(
                    space.layout_model,
                    lambda ends: unit.costs(widths_in[:, None], widths_out[None, :], ends),
                    blocked=False,
                ),
            )
            self._heads[i] = HeadCosts(widths_in, widths_out, self._laid_out_heads[i].costs)
        return self._heads[i]

    def priced_once(
        self, unit: UnitCostModel, widths: Sequence[Array], price: Callable[[], LaidOutCosts]
    ) -> LaidOutCosts:
        """Return the costs of a unit at these widths; units of equal structure share them."""
        key = id(unit), *((column.shape, column.tobytes()) for column in widths)
        if key not in self._alike:
            self._alike[key] = price()
        return self._alike[key]

    def needs_no_adapter(self, i: int) -> Array:
        """Return where first units behind a cut need no adapter: `[input width, output width]`."""
        head = self.head_costs(i)
        widths = head.widths_in[:, None], head.widths_out[None, :]
        return self.once(("adapters", i), lambda: self.space.unit(i).needs_no_adapter(*widths))

    def tail_costs(self, i: int, j: int, merge: str = "concat") -> TailCosts:
        """Return the costs of the units behind the first between two cuts.

        They depend on the merge where layouts of maps do: `project` begins with an adapter.
        """
        key = (i, j, merge if self.space.layout_model.blocked else "concat")
        return self.once(("tail", key), lambda: sum_units(self, *key))

    def rejoined_branches(self, i: int, j: int) -> RejoinedBranches | None:
        """Return branches between two cuts whose widths change with their depth; None without."""
        if not self.once(("rejoins", j), lambda: may_rejoin(self.space, j)):
            return None
        return self.once(("rejoined", (i, j)), lambda: rejoined_branches(self.space, i, j))

    def passed_units(self, j: int) -> PassedUnits:
        """Return the units that branches which end at cut j may pass behind their first."""
        return self.once(("passed units", j), lambda: self.stack_units(j))

    def stack_units(self, j: int) -> PassedUnits:
        """Stack the costs of the units before cut j but the first."""
        units = [self.inner_unit_costs(k, j) for k in range(1, j)]
        inner_widths = np.array(self.space.inner_widths[j])
        shape = len(units), inner_widths.shape[1]
        costs = [unit.plain.costs for unit in units]
        us: dict[str, Array] | None = None
        if not self.space.layout_model.blocked:
            keys = self.space.layout_model.processors
            us = {p: np.reshape([unit.latency_us[p] for unit in costs], shape) for p in keys}
            if not all(np.isfinite(table).all() for table in us.values()):
                us = None
        return PassedUnits(
            us,
            np.reshape([unit.macs for unit in costs], shape),
            np.reshape([unit.params for unit in costs], shape),
            np.not_equal(inner_widths[:-1], inner_widths[1:]).astype(np.float64),
        )

    def original_tails(self, j: int) -> OriginalTails | None:
        """Return `original_tails` of segments that end at cut j."""
        return self.once(("original tails", j), lambda: original_tails(self.passed_units(j)))

    def first_units(self, i: int, j: int, merge: str, columns: Array) -> tuple[LaidOutCosts, Array]:
        """Return the first units of branches from cut i to cut j, and which need no adapter.

        Both are `[input, *columns]`, which are numbers of first units.
        """
        if merge == "project":
            first = self.projected_first_units(i, j).rows(columns).rows(np.newaxis)
            return first, np.zeros(first.costs.macs.shape, dtype=bool)
        first = self._laid_out_heads[i].rows((slice(None), columns))
        return first, self.needs_no_adapter(i)[:, columns]

    def inner_unit_costs(self, k: int, j: int) -> CostsByEntry:
        """Return the costs of unit k inside branches that end at cut j, over their widths."""
        low = sum(len(self.space.widths_at(end)) for end in range(k + 1, j))
        return self._inner_costs[k].rows(slice(low, low + len(self.space.widths_at(j))))

    @cached_property
    def _inner_costs(self) -> dict[int, CostsByEntry]:
        """Return costs of units inside the branches that pass them, by end and width in a row."""
        space = self.space
        costs: dict[int, CostsByEntry] = {}
        before: UnitCostModel | None = None
        widths_before = np.zeros((2, 0), dtype=np.int64)
        for k in range(1, space.last):
            ends = range(k + 1, len(space.cuts))
            width_in = np.concatenate([space.inner_widths[j][k - 1] for j in ends])
            width_out = np.concatenate([space.inner_widths[j][k] for j in ends])
            widths, unit = np.stack([width_in, width_out]), space.unit(k)
            first = len(space.widths_at(k))  # of branches that end before the unit
            if unit is before and np.array_equal(widths_before[:, first:], widths):
                costs[k] = costs[k - 1].rows(slice(first, None))
            else:
                price = partial(unit.costs, width_in, width_out)
                costs[k] = price_both(space.layout_model, price)
            before, widths_before = unit, widths
        return costs

    def projected_head_costs(self, i: int, j: int) -> CostArrays:
        """Return adapter and first unit of branches of a `project` merge, over their widths.

        Such branches start from the original width.
        """
        return self.projected_first_units(i, j).costs

    def projected_first_units(self, i: int, j: int) -> LaidOutCosts:
        """Return `projected_head_costs` with the layout that they leave.

        Behind those of the widths, one for each of `rejoined_branches`.
        """
        if (i, j) not in self._projected:
            unit, inner = self.space.unit(i), self.space.inner_widths[j][i]
            entry, branches = self.projected_widths(i, j), self.rejoined_branches(i, j)
            if branches is not None:
                entry = np.append(entry, entry[1:][branches.columns])
                inner = np.append(inner, branches.first_widths)
            self._projected[i, j] = self.priced_once(
                unit, (entry, inner), lambda: self.price_projected(i, entry, inner)
            )
        return self._projected[i, j]

    def projected_widths(self, i: int, j: int) -> Array:
        """Return how wide branches of a `project` merge enter, by their widths at the end.

        The original width first, which their adapters read.
        """
        full = self.space.original_width(i)
        return self.once(("projected widths", (full, j)), lambda: self.scale_widths(full, j))

    def scale_widths(self, full: int, j: int) -> Array:
        """Return an original width, and shares of it like the widths at cut j."""
        end, widths = self.space.original_width(j), self.space.widths_at(j).tolist()
        shares = [round_channels(width / end * full) for width in widths]
        return np.array([full, *shares], dtype=np.int64)

    def price_projected(self, i: int, widths: Array, inner: Array) -> LaidOutCosts:
        """Price adapters and first units behind cut i: from `projected_widths` to inner widths."""
        space, unit = self.space, self.space.unit(i)
        full, entry = np.array(widths[0]), widths[1:]
        if unit.can_follow_adapter:
            fused = partial(unit.costs_behind_adapter, full, inner)
            return price_entered(space.layout_model, lambda ends: fused(ends=ends), False)
        readable = unit.groups.entry_width(entry, inner)
        if readable is not None:
            entry = np.broadcast_to(readable, entry.shape)
        work = price_both(space.layout_model, partial(unit.costs, entry, inner))
        adapters = partial(unit.adapter.costs, full, entry, always=True)
        adapter = price_entered(space.layout_model, lambda ends: adapters(ends=ends), False)
        return price_behind(adapter, work)

    def adapted_tail(self, i: int, j: int, share: int) -> CostArrays:
        """Return adapters that make branches `share` channels wide, over kinds, depths and widths.

        Their latency, and the work of the units before them, too. Known for the last segment asked
        for, whose options share it.
        """
        known = self._last_exits
        if (i, j, share) not in known:
            if known and next(iter(known))[:2] != (i, j):
                known.clear()
            known[i, j, share] = self.price_exit(i, j, share)
        return known[i, j, share]

    def price_exit(self, i: int, j: int, share: int) -> CostArrays:
        """Price the adapters at the end of branches from cut i to cut j."""
        tail = self.tail_costs(i, j, "project")
        adapter = self.exit_adapters(j, share)
        plain, is_wide = adapter.plain.costs, tail.widths == share
        us: dict[str, Array] = {}
        for p, copy_us in tail.exit_us.items():
            converted = select_exit(copy_us, adapter, p)
            us[p] = converted + np.where(is_wide, copy_us, 0.0)
        return CostArrays(us, tail.macs + plain.macs, tail.params + plain.params)

    def repeat_row(self, row: Array, times: int) -> Array:
        """Return a row over widths once for every depth, flat; equal rows share their memory."""
        key = row.dtype.str, row.tobytes()
        known = self._repeated.get(key)
        if known is None or len(known) < times * len(row):
            known = self._repeated[key] = np.tile(row, 2 * times)
            known.flags.writeable = False
        return known[: times * len(row)]

    def exit_adapters(self, j: int, share: int) -> CostsByEntry:
        """Return the adapters of branches that end at cut j, behind both layouts."""
        if (j, share) not in self._exits:
            adapter = self.space.unit(j - 1).exit_adapter
            prices = [
                LaidOutCosts(
                    adapter.costs(
                        self.space.widths_at(j),
                        np.array(share),
                        self.space.layout_model.entered(blocked, leave=False),
                    ),
                    {},
                )
                for blocked in (False, True)
            ]
            self._exits[j, share] = CostsByEntry(*prices)
        return self._exits[j, share]

    def original(self, i: int, j: int) -> tuple[dict[str, float], int]:
        """Return the original layers between two cuts: us by processor, and MACs."""
        originals = self.once(("originals", i), lambda: originals_from(self.space, i))
        return originals[j - i - 1]
