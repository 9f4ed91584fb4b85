"""Cost tables of all branches of a space: first units, units behind them, adapters, originals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, CostArrays, HeadCosts, TailCosts, add_costs
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.search.search_space import SearchSpace


@dataclass
class CostTables:
    """Cost tables of one space, each computed once."""

    space: SearchSpace

    def __post_init__(self) -> None:
        self._tails: dict[tuple[int, int], TailCosts] = {}
        self._heads: dict[int, HeadCosts] = {}
        self._binned: dict[tuple[int, str, int, bool], CostArrays] = {}
        self._needs_no_adapter: dict[int, Array] = {}
        self._projected: dict[tuple[int, int], CostArrays] = {}
        self._exits: dict[tuple[int, int], CostArrays] = {}
        self._originals: dict[tuple[int, int], tuple[dict[str, float], int]] = {}

    def head_costs(self, i: int) -> HeadCosts:
        """Return the costs of the first unit behind a cut."""
        if i not in self._heads:
            space = self.space
            columns = [space.inner_widths[j][i] for j in range(i + 1, len(space.cuts))]
            widths_out = np.unique(np.concatenate(columns))
            widths_in = space.merged_widths(i)
            costs = space.unit(i).costs(
                widths_in[:, None], widths_out[None, :], space.layouts.behind_plain()
            )
            self._heads[i] = HeadCosts(widths_in, widths_out, costs)
        return self._heads[i]

    def binned_head_costs(self, i: int, price_key: str, starts: Array, adapted: bool) -> CostArrays:
        """Return least latency and most work of first units, `[width bin, output width]`.

        `adapted` tells apart where an adapter is needed: no unit has the latency of one kind and
        the work of the other.
        """
        key = (i, price_key, len(starts), adapted)
        if key not in self._binned:
            head = self.head_costs(i)
            if i not in self._needs_no_adapter:
                self._needs_no_adapter[i] = self.space.unit(i).needs_no_adapter(
                    head.widths_in[:, None], head.widths_out[None, :]
                )
            mask = ~self._needs_no_adapter[i] if adapted else self._needs_no_adapter[i]
            us = np.where(mask, head.costs.latency_us[price_key], np.inf)
            macs = np.where(mask, head.costs.macs, 0.0)
            params = np.where(mask, head.costs.params, 0.0)
            self._binned[key] = CostArrays(
                {price_key: np.minimum.reduceat(us, starts, axis=0)},
                np.maximum.reduceat(macs, starts, axis=0),
                np.maximum.reduceat(params, starts, axis=0),
            )
        return self._binned[key]

    def tail_costs(self, i: int, j: int) -> TailCosts:
        """Return the costs of the units behind the first between two cuts."""
        if (i, j) not in self._tails:
            self._tails[i, j] = self.sum_units(i, j)
        return self._tails[i, j]

    def sum_units(self, i: int, j: int) -> TailCosts:
        """Sum the units behind the first that branches of each depth keep."""
        space = self.space
        inner_widths, widths = space.inner_widths[j], space.widths_at(j)
        kept = space.kept_units(i, j).astype(np.float64)
        units = [self.inner_unit_costs(k, j) for k in range(i + 1, j)]

        def total(columns: Sequence[Array]) -> Array:
            """Sum over kept units, `[depth, width]`."""
            return kept @ np.array(columns) if columns else np.zeros((len(kept), len(widths)))

        price_keys = space.layout_model.processors
        us = {key: total([unit.latency_us[key] for unit in units]) for key in price_keys}
        for number, k in enumerate(range(i + 1, j)):
            is_dropped = kept[:, number] == 0
            cannot_meet = inner_widths[k - 1] != inner_widths[k]  # without the unit between
            for times_us in us.values():
                times_us[np.ix_(is_dropped, cannot_meet)] = np.inf
        macs = total([unit.macs for unit in units])
        params = total([unit.params for unit in units])
        first = np.searchsorted(self.head_costs(i).widths_out, inner_widths[i])
        return TailCosts(np.array(space.depths(i, j)), widths, first, us, macs, params)

    def inner_unit_costs(self, k: int, j: int) -> CostArrays:
        """Return the costs of unit k inside branches that end at cut j, over their widths."""
        low = sum(len(self.space.widths_at(end)) for end in range(k + 1, j))
        rows = slice(low, low + len(self.space.widths_at(j)))
        costs = self._inner_costs[k]
        latency_us = {p: us[rows] for p, us in costs.latency_us.items()}
        return CostArrays(latency_us, costs.macs[rows], costs.params[rows])

    @cached_property
    def _inner_costs(self) -> dict[int, CostArrays]:
        """Return costs of units inside the branches that pass them, by end and width in a row."""
        space = self.space
        costs: dict[int, CostArrays] = {}
        for k in range(1, space.last):
            ends = range(k + 1, len(space.cuts))
            width_in = np.concatenate([space.inner_widths[j][k - 1] for j in ends])
            width_out = np.concatenate([space.inner_widths[j][k] for j in ends])
            costs[k] = space.unit(k).costs(width_in, width_out, space.layouts.inside(k))
        return costs

    def projected_head_costs(self, i: int, j: int) -> CostArrays:
        """Return adapter and first unit of branches of a `project` merge, over their widths.

        Such branches start from the original width.
        """
        if (i, j) not in self._projected:
            space, unit, inner = self.space, self.space.unit(i), self.space.inner_widths[j][i]
            full, end = space.original_width(i), space.original_width(j)
            shares = [round_channels(w / end * full) for w in space.widths_at(j).tolist()]
            entry = np.array(shares, dtype=np.int64)
            readable = unit.groups.entry_width(entry, inner)
            if readable is not None:
                entry = np.broadcast_to(readable, entry.shape)
            work = unit.costs(entry, inner, space.layout_model.behind_adapter(leave=True))
            plain = space.layouts.behind_plain()
            adapter = unit.adapter.costs(np.array(full), entry, plain, always=True)
            self._projected[i, j] = add_costs(adapter, work)
        return self._projected[i, j]

    def exit_adapter(self, j: int, share: int) -> CostArrays:
        """Return what makes a branch's output `share` channels wide, over its widths."""
        if (j, share) not in self._exits:
            widths = self.space.widths_at(j)
            adapter = self.space.unit(j - 1).exit_adapter.costs(
                widths, np.array(share), self.space.layouts.at_exit(j)
            )
            us: dict[str, Array] = {}
            for p, copy_us in self.exit_us(j).items():
                us[p] = adapter.latency_us[p] + np.where(widths == share, copy_us, 0.0)
            self._exits[j, share] = CostArrays(us, adapter.macs, adapter.params)
        return self._exits[j, share]

    def exit_us(self, j: int) -> Mapping[str, Array]:
        """Return the time to output a plain tensor, by processor, over the branch's widths, us."""
        return self.space.layouts.conversion_us(j, self.space.widths_at(j))

    def original(self, i: int, j: int) -> tuple[dict[str, float], int]:
        """Return the original layers between two cuts: us by processor, and MACs."""
        if (i, j) not in self._originals:
            layouts = self.space.layouts
            us, macs = dict.fromkeys(self.space.processors, 0.0), 0
            for k in range(i, j):
                ends = layouts.behind_plain() if k == i else layouts.inside(k)
                unit_us, unit_macs = self.space.unit(k).original(ends)
                macs += unit_macs
                for p in us:
                    us[p] += unit_us[p]
            for p in us:
                us[p] += float(self.exit_us(j)[p][-1])
            self._originals[i, j] = us, macs
        return self._originals[i, j]
