"""Which instructions each instruction must wait for.

In program order: the one before it on its engine, whoever wrote what it reads, whoever reads or
wrote what it writes. Without overlap, every one waits for the one before it; inside a kernel or a
layer, those of the next wait for all of the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.chip.instances import Instruction, Region
from nnstretch.errors import BadInput

OVERLAPS = ("none", "kernel", "layers")
Needs = list[tuple[int, ...]]


class BufferHistory:
    """Who wrote and who has read each address of a buffer since."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int, list[int]]] = []
        """(start, stop, writer, readers), not overlapping."""

    def read(self, region: Region, reader: int, needs: set[int]) -> None:
        """Note a read, and add the writers that it must wait for."""
        for start, stop, writer, readers in self.spans:
            if start < region.stop and region.start < stop:
                needs.add(writer)
                if not readers or readers[-1] != reader:
                    readers.append(reader)

    def write(self, region: Region, writer: int, needs: set[int]) -> None:
        """Note a write, and add the writers and readers that it must wait for."""
        kept: list[tuple[int, int, int, list[int]]] = []
        for span in self.spans:
            start, stop, earlier, readers = span
            if start >= region.stop or region.start >= stop:
                kept.append(span)
                continue
            needs.add(earlier)
            needs.update(readers)
            if start < region.start:
                kept.append((start, region.start, earlier, list(readers)))
            if region.stop < stop:
                kept.append((region.stop, stop, earlier, list(readers)))
        kept.append((region.start, region.stop, writer, []))
        self.spans = kept


def needs_of(instructions: Sequence[Instruction], overlap: str) -> Needs:
    """Return the places of the instructions that each one waits for. Raises BadInput."""
    if overlap not in OVERLAPS:
        raise BadInput(f"unknown overlap {overlap!r}, schedule, it is one of {', '.join(OVERLAPS)}")
    if overlap == "none":
        return [(place - 1,) if place else () for place in range(len(instructions))]
    histories: dict[str, BufferHistory] = {}
    last_on_engine: dict[str, int] = {}
    barrier: tuple[int, ...] = ()
    behind: set[str] = set()
    block: tuple[int, int] = (-1, -1)
    needs: Needs = []
    for place, instruction in enumerate(instructions):
        current = (instruction.kernel, instruction.step if overlap == "kernel" else 0)
        if current != block:
            block, barrier, behind = current, tuple(last_on_engine.values()), set()
        needed: set[int] = set()
        if instruction.engine in last_on_engine:
            needed.add(last_on_engine[instruction.engine])
        if instruction.engine not in behind:
            needed.update(barrier)
            behind.add(instruction.engine)
        add_address_needs(histories, instruction, place, needed)
        needed.discard(place)
        last_on_engine[instruction.engine] = place
        if instruction.engine == "host":
            barrier, behind = (place,), {"host"}
        needs.append(tuple(sorted(needed)))
    return needs


def add_address_needs(
    histories: dict[str, BufferHistory], instruction: Instruction, place: int, needed: set[int]
) -> None:
    """Add what an instruction waits for by the addresses that it reads and writes."""
    for region in instruction.reads:
        if region.stop > region.start:
            histories.setdefault(region.buffer, BufferHistory()).read(region, place, needed)
    for region in instruction.writes:
        if region.stop > region.start:
            histories.setdefault(region.buffer, BufferHistory()).write(region, place, needed)
