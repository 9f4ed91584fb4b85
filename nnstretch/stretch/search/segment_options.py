"""Every way to cross one segment.

Which processors take part, how their branches merge, and what each combination costs.

The rules of constraints.py are applied here to whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from nnstretch.plan import Branch
from nnstretch.stretch.lowering.lower import equal_slices
from nnstretch.stretch.search.constraints import SegmentBounds
from nnstretch.stretch.search.search_space import Array, SearchSpace


@dataclass(frozen=True)
class BranchTable:
    """What one branch may be, over (depth, width), apart from what depends on the tensor it
    reads.
    """

    us: Array
    """Compute behind the first unit, contention included, and the copy out."""
    copy_out_us: Array
    macs: Array
    params: Array
    channels_out: Array
    """Channels it hands over."""
    first: Array
    """Column of its first unit in the front."""

    def subsample(self, most: int) -> BranchTable:
        """Return about `most` of the options, evenly spread; few are left as they are."""
        step = max(1, len(self.us) // most)
        return (
            self
            if step == 1
            else BranchTable(*(getattr(self, f.name)[::step] for f in fields(self)))
        )


@dataclass(frozen=True)
class EntryCost:
    """What the first units cost that read one tensor; one value for every column of the front."""

    us: Array
    copy_in_us: float
    macs: Array
    params: Array


@dataclass(frozen=True)
class BranchCombinations:
    """Combinations of branches, by number of each branch's (depth, width)."""

    latency_us: Array
    macs: Array
    params: Array
    width: Array
    params_held: Array
    """Parameters on each processor that has a memory limit: over (combination, processor)."""
    options: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.latency_us)

    def take(self, rows: Array) -> BranchCombinations:
        """Return the chosen rows."""
        options = tuple(o[rows] for o in self.options)
        return BranchCombinations(
            self.latency_us[rows],
            self.macs[rows],
            self.params[rows],
            self.width[rows],
            self.params_held[rows],
            options,
        )


