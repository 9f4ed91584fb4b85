"""C3: addresses, and what leaves the chip where they do not suffice.

Every storage has fixed addresses from its first write to its last read. Where a buffer overflows,
the storage with the longest liveness goes to the global buffer, then to DDR, not the largest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby

from nnstretch.structure.address_ranges import lowest_gap


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that is needed from one step to another."""

    name: str
    size_bytes: int
    first_step: int
    last_step: int

    @property
    def span(self) -> int:
        """Return the steps over which it lives."""
        return self.last_step - self.first_step + 1


def life_of(block: Block) -> tuple[int, int, str]:
    """Return what the block to spill has most of: the longest liveness, the largest, by name."""
    return block.span, block.size_bytes, block.name


def longest_lived(blocks: Iterable[Block]) -> Block:
    """Return the block to spill."""
    return max(blocks, key=life_of)


@dataclass(frozen=True, slots=True)
class Overflow:
    """A step at which what lives exceeds a buffer, and the block that must go."""

    step: int
    live_bytes: int
    block: Block


def overflows(blocks: Iterable[Block], capacity_bytes: int) -> Iterator[Overflow]:
    """Yield in order of time what must go so that the blocks that stay fit at every step."""
    ranked = sorted((b for b in blocks if b.size_bytes), key=life_of, reverse=True)
    starts = sorted(enumerate(ranked), key=lambda item: item[1].first_step)
    live: dict[int, Block] = {}
    longest: list[int] = []
    ending: list[tuple[int, int]] = []
    live_bytes = 0
    for step, starting in groupby(starts, key=lambda item: item[1].first_step):
        while ending and ending[0][0] < step:
            ended = live.pop(heappop(ending)[1], None)
            live_bytes -= ended.size_bytes if ended else 0
        for rank, block in starting:
            live[rank] = block
            live_bytes += block.size_bytes
            heappush(longest, rank)
            heappush(ending, (block.last_step, rank))
        while live_bytes > capacity_bytes:
            leaving = live.pop(heappop(longest), None)
            # Blocks that ended are still among the longest.
            if leaving is not None:
                yield Overflow(step, live_bytes, leaving)
                live_bytes -= leaving.size_bytes


def assign_addresses(blocks: Sequence[Block]) -> dict[str, int]:
    """Return an address for each block so that no two that live at once overlap.

    Two orders are tried, largest first and in order of time; the one that needs less memory is
    taken.
    """
    by_size = sorted(blocks, key=lambda b: (-b.size_bytes, b.first_step, b.name))
    by_time = sorted(blocks, key=lambda b: (b.first_step, -b.span, b.name))
    candidates = [place_in_order(by_size), place_in_order(by_time)]
    return min(candidates, key=lambda addresses: top_of(blocks, addresses))


def top_of(blocks: Sequence[Block], addresses: Mapping[str, int]) -> int:
    """Return the end of the highest block."""
    return max((addresses[b.name] + b.size_bytes for b in blocks), default=0)


def place_in_order(blocks: Sequence[Block]) -> dict[str, int]:
    """Return addresses: each block in turn at the lowest one that its lifetime leaves free."""
    addresses: dict[str, int] = {}
    at_step: dict[int, list[tuple[int, int]]] = {}
    starts: list[int] = []
    ranges: list[tuple[int, int]] = []
    for block in blocks:
        # What lives at its first step, and what begins later while it lives.
        later = bisect_right(starts, block.first_step)
        end = bisect_right(starts, block.last_step, later)
        taken = {*at_step.get(block.first_step, ()), *ranges[later:end]}
        address = lowest_gap(sorted(taken), block.size_bytes)
        addresses[block.name] = address
        place = (address, address + block.size_bytes)
        starts.insert(later, block.first_step)
        ranges.insert(later, place)
        for step in range(block.first_step, block.last_step + 1):
            at_step.setdefault(step, []).append(place)
    return addresses
