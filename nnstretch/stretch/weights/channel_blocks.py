"""Which numbered channels of a section are one channel, and which of them share a fate.

A block is all channels that run through the same weights, slices and reshapes: a layer's outputs,
or the part of them that one side of a split or of a group norm reads. A scale keeps its share of
every block, so that behind a concatenation each part has its own channels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nnstretch.structure.channel_groups import ChannelGroups, ChannelSlice, Dim
from nnstretch.structure.channel_slices import SameChannels

Index = torch.Tensor
"""Original channel of every new channel, in order."""
NO_BLOCK = -1
"""Stands for what never scales."""
NO_ROOT = -1
"""Stands for the root of channels that no weight has."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of a dimension that goes through one block in order."""

    start: int
    block: int
    """`NO_BLOCK` where nothing scales."""
    inner: int
    """Times that each channel is repeated in a row."""


@dataclass(frozen=True, eq=False)
class ChannelBlocks:
    """The blocks of a section."""

    block: Index
    """Number of a channel -> its block."""
    rank: Index
    """Number of a channel -> its place in the block."""
    sizes: tuple[int, ...]
    """Block -> channels."""
    roots: tuple[int, ...]
    """Block -> the root of its channel groups."""

    @classmethod
    def of(cls, channels: ChannelGroups) -> ChannelBlocks:
        """Find the blocks of an analyzed section."""
        _, channel = torch.unique(joined_numbers(channels), return_inverse=True)
        count = int(channel.max()) + 1 if len(channel) else 0
        signature = torch.zeros(count, dtype=torch.long)
        groups = torch.full((count,), NO_ROOT)
        numbers = numbers_in(channels.ranges)
        if len(numbers):
            # Random numbers stand for the ranges: equal sums are equal sets, all but surely.
            drawn = random_numbers(len(channels.ranges))
            sizes = torch.tensor([part.size for part in channels.ranges])
            roots = [channels.root[part.group or 0] for part in channels.ranges]
            signature.index_add_(0, channel[numbers], drawn.repeat_interleave(sizes))
            groups[channel[numbers]] = torch.tensor(roots).repeat_interleave(sizes)
        _, block = torch.unique(signature, return_inverse=True)
        order = torch.argsort(block, stable=True)
        sizes = torch.bincount(block)
        rank = torch.empty_like(block)
        rank[order] = torch.arange(count) - (sizes.cumsum(0) - sizes)[block[order]]
        root = torch.zeros_like(sizes)
        root[block] = groups
        return cls(block[channel], rank[channel], tuple(sizes.tolist()), tuple(root.tolist()))

    def along(self, dim: Dim) -> tuple[Index, Index]:
        """Return block and place in it of every position along a dimension."""
        blocks: list[Index] = []
        ranks: list[Index] = []
        for part in dim:
            if part.group is None:
                blocks.append(torch.full((part.size,), NO_BLOCK))
                ranks.append(torch.zeros(part.size, dtype=torch.long))
            else:
                blocks.append(self.block[part.first : part.first + part.size])
                ranks.append(self.rank[part.first : part.first + part.size])
        return torch.cat(blocks), torch.cat(ranks)

    def runs(self, dim: Dim) -> list[Run] | None:
        """Return the runs of a dimension; None where it goes through a block in another order."""
        block, rank = self.along(dim)
        changes = (block.diff() != 0) | (rank.diff() != 0)
        borders = [*(changes.nonzero().reshape(-1) + 1).tolist(), len(block)]
        runs: list[Run] = []
        start = 0
        while start < len(block):
            run = Run(start, int(block[start]), borders[bisect_right(borders, start)] - start)
            size = 1 if run.block == NO_BLOCK else self.sizes[run.block]
            end = start + size * run.inner
            expected = torch.arange(size).repeat_interleave(run.inner)
            if not torch.equal(rank[start:end], expected) or (block[start:end] != run.block).any():
                return None
            runs.append(run)
            start = end
        return runs


def joined_numbers(channels: ChannelGroups) -> Index:
    """Return the lowest number that is the same channel, for every number."""
    label = torch.arange(channels.numbered)
    source, target = edges(channels.same)
    while True:
        a = label[source]
        b = label[target]
        if torch.equal(a, b):
            return label
        label = label.scatter_reduce(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        while not torch.equal(label, label[label]):
            label = label[label]


def edges(same: Sequence[SameChannels]) -> tuple[Index, Index]:
    """Return pairs of numbers that are one channel."""
    sources: list[Index] = [torch.arange(0)]
    targets: list[Index] = [torch.arange(0)]
    for pair in same:
        position = torch.arange(pair.outer * pair.size * pair.inner)
        sources.append(pair.source + position // pair.inner % pair.size)
        targets.append(pair.target + position)
    return torch.cat(sources), torch.cat(targets)


def numbers_in(parts: Sequence[ChannelSlice]) -> Index:
    """Return the numbers of slices in a row."""
    numbers = [torch.arange(part.first, part.first + part.size) for part in parts]
    return torch.cat(numbers) if numbers else torch.arange(0)


def random_numbers(count: int) -> Index:
    """Return random numbers, the same ones every time, of which millions can be added."""
    return torch.randint(1 << 40, (count,), generator=torch.Generator().manual_seed(0))
