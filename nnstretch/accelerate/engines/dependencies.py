"""Which instructions each instruction must wait for.

In program order: the one before it on its engine, whoever wrote what it reads, whoever reads or
wrote what it writes. Without overlap, every one waits for the one before it; inside a kernel or a
layer, those of the next wait for all of the last. Where a buffer has N ports, an instruction that
touches it waits for the N-th before it that did, and for all before that one; instructions in
flight are limited in the same way. So all orders stay fixed, and more ports are never slower.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

from nnstretch.chip.instances import ALL_BUFFERS, Instruction, Region
from nnstretch.errors import BadInput

OVERLAPS = ("none", "kernel", "layers")
Needs = list[tuple[int, ...]]


class BufferHistory:
    """Who wrote and who has read each address of a buffer since.

    Spans do not overlap and are kept in order of address. Engines issue in order, so of the writers
    and readers of a span the last on each engine is enough, and spans that are read together become
    one: else a tensor of a thousand tiles would be a thousand needs of each of its readers.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.spans: list[tuple[int, dict[str, int], dict[str, int]]] = []
        """(stop, last writer by engine, last reader by engine) behind each start."""

    def overlapping(self, region: Region) -> tuple[int, int]:
        """Return the range of places of spans that share an address with a region."""
        first = bisect_right(self.starts, region.start)
        if first and self.spans[first - 1][0] > region.start:
            first -= 1
        return first, bisect_left(self.starts, region.stop, first)

    def read(self, region: Region, engine: str, reader: int, needs: set[int]) -> None:
        """Note a read, and add the writers that it must wait for."""
        first, last = self.overlapping(region)
        if last - first > 1:
            inner = first + (self.starts[first] < region.start)
            self.join(inner, last - (self.spans[last - 1][0] > region.stop))
            first, last = self.overlapping(region)
        for place in range(first, last):
            _, writers, readers = self.spans[place]
            needs.update(writers.values())
            readers[engine] = reader

    def join(self, first: int, last: int) -> None:
        """Make a range of spans one."""
        if last - first < 2:
            return
        writers: dict[str, int] = {}
        readers: dict[str, int] = {}
        for _, wrote, have_read in self.spans[first:last]:
            for latest, places in ((writers, wrote), (readers, have_read)):
                for engine, place in places.items():
                    latest[engine] = max(place, latest.get(engine, place))
        self.starts[first:last] = [self.starts[first]]
        self.spans[first:last] = [(self.spans[last - 1][0], writers, readers)]

    def write(self, region: Region, engine: str, writer: int, needs: set[int]) -> None:
        """Note a write, and add the writers and readers that it must wait for."""
        first, last = self.overlapping(region)
        starts: list[int] = []
        spans: list[tuple[int, dict[str, int], dict[str, int]]] = []
        for place in range(first, last):
            start, (stop, earlier, readers) = self.starts[place], self.spans[place]
            needs.update(earlier.values(), readers.values())
            if start < region.start:
                starts.append(start)
                spans.append((region.start, dict(earlier), dict(readers)))
        starts.append(region.start)
        spans.append((region.stop, {engine: writer}, {}))
        if first < last and self.spans[last - 1][0] > region.stop:
            stop, earlier, readers = self.spans[last - 1]
            starts.append(region.stop)
            spans.append((stop, dict(earlier), dict(readers)))
        self.starts[first:last] = starts
        self.spans[first:last] = spans


class PortHistory:
    """The last instructions that touched a buffer, or of all: no more are under way at once."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.latest = deque[tuple[str, int]](maxlen=most)
        self.retired: dict[str, int] = {}
        """Of those before, the last one by engine: engines issue in order."""

    def add(self, instruction: Instruction, place: int, needed: set[int]) -> None:
        """Add what an instruction waits for since it would be one too many, and count it in."""
        touched = {ALL_BUFFERS} if instruction.engine != "host" else set[str]()
        regions = (*instruction.reads, *instruction.writes)
        touched.update(region.buffer for region in regions if region.stop > region.start)
        if self.name in touched:
            if len(self.latest) == self.latest.maxlen:
                engine, earlier = self.latest[0]
                self.retired[engine] = earlier
            needed.update(self.retired.values())
            self.latest.append((instruction.engine, place))


def needs_of(
    instructions: Sequence[Instruction], overlap: str, most_at_once: Mapping[str, int] | None = None
) -> Needs:
    """Return the places of the instructions that each one waits for.

    `most_at_once` tells by buffer how many may touch it at once. Raises BadInput.
    """
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
    ports = [PortHistory(name, most) for name, most in (most_at_once or {}).items()]
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
        for port in ports:
            port.add(instruction, place, needed)
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
            histories.setdefault(region.buffer, BufferHistory()).read(
                region, instruction.engine, place, needed
            )
    for region in instruction.writes:
        if region.stop > region.start:
            histories.setdefault(region.buffer, BufferHistory()).write(
                region, instruction.engine, place, needed
            )
