"""Which original channels a branch keeps (the rule is in inheritance.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import torch

from nnstretch.graph import Weight
from nnstretch.stretch.lowering.adapters import ADAPTER_PREFIX, adapter_of
from nnstretch.stretch.lowering.depth_scaling import original_weight
from nnstretch.stretch.lowering.lower import LoweredBranch
from nnstretch.stretch.weights.channel_blocks import NO_BLOCK, ChannelBlocks, Index, Run
from nnstretch.structure.channel_groups import Dim, size_at
from nnstretch.structure.channel_slices import ChannelSlice, total

Weights = Mapping[str, torch.Tensor]


@dataclass
class ChannelSelection:
    """The original channels that a branch reads, keeps and writes."""

    branch: LoweredBranch
    weights: Weights
    incoming: Index
    """Channels of the tensor that the branch reads."""
    channel_use: Mapping[int, int]
    """Output channel -> branches before this one that took it."""
    slice_start: int | None
    """First original channel of this branch's slice under a `project` merge."""
    kept: dict[int, Index] = field(default_factory=dict)
    """Block -> places in it that are kept."""
    positions: dict[Dim, Index] = field(default_factory=dict)
    """Dimension -> its original positions, as far as they were asked for."""

    def __post_init__(self) -> None:
        self.section = self.branch.section
        self.channels = self.section.channels
        self.entry = self.section.input_dimension
        self.end = self.section.output_dimension
        self.blocks = ChannelBlocks.of(self.channels)
        self.uneven = self.uneven_roots()
        self.inside = self.incoming
        width = self.size(self.entry)
        self.reads_incoming = width == len(self.incoming) and not self.has_adapter("_in")
        if self.reads_incoming:
            self.keep(self.entry, self.incoming)
        else:
            self.keep_best_inputs()
            self.inside = self.original_positions(self.entry)
        self.keep_what_shortcuts_add()
        self.positions.clear()  # those of before all was kept that others ask for

    @cached_property
    def adapters(self) -> frozenset[str]:
        """Return the names of the branch's adapters."""
        return frozenset(adapter_of(weight.name) for weight in self.adapter_weights)

    @cached_property
    def adapter_weights(self) -> tuple[Weight, ...]:
        """Return the weights of the branch's adapters, which the original does not have."""
        originals = {weight.name for weight in self.section.graph.weights}
        added = [weight for weight in self.branch.graph.weights if weight.name not in originals]
        return tuple(weight for weight in added if weight.name.startswith(ADAPTER_PREFIX))

    def has_adapter(self, suffix: str) -> bool:
        """Return whether the branch has an adapter whose name ends so: `_in` or `_out`."""
        return any(module.endswith(suffix) for module in self.adapters)

    def scaled(self, block: int) -> Fraction:
        """Return how many channels of a block the branch has."""
        scale = Fraction(self.branch.scales.get(self.blocks.roots[block], 1))
        return scale * self.blocks.sizes[block]

    def uneven_roots(self) -> frozenset[int]:
        """Return roots of which no choice of channels is consistent.

        Shuffles, repeated, tie so many channels to each other that blocks do not divide.
        """
        uneven: set[int] = set()
        for block, root in enumerate(self.blocks.roots):
            if self.scaled(block).denominator != 1:
                uneven.add(root)
        return frozenset(uneven)

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension at the branch's widths."""
        return size_at(dim, self.channels, self.branch.scales)

    def runs(self, dim: Dim) -> list[Run]:
        """Return the runs of a dimension, none where channels cannot be followed through it."""
        runs = self.blocks.runs(dim) or []
        for run in runs:
            if run.block != NO_BLOCK and self.blocks.roots[run.block] in self.uneven:
                return []
        return runs

    def keep(self, dim: Dim, positions: Index) -> None:
        """Keep the channels at positions along a dimension, in their order."""
        block, rank = self.blocks.along(dim)
        at = 0
        for run in self.runs(dim):
            count = 1 if run.block == NO_BLOCK else int(self.scaled(run.block))
            read = positions[at : at + count * run.inner : run.inner]
            at += count * run.inner
            if run.block != NO_BLOCK:
                # A channel of another block has no weights at this place: its neighbor's serve.
                size = self.blocks.sizes[run.block]
                ranks = torch.where(block[read] == run.block, rank[read], read % size)
                self.kept.setdefault(run.block, ranks)

    def keep_what_shortcuts_add(self) -> None:
        """Keep on main paths what shortcuts from the input add to them without an adapter."""
        for junction in self.channels.junctions:
            if f"{ADAPTER_PREFIX}{junction.node}" not in self.adapters:
                added, main = self.section.junction_dims(junction)
                self.keep(main, self.original_positions(added))

    def keep_best_inputs(self) -> None:
        """Keep channels that an adapter makes: those of the merged tensor first, then any."""
        block, rank = self.blocks.along(self.entry)
        for run in self.runs(self.entry):
            if run.block != NO_BLOCK:
                offered = self.incoming[block[self.incoming] == run.block]
                score = torch.zeros(self.blocks.sizes[run.block])
                score[rank[offered]] = 1
                self.kept[run.block] = best(score, int(self.scaled(run.block)))

    def original_positions(self, dim: Dim) -> Index:
        """Return original position of every new position along a dimension."""
        if dim not in self.positions:
            self.positions[dim] = self.inherited_positions(dim)
        return self.positions[dim]

    def inherited_positions(self, dim: Dim) -> Index:
        """Compute `original_positions`."""
        if self.reads_incoming and self.is_entry(dim):
            return self.incoming
        runs = self.runs(dim)
        whole = self.follow(runs)
        if runs and len(whole) == self.size(dim):
            return whole
        positions: list[Index] = [torch.arange(0)]
        at = 0
        for part in dim:
            positions.append(at + self.part_positions(part))
            at += part.size
        return torch.cat(positions)

    def is_entry(self, dim: Dim) -> bool:
        """Return whether a dimension has the very channels that the branch reads."""
        if total(dim) != total(self.entry):
            return False
        pairs = zip(self.blocks.along(dim), self.blocks.along(self.entry), strict=True)
        return all(torch.equal(channels, read) for channels, read in pairs)

    def follow(self, runs: list[Run]) -> Index:
        """Return original position of every new position along the runs of a dimension."""
        positions: list[Index] = [torch.arange(0)]
        for run in runs:
            places = torch.arange(1) if run.block == NO_BLOCK else self.kept_places(run.block)
            positions.append(run.start + expand_blocks(places, run.inner))
        return torch.cat(positions)

    def part_positions(self, part: ChannelSlice) -> Index:
        """Return original position of every new position in a slice: its first ones, if need be."""
        size = self.size((part,))
        runs = self.runs((part,))
        places = self.follow(runs)
        if runs and len(places) == size:
            return places
        roots = self.channels.roots((part,))
        is_entry = roots & self.channels.roots(self.entry) and part.size == total(self.entry)
        if is_entry and size == len(self.inside):
            return self.inside
        return torch.arange(size) % max(1, part.size)

    def kept_places(self, block: int) -> Index:
        """Return the channels that a block keeps, most important, in original order."""
        if block not in self.kept:
            size = self.blocks.sizes[block]
            count = int(self.scaled(block))
            if count == size:
                self.kept[block] = torch.arange(size)
            else:
                self.kept[block] = best(self.score(block), count)
        return self.kept[block]

    def score(self, block: int) -> torch.Tensor:
        """Return a block's importance; at the branch's end, less for what other branches took."""
        score = self.importance(block).double()  # what is added below has ten digits
        blocks, ranks = self.blocks.along(self.end)
        positions = (blocks == block).nonzero().reshape(-1)
        if not len(positions):
            return score
        counts = [self.channel_use.get(p, 0) for p in positions.tolist()]
        use = torch.tensor(counts, dtype=torch.double)
        score = score - 1e6 * mean_by_rank(use, ranks[positions], len(score))
        if self.slice_start is not None:
            slice_end = self.slice_start + (self.branch.branch.width_out or 0)
            inside = (self.slice_start <= positions) & (positions < slice_end)
            score[ranks[positions[inside]]] += 1e9
        return score

    def importance(self, block: int) -> torch.Tensor:
        """Return the norm of each channel of a block, averaged over the weights that write it."""
        size = self.blocks.sizes[block]
        score = torch.zeros(size)
        writers = 0
        for name in self.channels.weights_of.get(self.blocks.roots[block], ()):
            tensor = self.weights.get(original_weight(name, self.weights))
            if tensor is None or tensor.dim() < 2:
                continue
            blocks, ranks = self.blocks.along(self.channels.written(name))
            rows = (blocks == block).nonzero().reshape(-1)
            if len(rows):
                axis = int(name in self.channels.transposed)
                filters = tensor.float().index_select(axis, rows).movedim(axis, 0)
                norm = mean_by_rank(filters.flatten(1).norm(dim=1), ranks[rows], size)
                score += norm / norm.mean().clamp_min(1e-12)
                writers += 1
        return score / max(1, writers)

    def end_index(self) -> Index:
        """Return the original channels at the branch's end."""
        return self.original_positions(self.end)

    def output_channels(self) -> Index:
        """Return the original channels at the meeting point, behind an adapter if there is one."""
        end = self.end_index()
        if self.slice_start is None:
            return end
        width = self.branch.branch.width_out or 0
        if len(end) != width or self.has_adapter("_out"):
            return torch.arange(self.slice_start, self.slice_start + width) % total(self.end)
        return end


def best(score: torch.Tensor, count: int) -> Index:
    """Return `count` places of the largest scores, in order; all of them, and again, for more."""
    order = torch.argsort(score, descending=True, stable=True)
    if count <= len(score):
        return order[:count].sort().values
    return order.repeat(count // len(score) + 1)[:count]


def mean_by_rank(values: torch.Tensor, ranks: Index, size: int) -> torch.Tensor:
    """Return the mean of the values at each of `size` ranks."""
    count = torch.bincount(ranks, minlength=size).clamp_min(1)
    return torch.zeros(size, dtype=values.dtype).index_add(0, ranks, values) / count


def expand_blocks(blocks: Index, size: int) -> Index:
    """Return the channels of blocks of `size` channels in a row."""
    return (blocks[:, None] * size + torch.arange(size)).reshape(-1)
