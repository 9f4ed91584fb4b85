"""C3: addresses, and what leaves the chip where they do not suffice.

Every storage has fixed addresses from its first write to its last read. Where a buffer overflows,
the storage with the longest liveness goes to the global buffer, then to DDR, not the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


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


def longest_lived(blocks: Iterable[Block]) -> Block:
    """Return the block to spill: the longest liveness, then the largest, then by name."""
    return max(blocks, key=lambda block: (block.span, block.size_bytes, block.name))


def first_overflow(
    blocks: Sequence[Block], capacity_bytes: int, reserved: Mapping[int, int] | None = None
) -> int | None:
    """Return the first step at which blocks and what is reserved exceed a buffer, or None."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first_step] = changes.get(block.first_step, 0) + block.size_bytes
        end = block.last_step + 1
        changes[end] = changes.get(end, 0) - block.size_bytes
    live = 0
    for step in range(max(changes, default=-1) + 1):
        live += changes.get(step, 0)
        if live and live + (reserved or {}).get(step, 0) > capacity_bytes:
            return step
    return None


def spills(
    blocks: Sequence[Block], capacity_bytes: int, reserved: Mapping[int, int] | None = None
) -> tuple[Block, ...]:
    """Return the blocks that must go so that those that stay fit at every step."""
    staying = list(blocks)
    gone: list[Block] = []
    while (step := first_overflow(staying, capacity_bytes, reserved)) is not None:
        live = [b for b in staying if b.first_step <= step <= b.last_step and b.size_bytes]
        longest = longest_lived(live)
        staying.remove(longest)
        gone.append(longest)
    return tuple(gone)


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
    for block in blocks:
        taken: set[tuple[int, int]] = set()
        steps = range(block.first_step, block.last_step + 1)
        for step in steps:
            taken.update(at_step.get(step, ()))
        address = lowest_gap(sorted(taken), block.size_bytes)
        addresses[block.name] = address
        for step in steps:
            at_step.setdefault(step, []).append((address, address + block.size_bytes))
    return addresses


def lowest_gap(taken: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return the lowest address at which a size fits between taken ranges."""
    end = 0
    for start, stop in taken:
        if start - end >= size_bytes:
            return end
        end = max(end, stop)
    return end


def free_gaps(taken: Sequence[tuple[int, int]], capacity_bytes: int) -> list[tuple[int, int]]:
    """Return the free ranges of a buffer."""
    gaps: list[tuple[int, int]] = []
    end = 0
    for start, stop in sorted(taken):
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    if capacity_bytes > end:
        gaps.append((end, capacity_bytes))
    return gaps
