"""A segment option, an arc of the search graph: a segment, its processors and its merge.

The rules of constraints.py are applied here to arrays over all branch combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nnstretch.plan import Branch
from nnstretch.stretch.cost.cost_arrays import Array, BranchTable, HeadCosts, TailCosts
from nnstretch.stretch.lowering.lower import equal_slices
from nnstretch.stretch.search.constraints import SegmentBounds
from nnstretch.stretch.search.options.option_costs import (
    BranchCombinations,
    OptionCosts,
)
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import WHOLE_NETWORK

SAMPLE = 100
"""Options of a branch that choose between relaxations; the bound itself looks at all."""


class SegmentOption:
    """A segment from cut i to cut j on one processor, or on several whose branches merge."""

    def __init__(
        self, tables: CostTables, i: int, j: int, processors: tuple[str, ...], merge: str = "concat"
    ) -> None:
        self.tables = tables
        self.space = tables.space
        self.i = i
        self.j = j
        self.processors = processors
        self.merge = merge
        team = tables.team(processors)
        self.price_keys = team.price_keys
        self.slowdown = team.slowdown
        self.sync_us = team.sync_us
        self.copies_in = team.copies_in
        self.copies_out = team.copies_out
        self.bytes_in = self.space.channel_bytes[i]
        self.bytes_out = self.space.channel_bytes[j]
        self.merge_us = 0.0
        self.merge_us_per_channel = 0.0
        if self.branched:
            link = self.space.cost_model.soc.merge
            self.merge_us = link.fixed_us
            self.merge_us_per_channel = link.us_per_kib * self.bytes_out / 1024

    @property
    def branched(self) -> bool:
        """Return whether the segment has more than one branch."""
        return len(self.processors) > 1

    @property
    def meetings(self) -> int:
        """Return how many meeting points of branches the segment adds to a plan."""
        return int(self.branched)

    @property
    def key(self) -> tuple[int, int, tuple[str, ...], str]:
        """Return what the option is, in any space of its network on its chip."""
        return self.i, self.j, self.processors, self.merge

    @property
    def is_last(self) -> bool:
        """Return whether the segment ends at the network's output."""
        return self.j == self.space.last

    @property
    def name(self) -> str:
        """Return the segment's name for messages."""
        cuts = self.space.cuts
        return f"{cuts[self.i].name} -> {cuts[self.j].name} on {'+'.join(self.processors)}"

    @cached_property
    def tail(self) -> TailCosts:
        """Return the costs of the units behind the first."""
        return self.tables.tail_costs(self.i, self.j, self.merge)

    @property
    def head(self) -> HeadCosts:
        """Return the costs of the first unit."""
        return self.tables.head_costs(self.i)

    @cached_property
    def original(self) -> tuple[float, int]:
        """Return the original segment's latency on the fastest processor, us, and its MACs."""
        us, macs = self.tables.original(self.i, self.j)
        return min(us.values()), macs

    @cached_property
    def bounds(self) -> SegmentBounds:
        """Return the limits of the segment's branches."""
        return self.space.limits.bounds(*self.original, self.space.macs)

    @cached_property
    def shares(self) -> list[int]:
        """Return the output channels of each branch of a `project` merge."""
        return equal_slices(self.space.original_width(self.j), len(self.processors))

    @cached_property
    def branch_tables(self) -> list[BranchTable]:
        """Return a table for every branch."""
        return [self.shared_table(b) for b in range(len(self.processors))]

    def branch_samples(self) -> list[BranchTable]:
        """Return a few rows of every branch's table."""
        return [table.subsample(SAMPLE) for table in self.branch_tables]

    @cached_property
    def macs_per_us(self) -> float:
        """Return how fast all processors together compute the original segment.

        1 where it does no work or takes no time: any price of its work bounds as well.
        """
        us, macs = self.tables.original(self.i, self.j)
        rates = [macs / (us[p] * self.slowdown) for p in self.processors if us[p] > 0]
        return float(sum(rates)) or 1.0

    def table_key(self, b: int) -> tuple[Any, ...]:
        """Return what options have in common that share the table of branch b."""
        share = self.shares[b] if self.merge == "project" else None
        price = self.price_keys[b], self.slowdown, self.copies_out[b]
        return self.i, self.j, self.branched, share, *price

    def shared_table(self, b: int) -> BranchTable:
        """Return the table of branch b, one for all options that have such a branch."""
        return self.tables.once(("branch table", self.table_key(b)), lambda: self.branch_table(b))

    def branch_table(self, b: int) -> BranchTable:
        """Compute the table of branch b."""
        tail, price_key = self.tail, self.price_keys[b]
        chosen = slice(None) if self.branched else slice(-1, None)  # alone, the original layers
        us = tail.us[price_key][:, chosen, chosen]
        channels_out = tail.widths[chosen]
        if self.merge == "concat":
            us = us + tail.exit_us[price_key][:, chosen, chosen]
            macs, params = tail.macs[chosen, chosen], tail.params[chosen, chosen]
            first = tail.first[..., chosen]
        else:
            adapted = self.tables.adapted_tail(self.i, self.j, self.shares[b])
            us = us + adapted.latency_us[price_key]
            macs, params = adapted.macs, adapted.params
            channels_out = np.full_like(channels_out, self.shares[b])
            first = tail.projected_first[..., chosen]
        link = self.copies_out[b]
        copy_us = link.fixed_us + link.us_per_kib * self.bytes_out * channels_out / 1024
        of_widths = (copy_us, channels_out) if first.ndim == 2 else (copy_us, channels_out, first)
        rows = [self.tables.repeat_row(row, len(macs)) for row in of_widths]
        if first.ndim == 2:
            rows.append(first[chosen].ravel())
        kinds_us = [kind.ravel() for kind in self.slowdown * us + copy_us]
        least_us = kinds_us[0] if len(kinds_us) == 1 else np.minimum(*kinds_us)
        behind_us = least_us, kinds_us[0], kinds_us[-1]
        return BranchTable(*behind_us, rows[0], macs.ravel(), params.ravel(), rows[1], rows[2])

    def needs_no_adapter(self, width_in: int) -> Array | None:
        """Return which first units need no adapter; None where that changes nothing behind them."""
        if self.merge == "project" or not self.space.layout_model.blocked:
            return None
        return self.tables.needs_no_adapter(self.i)[self.head.row(width_in)]

    def times_behind(self, table: BranchTable, width_in: int) -> Array:
        """Return what a branch that reads one width takes behind its first unit, us."""
        is_plain = self.needs_no_adapter(width_in)
        if is_plain is None:
            return table.adapted_us
        return np.where(is_plain[table.first], table.plain_us, table.adapted_us)

    def entry_costs(self, width_in: int) -> list[OptionCosts] | None:
        """Return costs of each branch's first unit on a width; None where it cannot start there."""
        key = "entry costs", (self.entry_key, width_in)
        return self.tables.once(key, lambda: self.compute_entry_costs(width_in))

    @property
    def entry_key(self) -> object:
        """Return what segments have in common whose branches start alike.

        With a `project` merge, their ends do not matter where the widths behind the first units
        are the same, nor do their starts where these units are.
        """
        if self.merge == "concat":
            return self.i, self.processors
        first = self.tables.projected_first_units(self.i, self.j)
        return id(first), self.processors, self.bytes_in, self.space.original_width(self.i)

    def compute_entry_costs(self, width_in: int) -> list[OptionCosts] | None:
        """Compute `entry_costs`."""
        if self.merge == "project":
            if width_in != self.space.original_width(self.i):
                return None
            costs = self.tables.projected_head_costs(self.i, self.j)
            times_us = costs.latency_us
            macs = costs.macs
            params = costs.params
        else:
            row, costs = self.head.row(width_in), self.head.costs
            times_us = {key: costs.latency_us[key][row] for key in self.price_keys}
            macs = costs.macs[row]
            params = costs.params[row]
        entries = []
        for price_key, link in zip(self.price_keys, self.copies_in, strict=True):
            copy_us = link.cost_us(self.bytes_in * width_in)
            us = self.slowdown * times_us[price_key] + copy_us
            entries.append(OptionCosts(us, macs, params))
        return entries

    def branch_costs(self, width_in: int) -> list[OptionCosts] | None:
        """Return the costs of each branch; None where none can start from this width."""
        entries = self.entry_costs(width_in)
        if entries is None:
            return None
        costs = []
        for table, entry in zip(self.branch_tables, entries, strict=True):
            us = entry.us[table.first] + self.times_behind(table, width_in)
            macs = entry.macs[table.first] + table.macs
            costs.append(OptionCosts(us, macs, entry.params[table.first] + table.params))
        return costs

    def branch_totals(self, width_in: int) -> list[OptionCosts] | None:
        """Return `branch_costs` with an infinite latency where a branch would straggle."""
        costs = self.branch_costs(width_in)
        if costs is None or not self.branched:
            return costs
        totals = []
        for us, macs, params in costs:
            paced_us = np.where(self.bounds.keeps_pace(us), us, np.inf)
            totals.append(OptionCosts(paced_us, macs, params))
        return totals

    def admissible_combinations(
        self, width_in: int, branches: Sequence[OptionCosts], options: tuple[Array, ...]
    ) -> BranchCombinations:
        """Return the combinations that no rule refuses; `options` has an array for each branch."""
        pairs = list(zip(branches, options, strict=True))
        us = np.maximum.reduce([branch.us[option] for branch, option in pairs])
        macs = [branch.macs[option] for branch, option in pairs]
        params = [branch.params[option] for branch, option in pairs]
        tables = list(zip(self.branch_tables, options, strict=True))
        width = sum(table.channels_out[option] for table, option in tables)
        merge_us = self.merge_us + self.merge_us_per_channel * width
        combinations = BranchCombinations(
            us + self.sync_us + merge_us,
            sum(macs),
            sum(params),
            width,
            self.params_by_limit(params),
            options,
        )
        keep = np.isfinite(us)
        if self.branched:
            copies = zip(self.copies_us(width_in), options, strict=True)
            copies_us = np.maximum.reduce([branch_us[option] for branch_us, option in copies])
            keep &= self.amortises(copies_us, width)
            keep &= self.bounds.has_capacity(np.maximum.reduce(macs), combinations.macs)
        return combinations if keep.all() else combinations.take(np.flatnonzero(keep))

    def copies_us(self, width_in: int) -> list[Array]:
        """Return what the copies in and out of every option of each branch take, us."""
        links = zip(self.copies_in, self.branch_tables, strict=True)
        read_bytes = self.bytes_in * width_in
        return [link.cost_us(read_bytes) + table.copy_out_us for link, table in links]

    def amortises(self, copies_us: Array, width: Array) -> Array:
        """Return where a meeting point of a merged width costs little enough.

        `copies_us` are those of the branch whose copies take longest.
        """
        merge_us = self.merge_us + self.merge_us_per_channel * width
        return np.asarray(self.bounds.amortises(copies_us + self.sync_us + merge_us))

    def params_by_limit(self, params: Sequence[Array]) -> Array:
        """Return parameters of `SearchSpace.holders`: `[combination, holder]`."""
        by_holder = dict(zip(self.processors, params, strict=True)) | {WHOLE_NETWORK: sum(params)}
        holders = self.space.holders
        table = np.zeros((len(params[0]), len(holders)))
        for column, holder in enumerate(holders):
            if holder in by_holder:
                table[:, column] = by_holder[holder]
        return table

    def describe(self, options: tuple[int, ...]) -> tuple[Branch, ...]:
        """Return the branches of chosen options as a plan names them."""
        if not self.branched:
            return (Branch(self.processors[0]),)
        branches = []
        for processor, option in zip(self.processors, options, strict=True):
            depth, width = divmod(option, len(self.tail.widths))
            size = int(self.tail.depths[depth]), int(self.tail.widths[width])
            branches.append(Branch(processor, *size))
        return tuple(branches)