class SegmentOption:
    """Segment on one set of processors.

    A single processor, or several whose branches are concatenated or projected.
    """

    def __init__(
        self, space: SearchSpace, i: int, j: int, team: tuple[str, ...], merge: str = "concat"
    ) -> None:
        self.space, self.i, self.j, self.processors, self.merge = space, i, j, team, merge
        soc, names = space.cost_model.soc, frozenset(team)
        self.rest, self.front = space.tail_costs(i, j), space.head_costs(i)
        processors = [soc.processor(p) for p in team]
        self.slowdown = soc.contention_factor(names) if len(team) > 1 else 1.0
        self.sync_us = max(p.sync_us for p in processors)
        self.copies_in = [p.copy_in for p in processors]
        self.copies_out = [p.copy_out for p in processors]
        self.bytes_in, self.bytes_out = space.channel_bytes(i), space.channel_bytes(j)
        self.merge_us = soc.merge.fixed_us if self.branched else 0.0
        self.merge_us_per_channel = (
            soc.merge.us_per_kib * self.bytes_out / 1024 if self.branched else 0.0
        )

    @property
    def branched(self) -> bool:
        """Return whether the segment has more than one branch."""
        return len(self.processors) > 1

    @property
    def name(self) -> str:
        """Return the segment's name for messages."""
        return (
            f"{self.space.cuts[self.i].name} -> {self.space.cuts[self.j].name} on"
            f" {'+'.join(self.processors)}"
        )

    @cached_property
    def original(self) -> tuple[float, int]:
        """Return the original segment on the fastest of all processors, and its MACs."""
        us, macs = self.space.original(self.i, self.j)
        return min(us.values()), macs

    @cached_property
    def bounds(self) -> SegmentBounds:
        """Return the limits of the segment's branches."""
        return self.space.limits.bounds(*self.original)

    @cached_property
    def shares(self) -> list[int]:
        """Return the channels that each branch hands to a concatenation."""
        return equal_slices(self.space.original_width(self.j), len(self.processors))

    @cached_property
    def branch_tables(self) -> list[BranchTable]:
        """Return a table for every branch; arrays are flat over (depth, width)."""
        return [self.branch_table(b, p) for b, p in enumerate(self.processors)]

    def branch_table(self, b: int, processor: str) -> BranchTable:
        """Return all options of branch b on a processor."""
        tail, columns = self.rest, np.arange(len(self.rest.widths))
        depths = np.arange(len(tail.depths))
        if not self.branched:  # the original layers
            depths, columns = depths[-1:], columns[-1:]
        us, macs, params = (
            a[np.ix_(depths, columns)] for a in (tail.us[processor], tail.macs, tail.params)
        )
        handed = tail.widths[columns]
        if self.merge == "concat":
            us = us + self.space.exit_costs(self.j)[processor][columns]
        if self.merge == "project":
            closed = self.space.exit_adapter(self.j, self.shares[b])
            us, macs, params = (
                us + closed.latency_us[processor],
                macs + closed.macs,
                params + closed.params,
            )
            handed = np.full_like(handed, self.shares[b])
        link = self.copies_out[b]
        out_us = link.fixed_us + link.us_per_kib * self.bytes_out * handed / 1024
        shape = us.shape

        def flat(row: Array) -> Array:
            return np.broadcast_to(row, shape).ravel()

        first = columns if self.merge == "project" else tail.first[columns]
        return BranchTable(
            (self.slowdown * us + out_us).ravel(),
            flat(out_us),
            macs.ravel(),
            params.ravel(),
            flat(handed),
            flat(first),
        )

    def entry_costs(self, width_in: int) -> list[EntryCost] | None:
        """Return the costs of first units on a tensor of this width; None where none can start from
        it.
        """
        if self.merge == "project":
            if width_in != self.space.original_width(self.i):
                return None
            costs = self.space.projected_head_costs(self.i, self.j)
            rows = [(costs.latency_us[p], costs.macs, costs.params) for p in self.processors]
        else:
            row, costs = self.front.row(width_in), self.front.costs
            rows = [
                (costs.latency_us[p][row], costs.macs[row], costs.params[row])
                for p in self.processors
            ]
        moved = [link.cost_us(self.bytes_in * width_in) for link in self.copies_in]
        return [
            EntryCost(self.slowdown * us + copy, copy, macs, params)
            for copy, (us, macs, params) in zip(moved, rows, strict=True)
        ]

    def branch_costs(self, width_in: int) -> list[tuple[Array, Array, Array]] | None:
        """Return for every branch latency, MACs and parameters of all its options, over (depth,
        width); None where no branch can start from this width.

        Latency is infinite where a depth and a width do not go together.
        """
        entries = self.entry_costs(width_in)
        if entries is None:
            return None
        return [
            (
                entry.us[table.first] + table.us,
                entry.macs[table.first] + table.macs,
                entry.params[table.first] + table.params,
            )
            for table, entry in zip(self.branch_tables, entries, strict=True)
        ]

    def branch_totals(self, width_in: int) -> list[tuple[Array, Array, Array]] | None:
        """Return `branch_costs` with an infinite latency where a branch would straggle."""
        costs = self.branch_costs(width_in)
        if costs is None or not self.branched:
            return costs
        return [
            (np.where(self.bounds.keeps_pace(us), us, np.inf), macs, params)
            for us, macs, params in costs
        ]

    def admissible_combinations(
        self,
        width_in: int,
        combinations: list[tuple[Array, Array, Array]],
        options: tuple[Array, ...],
    ) -> BranchCombinations:
        """Return combinations that no constraint refuses, priced."""
        us = [branch[0][o] for branch, o in zip(combinations, options, strict=True)]
        macs = [branch[1][o] for branch, o in zip(combinations, options, strict=True)]
        each = {
            p: branch[2][o]
            for p, branch, o in zip(self.processors, combinations, options, strict=True)
        }
        width = sum(
            table.channels_out[o] for table, o in zip(self.branch_tables, options, strict=True)
        )
        slowest, work = np.maximum.reduce(us), sum(macs)
        merge_us = self.merge_us + self.merge_us_per_channel * width
        none = np.zeros(len(slowest))
        params_held = (
            np.array([each.get(p, none) for p in self.space.limited])
            .reshape(len(self.space.limited), len(slowest))
            .T
        )
        picks = BranchCombinations(
            slowest + self.sync_us + merge_us, work, sum(each.values()), width, params_held, options
        )
        keep = np.isfinite(slowest)
        if self.branched:
            copies = [
                link.cost_us(self.bytes_in * width_in) + table.copy_out_us[o]
                for link, table, o in zip(self.copies_in, self.branch_tables, options, strict=True)
            ]
            keep &= self.bounds.amortises(np.maximum.reduce(copies) + self.sync_us + merge_us)
            keep &= self.bounds.has_capacity(np.maximum.reduce(macs), work)
        return picks if keep.all() else picks.take(np.flatnonzero(keep))

    def all_combinations(self, width_in: int) -> BranchCombinations | None:
        """Return every admissible combination; for small spaces."""
        totals = self.branch_totals(width_in)
        if totals is None:
            return None
        grids = np.meshgrid(
            *(np.flatnonzero(np.isfinite(us)) for us, _, _ in totals), indexing="ij"
        )
        return self.admissible_combinations(width_in, totals, tuple(g.ravel() for g in grids))

    def describe(self, options: tuple[int, ...]) -> tuple[Branch, ...]:
        """Return the branches of chosen options as a plan names them."""
        if not self.branched:
            return (Branch(self.processors[0]),)
        across = len(self.rest.widths)
        return tuple(
            Branch(p, int(self.rest.depths[o // across]), int(self.rest.widths[o % across]))
            for p, o in zip(self.processors, options, strict=True)
        )


def segment_options(space: SearchSpace) -> Iterator[SegmentOption]:
    """Yield all segment options of a space: single processors everywhere.

    Teams where there is weighted work and channels may differ afterwards.
    """
    last = len(space.cuts) - 1
    for i in range(last):
        for j in range(i + 1, last + 1):
            for processor in space.processors:
                yield SegmentOption(space, i, j, (processor,))
            if j == last or not space.original(i, j)[1]:
                continue
            for processors in space.processor_sets():
                for merge in space.merges:
                    yield SegmentOption(space, i, j, processors, merge)
